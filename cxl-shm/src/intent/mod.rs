//! Intents: an update under a lock is redone or never seen (rule LOCK-L2).
//!
//! A holder publishes what it is about to write, writes it, publishes it, closes the intent, and
//! only then releases the lock. When the holder dies on the way, its recoverer finds the intent
//! open and writes the same again, any number of times.
//!
//! ```text
//! line 0      head, sealed: open, lock, number of images, their CRC-32C, the lines they are for
//! lines 1..8  images: the new contents of those lines, each with the seal of its target
//! ```
//!
//! Head and images are published together, in any order. A head that is torn, or does not match its
//! images, belongs to a holder that died before its intent was published. Such a holder had written
//! nothing else. Targets are numbers of lines within what the lock guards. So an intent, whatever
//! it contains, can reach nothing else (MEM-M5), with one exception: the first line of a chunk that
//! it gives to a heap. That line is made to say that no node has built the chunk. It is written
//! under the open intent, so it never stays in the caches of a host that does not get the chunk
//! after all (MEM-M1).

use crc_fast::CrcAlgorithm;

use crate::crash::{self, CrashPoint};
use crate::fabric::{
    Fabric, LineWords, OwnedArea, PeerArea, PeerLine, PublishBatch, Record, unseal,
};
use crate::layout::{
    CHUNK_LOCK, ChunkEntry, ChunkState, HEAP_PURPOSE, HeapHeader, INTENT_IMAGES, INTENT_LINES,
    INTENTS, IntentRecord, LOCK_TABLE_LOCK, Layout, PROFILE_LOCK, ROOT_LOCK, flush_superblock,
    header,
};
use crate::mutant::{self, Mutant};
use crate::node::{Backend, NodeHandle};
use crate::units::{ChunkId, LineOffset, LineRange, LockId, NodeId};

/// The lines that `lock` guards: the only ones that an intent under it may write.
fn guarded(layout: &Layout, lock: LockId) -> Option<LineRange> {
    match lock {
        ROOT_LOCK => Some(layout.roots().range()),
        CHUNK_LOCK => Some(layout.chunk_table()),
        LOCK_TABLE_LOCK => Some(layout.lock_table().range()),
        _ => None,
    }
}

#[doc(hidden)]
/// An update of up to [`INTENT_IMAGES`] lines that a lock guards: all of them, or none.
///
/// The caller holds the lock and has refreshed the lines that it adds (LOCK-L1).
#[derive(Debug)]
#[must_use = "nothing is written before `commit`"]
pub struct Update {
    lock: LockId,
    guarded: LineRange,
    targets: Vec<u32>,
    images: Vec<LineWords>,
}

impl Update {
    #[doc(hidden)]
    /// An update under `lock`, one of the region's own that guards something.
    pub fn new(layout: &Layout, lock: LockId) -> Self {
        let guarded = guarded(layout, lock).expect("updates are made under the locks that guard");
        Self { lock, guarded, targets: Vec::new(), images: Vec::new() }
    }

    #[doc(hidden)]
    /// Adds the next version of a line.
    ///
    /// # Panics
    /// When the lock does not guard the line, or there are more lines than an intent holds: both
    /// are bugs of the caller.
    pub fn line<T: Record>(mut self, fabric: &impl Fabric, line: PeerLine<T>, value: &T) -> Self {
        assert!(self.targets.len() < INTENT_IMAGES, "an intent holds {INTENT_IMAGES} lines");
        let from_start = line.at().bytes().checked_sub(self.guarded.start().bytes());
        let index = from_start.map(|bytes| bytes / crate::units::LINE_BYTES);
        let index = index.filter(|index| *index < self.guarded.lines());
        let target = index.and_then(|index| u32::try_from(index).ok());
        self.targets.push(target.expect("the lock guards the lines of its updates"));
        // MEM-M1: the lock makes us the one writer of the line.
        self.images.push(line.claim().image(fabric, value));
        self
    }

    #[doc(hidden)]
    /// Carries the update out: intent, lines, close. After return every host that reads the lines
    /// fresh sees all of it.
    pub fn commit<B: Backend>(self, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        let Self { lock, guarded: _, targets, images } = self;
        let intent = handle.intent(lock);
        open(&intent, fabric, lock, &targets, &images);
        crash::reach(CrashPoint::IntentOpen);
        write(handle.layout(), fabric, lock, &targets, &images);
        crash::reach(CrashPoint::IntentWritten);
        head_of(&intent).claim().publish(fabric, &IntentRecord::closed());
    }
}

/// Writes one entry of the chunk table. The caller holds [`CHUNK_LOCK`] and has refreshed the
/// entry (LOCK-L1).
pub(crate) fn set_chunk<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    chunk: ChunkId,
    entry: &ChunkEntry,
) {
    let layout = handle.layout();
    let update = Update::new(layout, CHUNK_LOCK);
    update.line(fabric, layout.chunk_entry(chunk), entry).commit(handle, fabric);
}

/// Redoes and closes the intent that this node has open under `lock`, if any. The node still holds
/// the lock in the eyes of all others.
pub(crate) fn redo_own<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
    if lock == PROFILE_LOCK {
        // Not an intent: slots and word are whole by themselves. But what a dead holder left in
        // this host's caches must not come after the next holder's work (MEM-M1).
        flush_superblock(fabric);
    } else if handle.has_intent(lock) {
        // Our own lines: the processes of a host see each other's last values.
        redo(handle.layout(), fabric, lock, &handle.intent(lock));
    }
}

