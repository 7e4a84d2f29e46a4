//! Mark and sweep: what is left of a heap when the host that knew it is gone.
//!
//! A chunk whose header does not name this incarnation is *unbuilt*: what its pages are used for
//! is known, which of their slots are allocated is not. It is built before it is used: everything
//! that a named root reaches in it is allocated, the rest is free. Locks are taken in the order
//! roots, chunk table, heap: no root comes or goes and no chunk changes hands meanwhile.

use std::collections::BTreeSet;

use super::access::{Access, Damaged};
use super::core::Piece;
use super::error::SweepError;
use super::page::{PageNumber, PageUse, PageWord, PlaceKind};
use super::unlocked::{Deadline, Unlocked};
use super::words::Origin;
use crate::root::table::{self, RootSeen};
use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::HEAP_PURPOSE;
use cxl_shm::layout::{CHUNK_LOCK, ChunkState, HeapHeader, ROOT_LOCK};
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{ChunkId, Extent, LINE_BYTES, LINE_WORDS, LineRange, PAGE_BYTES};

impl From<Damaged> for SweepError {
    fn from(Damaged: Damaged) -> Self {
        Self::Damaged
    }
}

/// What a sweep found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SweepReport {
    /// Chunks swept.
    pub chunks: u64,
    /// Objects in them that are reachable, and were kept.
    pub kept_objects: u64,
    /// Their bytes, rounded up to their sizes.
    pub kept_bytes: u64,
}

/// Builds the chunks of this node's heap that are unbuilt; whether there were any.
pub(crate) fn build_new<B: Backend>(
    unlocked: &mut Unlocked<'_, B>,
    clock: &impl Clock,
    deadline: Deadline,
) -> Result<bool, SweepError> {
    {
        let access = unlocked.enter_until(clock, deadline)?;
        if access.chunks().into_iter().all(|chunk| access.is_built(chunk)) {
            return Ok(false);
        }
    }
    sweep_chunks(unlocked, clock, deadline, false).map(|report| report.chunks > 0)
}

/// Sweeps all of this node's heap. The caller has made sure that no process of the host holds an
/// object that no root reaches.
pub(crate) fn sweep<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
) -> Result<SweepReport, SweepError> {
    sweep_chunks(&mut Unlocked::begin(member), clock, Deadline::after(clock, timeout_ms), true)
}

fn sweep_chunks<B: Backend>(
    unlocked: &mut Unlocked<'_, B>,
    clock: &impl Clock,
    deadline: Deadline,
    all: bool,
) -> Result<SweepReport, SweepError> {
    unlocked.in_heap_under(&[ROOT_LOCK, CHUNK_LOCK], clock, deadline, |access| {
        sweep_locked(&access, all)
    })
}

/// Under the locks of the roots and of the chunk table.
fn sweep_locked<B: Backend>(access: &Access<'_, B>, all: bool) -> Result<SweepReport, SweepError> {
    let member = access.member;
    let (layout, fabric) = (member.layout(), member.fabric());
    let chunks = access.chunks().into_iter();
    let swept: BTreeSet<ChunkId> = chunks.filter(|chunk| all || !access.is_built(*chunk)).collect();
    if swept.is_empty() {
        return Ok(SweepReport::default());
    }
    // Before anything is swept: a free that comes for a swept object after its room was taken
    // again would free what is there then.
    access.drain()?;
    // LOCK-L1.
    fabric.refresh(layout.roots().range());
    let roots = table::seen(layout, fabric);
    for root in roots.iter().filter(|root| root.retired) {
        let origin = Origin::Root { entry: root.entry, sequence: root.sequence };
        // Nothing is freed for it: it reaches nothing, so the sweep does that. Or a process died
        // that had freed its object, in any chunk.
        if chunk_at(member, root.offset).is_some_and(|chunk| swept.contains(&chunk))
            || access.heap.words.is_collected(origin)
        {
            table::set_free(member.node_handle(), fabric, root.entry);
        }
    }
    access.heap.words.set_collected(None);

    unbuild(access, &swept);
    let mut mark = Mark { access, swept: &swept, seen: BTreeSet::new() };
    let live = |linked| roots.iter().filter(move |root| !root.retired && root.linked == linked);
    // Linked ones first: an object that is reached both ways has its words looked at.
    live(true).for_each(|root| mark.from(root));
    live(false).for_each(|root| mark.from(root));
    crash::reach(CrashPoint::HeapMarked);

    let mut report = SweepReport::default();
    for chunk in &swept {
        report.chunks += 1;
        let pieces: Vec<Piece> = access.heap.pieces(*chunk).collect();
        for piece in pieces {
            match piece {
                Piece::Slots { class, allocated, .. } => {
                    let objects = u64::from(allocated.count_ones());
                    report.kept_objects += objects;
                    report.kept_bytes += objects * class.lines() * LINE_BYTES;
                }
                Piece::Run { pages, .. } => {
                    report.kept_objects += 1;
                    report.kept_bytes += pages * PAGE_BYTES;
                }
                Piece::Free { .. } | Piece::Damaged { .. } => {}
            }
        }
        access.set_header(*chunk, &HeapHeader::built_by(member.node(), member.incarnation()));
    }
    // Publishes what the pages are, before any of them is used again.
    access.relink()?;
    Ok(report)
}