/// As [`redo_own`], for what a process of this host left that died, or a former life of it.
pub(crate) fn recover_own<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
    if handle.has_intent(lock) {
        // It may be closed in our caches only. Were our host lost after others have changed the
        // same lines, its recoverer would find it open, and undo what they did. It is written back
        // when it leaves the caches, and read back by the load that follows.
        fabric.refresh(head_of(&handle.intent(lock)).range());
    }
    redo_own(handle, fabric, lock);
}

/// Whether this node has an intent open: an update is under way, or its holder died and nobody has
/// redone it yet.
pub(crate) fn is_any_open<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) -> bool {
    let locks = (0..handle.layout().locks()).map(LockId);
    locks.filter(|lock| handle.has_intent(*lock)).any(|lock| {
        let head = head_of(&handle.intent(lock)).claim().own(fabric);
        head.is_ok_and(|record| record.open(lock).is_some())
    })
}

/// Redoes and closes every intent that `dead` left open; how many were redone.
///
/// Called by the one recoverer of a node after its fence, while the node still holds its locks in
/// the eyes of all others (redo, close, release, in that order), and again by the next one when the
/// recoverer dies on the way.
pub(crate) fn redo_of_dead<F: Fabric>(layout: &Layout, fabric: &F, dead: NodeId) -> usize {
    let intents = layout.intents(dead);
    // MEM-M3: the dead wrote them, not we.
    fabric.refresh(intents.range());
    // MEM-M1: after the fence nobody writes the lines of the dead but its one recoverer.
    let intents = intents.claim();
    let locks = u32::try_from(INTENTS).map_or(0..0, |locks| 0..locks).map(LockId);
    locks
        .filter(|lock| {
            let record = intents.part(u64::from(lock.0) * INTENT_LINES, INTENT_LINES);
            record.is_some_and(|record| redo(layout, fabric, *lock, &record))
        })
        .count()
}

/// Redoes and closes one intent; whether there was something to redo.
fn redo<F: Fabric>(layout: &Layout, fabric: &F, lock: LockId, intent: &OwnedArea) -> bool {
    let head = head_of(intent).claim();
    let Ok(record) = head.own(fabric) else {
        return false;
    };
    let (Some((targets, images_crc)), Some(guarded)) = (record.open(lock), guarded(layout, lock))
    else {
        return false;
    };
    let images: Vec<LineWords> =
        image_lines(intent).take(targets.len()).map(|line| fabric.read_line(line)).collect();
    let inside = targets.iter().all(|target| u64::from(*target) < guarded.lines());
    let whole = crc_of(&images) == images_crc && inside;
    if mutant::is(Mutant::ClosesBeforeRedo) {
        head.publish(fabric, &IntentRecord::closed());
    }
    if whole {
        // The holder that opened it may have died before it was published, and left it in our
        // caches only. Were our host lost while we write, nobody would find it to complete what has
        // arrived.
        let written = intent.part(0, 1 + targets.len() as u64);
        written.into_iter().for_each(|lines| fabric.publish(lines.range()));
        write(layout, fabric, lock, targets, &images);
    }
    crash::reach(CrashPoint::IntentRedone);
    head.publish(fabric, &IntentRecord::closed());
    whole
}

/// Publishes head and images of an intent.
fn open<F: Fabric>(
    intent: &OwnedArea,
    fabric: &F,
    lock: LockId,
    targets: &[u32],
    images: &[LineWords],
) {
    let mut batch = PublishBatch::new(fabric);
    for (line, image) in image_lines(intent).zip(images) {
        batch.image(line, image);
    }
    let head = IntentRecord::opened(lock, targets, crc_of(images));
    batch.line(head_of(intent).claim(), &head);
    batch.publish();
}

/// Writes the images to their targets, whole lines: what our caches hold of them does not matter.
fn write<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    lock: LockId,
    targets: &[u32],
    images: &[LineWords],
) {
    let Some(guarded) = guarded(layout, lock).map(PeerArea::new) else { return };
    let mut batch = PublishBatch::new(fabric);
    for (target, image) in targets.iter().zip(images) {
        if let Some(line) = guarded.part(u64::from(*target), 1) {
            if let Some(header) = header_of_new_heap(layout, lock, ChunkId(*target), image) {
                // Before the entry: the processes of a host that see whose the chunk is see this.
                // MEM-M1: under the lock, the chunk becomes this node's, or the node's it recovers.
                batch.line(header.claim(), &HeapHeader::unbuilt());
            }
            batch.image(line.range().start(), image);
            crash::reach(CrashPoint::IntentPartWritten);
        }
    }
    batch.publish();
}

/// The header of the chunk that an image gives to a heap. Whatever was there before, that of a
/// former heap of the same node among it, must not count for one.
fn header_of_new_heap(
    layout: &Layout,
    lock: LockId,
    chunk: ChunkId,
    image: &LineWords,
) -> Option<PeerLine<HeapHeader>> {
    let chunk = layout.chunk_id(chunk.0).filter(|_| lock == CHUNK_LOCK)?;
    let (entry, _) = unseal::<ChunkEntry>(layout.chunk_entry(chunk).at(), image).ok()?;
    match entry.state()? {
        ChunkState::Owned { purpose: HEAP_PURPOSE, .. } => Some(header(layout.chunk(chunk))),
        ChunkState::Owned { .. } | ChunkState::Free | ChunkState::Failed => None,
    }
}

fn head_of(intent: &OwnedArea) -> PeerLine<IntentRecord> {
    intent.peer().line(0).expect("a redo record has a head")
}

fn image_lines(intent: &OwnedArea) -> impl Iterator<Item = LineOffset> {
    intent.range().iter().skip(1)
}

fn crc_of(images: &[LineWords]) -> u32 {
    let bytes: Vec<u8> = images.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &bytes);
    u32::try_from(crc & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