/// Forgets what is allocated in `swept`. A chunk is given up from here until all of it is marked:
/// when this process dies meanwhile, the next sweep begins anew, and no process takes room there
/// before. Nor does one that took the chunk from the region long ago build it as an empty one.
pub(super) fn unbuild<B: Backend>(access: &Access<'_, B>, swept: &BTreeSet<ChunkId>) {
    let pages = access.heap.pages;
    for chunk in swept {
        if access.is_built(*chunk) {
            access.set_given_up(*chunk);
        } else {
            access.heap.words.forget(*chunk);
            // MEM-M3: another incarnation, or another host, wrote them.
            access.member.fabric().refresh(pages.lines_of(*chunk));
        }
        for page in pages.data_of(*chunk).map(PageNumber) {
            // A line that is not ours describes no object: its writer died before it said so.
            if pages.usage(page) == PageUse::Damaged {
                pages.set_usage(page, PageUse::Free);
            }
            pages.set(page, PageWord::Allocated, 0);
            pages.set(page, PageWord::Named, 0);
        }
    }
}

fn chunk_at<B: Backend>(member: &Member<B>, offset: u64) -> Option<ChunkId> {
    member.layout().chunk_of(Extent::new(offset, LINE_BYTES)?)
}

/// Marks what roots reach. Marks are the maps of allocated slots of the swept chunks.
struct Mark<'a, 'm, B: Backend> {
    access: &'a Access<'m, B>,
    swept: &'a BTreeSet<ChunkId>,
    seen: BTreeSet<u64>,
}

impl<B: Backend> Mark<'_, '_, B> {
    fn from(&mut self, root: &RootSeen) {
        let mut waiting = vec![root.offset];
        while let Some(offset) = waiting.pop() {
            let Some(extent) = self.reach(offset, offset == root.offset) else { continue };
            if root.linked {
                self.references(extent, &mut waiting);
            }
        }
    }

    /// Marks the object at `offset`; its bytes, when it was not seen before.
    fn reach(&mut self, offset: u64, named: bool) -> Option<Extent> {
        let member = self.access.member;
        let chunk = chunk_at(member, offset)?;
        let pages = self.access.heap.pages;
        let swept = self.swept.contains(&chunk);
        if !swept {
            // The table was refreshed when the heap's own chunks were read.
            let entry = member.layout().chunk_entry(chunk).cached(member.fabric()).ok()?;
            let heap = matches!(entry.state()?, ChunkState::Owned { purpose: HEAP_PURPOSE, .. });
            heap.then_some(())?;
            if !self.access.heap.words.knows(chunk) && !self.seen.contains(&offset) {
                // MEM-M3: its owner writes the line.
                member.fabric().refresh(LineRange::one(pages.line(pages.at(offset)?)));
            }
        }
        let place = pages.place(offset)?;
        if swept {
            let bit = match place.kind {
                PlaceKind::Slot(_) => 1 << place.slot,
                PlaceKind::Pages(_) => 1,
            };
            let allocated = pages.get(place.page, PageWord::Allocated);
            pages.set(place.page, PageWord::Allocated, allocated | bit);
            if named {
                self.access.set_named(&place, true);
            }
        }
        self.seen.insert(offset).then_some(place.extent)
    }

    /// Adds every word of an object that may be the offset of another.
    fn references(&self, extent: Extent, waiting: &mut Vec<u64>) {
        let fabric = self.access.member.fabric();
        let lines = LineRange::covering(extent);
        fabric.refresh(lines);
        for line in lines.iter() {
            for word in (0..LINE_WORDS).filter_map(|index| line.word(index)) {
                let offset = fabric.load(word);
                let new = offset != 0 && offset.is_multiple_of(LINE_BYTES);
                if new && !self.seen.contains(&offset) {
                    waiting.push(offset);
                }
            }
        }
    }
}
