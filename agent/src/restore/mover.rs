//! What moves blocks from drives into the pool.

use std::collections::HashMap;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use crossbeam_utils::sync::Parker;
use cxl_shm::clock::{Clock as _, SystemClock};
use cxl_shm::crash::{self, CrashPoint};
use kv_cache::tier::{AskedRestore, DriveError, RestoreDesk};
use kv_cache::{
    BlockKey, BlockSpec, Handle, NamespaceTag, Reservation, RestoreOutcome, RestoreRequest,
    WritingBlock,
};
use kv_drive::io::Buffer;
use kv_drive::store::Store;
use kv_drive::volume::{ReadMiss, StoredBlock, Unverified};
use rackline::LocalCache;
use rackline::dma::{Checksum, DmaEngine, HostDma, StoreJob};

use super::used::RestoredBlocks;
use super::{Next, NotQueued, Queued, RestoreQueue};
use crate::clear::{Gate, Stopped};
use crate::figures::{Figures, SharedFigures};
use crate::reads::Reads;
use crate::settings::RestoreSettings;

/// How long a reservation waits for a lock between hosts, or a chunk, at most.
const CHUNK_TIMEOUT_MS: u64 = 100;
/// A read that takes longer is given up: its device does not answer.
const READ_TIMEOUT_US: u64 = 10_000_000;
/// Buffers that are kept for the next reads.
const SPARE_MAX: usize = 64;
/// How often requests are looked for while reads are under way, in microseconds.
const READING_US: u64 = 1_000;

/// What a [`Restorer`] works with.
#[derive(Debug)]
pub(crate) struct RestoreParts<'a> {
    /// The pool.
    pub(crate) cache: &'a LocalCache<'a>,
    /// The clock of the process.
    pub(crate) clock: &'a SystemClock,
    /// What copies.
    pub(crate) dma: &'a HostDma,
    /// The drives.
    pub(crate) store: &'a Store,
    /// What is counted.
    pub(crate) figures: &'a SharedFigures,
    /// Gets the number of reads.
    pub(crate) reads: &'a Reads,
    /// Gets the keys of blocks that were found damaged.
    pub(crate) damaged: Sender<BlockKey>,
    /// Which blocks may be restored.
    pub(crate) gate: &'a Gate,
}

/// A request, and what it asks for.
#[derive(Clone, Copy, Debug)]
struct Wish {
    asked: AskedRestore,
    request: RestoreRequest,
}

/// A read, by folder and number in its queue.
type ReadId = (usize, u64);

/// A block whose read begins in this turn.
#[derive(Debug)]
struct Start {
    at: ReadId,
    stored: StoredBlock,
    asked: Vec<AskedRestore>,
}

/// A block that is being read.
#[derive(Debug)]
struct Reading {
    block: WritingBlock,
    crc: u32,
    tag: NamespaceTag,
    asked: Vec<AskedRestore>,
}

/// A block whose bytes have arrived, and are those that were published.
#[derive(Debug)]
struct Arrived {
    reading: Reading,
    buffer: Buffer,
    bytes: usize,
}

impl Arrived {
    fn payload(&self) -> &[u8] {
        self.buffer.bytes().and_then(|all| all.get(..self.bytes)).unwrap_or_default()
    }
}

/// Restores the blocks that the hosts of a rack ask for, on one thread.
#[derive(Debug)]
pub(crate) struct Restorer<'a> {
    parts: RestoreParts<'a>,
    desk: RestoreDesk,
    answers: Vec<(AskedRestore, RestoreOutcome)>,
    /// One for each folder.
    queues: Vec<RestoreQueue<Wish>>,
    reading: HashMap<ReadId, Reading>,
    by_key: HashMap<BlockKey, ReadId>,
    tell: Sender<(ReadId, Unverified)>,
    told: Receiver<(ReadId, Unverified)>,
    /// Where the thread waits for them.
    parker: Parker,
    spare: Vec<Buffer>,
    /// What clears have stopped, as of this change.
    stopped: (u64, Stopped),
    restored: RestoredBlocks<Handle>,
}

impl<'a> Restorer<'a> {
    /// One that answers what `desk` has.
    #[must_use]
    pub(crate) fn new(
        parts: RestoreParts<'a>,
        desk: RestoreDesk,
        settings: &RestoreSettings,
    ) -> Self {
        let (tell, told) = unbounded();
        let queue = |_| RestoreQueue::new(settings.depth, settings.queue_max);
        let queues = (0..parts.store.folders()).map(queue).collect();
        let (reading, by_key) = (HashMap::new(), HashMap::new());
        let (answers, spare, parker) = (Vec::new(), Vec::new(), Parker::new());
        let (stopped, restored) = ((0, Stopped::default()), RestoredBlocks::default());
        Self {
            parts,
            desk,
            answers,
            queues,
            reading,
            by_key,
            tell,
            told,
            parker,
            spare,
            stopped,
            restored,
        }
    }

    /// Takes requests, begins reads, ends reads, answers. Waits for nothing but room in the pool.
    /// Says whether anything was done.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub(crate) fn turn(&mut self) -> Result<bool, DriveError> {
        self.follow_clears();
        // AGENT-C2: what is asked for before waits for the folders to be looked at.
        if self.stopped.0 == 0 {
            return Ok(false);
        }
        let asked = self.desk.next(self.parts.cache)?;
        let mut is_busy = !asked.is_empty();
        self.accept(asked);
        // Before they begin: no write is to begin any more.
        self.tell_reads();
        is_busy |= self.begin()?;
        is_busy |= self.end();
        self.give_up_on_silent_devices();
        self.tell_reads();
        self.look_at_uses();
        self.send_answers()?;
        Ok(is_busy)
    }

    fn tell_reads(&self) {
        let now = self.queues.iter().map(RestoreQueue::reads).sum();
        self.parts.reads.tell(now, self.queues.iter().map(RestoreQueue::queued).sum());
    }

    /// Gives up the restores of blocks that a clear is to remove (AGENT-C1).
    fn follow_clears(&mut self) {
        let Some(news) = self.parts.gate.news(self.stopped.0) else { return };
        self.stopped = news;
        let is_stopped = |(at, it): &(&ReadId, &Reading)| !self.stopped.1.lets(at.0, it.tag);
        let stopped: Vec<ReadId> =
            self.reading.iter().filter(is_stopped).map(|(at, _)| *at).collect();
        for at in stopped {
            let Some(reading) = self.reading.remove(&at) else { continue };
            self.by_key.remove(&reading.block.key());
            self.failed(at, reading.block, reading.asked, RestoreOutcome::Unknown);
        }
        self.parts.gate.follow(self.stopped.0);
    }

    /// Waits until a read is over, or until it is time to look for requests again: after `us`
    /// microseconds, or after a millisecond while reads are under way.
    pub(crate) fn rest(&self, us: u64) {
        let us = if self.reading.is_empty() { us } else { READING_US };
        self.parker.park_timeout(Duration::from_micros(us));
    }

    /// Answers all requests that wait: the agent stops.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub(crate) fn stop(mut self) -> Result<(), DriveError> {
        let mut asked = self.desk.next(self.parts.cache)?;
        let waiting = self.queues.iter_mut().flat_map(RestoreQueue::drain);
        asked.extend(waiting.map(|wish| wish.asked));
        let reading = std::mem::take(&mut self.reading);
        let (blocks, read): (Vec<_>, Vec<_>) =
            reading.into_values().map(|it| (it.block, it.asked)).unzip();
        self.parts.cache.abort(self.parts.clock, blocks);
        asked.extend(read.into_iter().flatten());
        asked.into_iter().for_each(|asked| self.answer(asked, RestoreOutcome::Stopped));
        self.send_answers()
    }

    fn answer(&mut self, asked: AskedRestore, outcome: RestoreOutcome) {
        self.answers.push((asked, outcome));
    }

    fn answer_all(&mut self, asked: Vec<AskedRestore>, outcome: RestoreOutcome) {
        self.answers.extend(asked.into_iter().map(|asked| (asked, outcome)));
    }

    fn send_answers(&mut self) -> Result<(), DriveError> {
        if self.answers.is_empty() {
            return Ok(());
        }
        self.desk.answer(self.parts.cache, &self.answers)?;
        let answers = std::mem::take(&mut self.answers);
        let count = |figures: &mut Figures| answers.iter().for_each(|it| figures.answered(it.1));
        self.parts.figures.count(count);
        Ok(())
    }

    fn accept(&mut self, asked: Vec<AskedRestore>) {
        let (mut wishes, mut keys) = (Vec::new(), Vec::new());
        for asked in asked {
            match asked.request {
                Some(request) => {
                    wishes.push(Wish { asked, request });
                    keys.push(request.key);
                }
                None => self.answer(asked, RestoreOutcome::Damaged),
            }
        }
        if keys.is_empty() {
            return;
        }
        let now_us = self.parts.clock.now_us();
        let present = self.parts.cache.present(&keys);
        for (wish, is_present) in wishes.into_iter().zip(present) {
            if is_present {
                self.answer(wish.asked, RestoreOutcome::Restored);
            } else if let Some(outcome) = self.queue(now_us, wish) {
                self.answer(wish.asked, outcome);
            }
        }
    }

    /// Queues a request. Returns its outcome where that is known already.
    fn queue(&mut self, now_us: u64, wish: Wish) -> Option<RestoreOutcome> {
        let RestoreRequest { key, wait_ms, recompute_ms, ahead } = wish.request;
        if let Some(reading) = self.by_key.get(&key).and_then(|at| self.reading.get_mut(at)) {
            reading.asked.push(wish.asked);
            return None;
        }
        let Some((folder, block)) = self.parts.store.block(&key) else {
            let is_scanned = self.parts.store.is_scanned();
            return Some(if is_scanned { RestoreOutcome::Unknown } else { RestoreOutcome::Busy });
        };
        if !self.stopped.1.lets(folder, block.tag) {
            return Some(RestoreOutcome::Unknown);
        }
        let queued = Queued {
            restore: wish,
            bytes: block.stored_bytes,
            deadline_us: now_us + u64::from(wait_ms) * 1000,
            recompute_us: recompute_ms.map(|ms| u64::from(ms) * 1000),
            ahead,
        };
        match self.queues.get_mut(folder)?.offer(now_us, queued) {
            Ok(()) => None,
            Err((_, NotQueued::TooLate { .. })) => Some(RestoreOutcome::TooLate),
            Err((_, NotQueued::Busy(_))) => Some(RestoreOutcome::Busy),
        }
    }

    /// Begins the reads that the devices have room for.
    fn begin(&mut self) -> Result<bool, DriveError> {
        let now_us = self.parts.clock.now_us();
        let mut starts: Vec<Start> = Vec::new();
        let mut is_busy = false;
        for folder in 0..self.queues.len() {
            while let Some(next) = self.queues[folder].next(now_us) {
                is_busy = true;
                match next {
                    Next::Begin(number, wish) => self.plan((folder, number), wish, &mut starts),
                    Next::Late(wish) => self.answer(wish.asked, RestoreOutcome::TooLate),
                }
            }
        }
        let mut starts = self.leave_cancelled(starts)?;
        while let Some(tag) = starts.first().map(|start| start.stored.tag) {
            let (same, others) = starts.into_iter().partition(|it| it.stored.tag == tag);
            starts = others;
            self.reserve(tag, same);
        }
        Ok(is_busy)
    }

    /// One block is read once (AGENT-R2).
    fn plan(&mut self, at: ReadId, wish: Wish, starts: &mut Vec<Start>) {
        let (asked, key) = (wish.asked, wish.request.key);
        let lets = |it: &(usize, StoredBlock)| self.stopped.1.lets(it.0, it.1.tag);
        if let Some(reading) = self.by_key.get(&key).and_then(|at| self.reading.get_mut(at)) {
            reading.asked.push(asked);
        } else if let Some(start) = starts.iter_mut().find(|it| it.stored.key == key) {
            start.asked.push(asked);
        } else if let Some((_, stored)) = self.parts.store.block(&key).filter(lets) {
            starts.push(Start { at, stored, asked: vec![asked] });
            return;
        } else {
            self.answer(asked, RestoreOutcome::Unknown);
        }
        self.ended(at, false);
    }

    /// Drops the reads that nobody wants any more.
    fn leave_cancelled(&mut self, starts: Vec<Start>) -> Result<Vec<Start>, DriveError> {
        if starts.is_empty() {
            return Ok(starts);
        }
        let asked: Vec<_> = starts.iter().flat_map(|it| it.asked.iter().copied()).collect();
        let mut cancelled = self.desk.cancelled(self.parts.cache, &asked)?.into_iter();
        let mut left = Vec::new();
        for mut start in starts {
            let (gone, wanting): (Vec<_>, Vec<_>) =
                start.asked.into_iter().partition(|_| cancelled.next().unwrap_or(false));
            self.answer_all(gone, RestoreOutcome::Cancelled);
            start.asked = wanting;
            if start.asked.is_empty() {
                self.ended(start.at, false);
            } else {
                left.push(start);
            }
        }
        Ok(left)
    }

    /// Reserves room for blocks of one namespace, and begins to read them (AGENT-R1).
    fn reserve(&mut self, tag: NamespaceTag, starts: Vec<Start>) {
        let spec = |start: &Start| {
            let StoredBlock { key, bytes, depth, .. } = start.stored;
            BlockSpec { key, bytes: bytes.into(), depth: depth.into() }
        };
        let specs: Vec<_> = starts.iter().map(spec).collect();
        let reserved =
            self.parts.cache.reserve_tagged(self.parts.clock, tag, &specs, CHUNK_TIMEOUT_MS);
        for (start, reservation) in starts.into_iter().zip(reserved) {
            let outcome = match reservation {
                Reservation::Writing(block) => {
                    self.read(start, block);
                    continue;
                }
                Reservation::AlreadyThere if self.is_present(start.stored.key) => {
                    RestoreOutcome::Restored
                }
                // Some process of this host is publishing it: it is there in a moment, or not at all.
                Reservation::AlreadyThere => RestoreOutcome::Busy,
                Reservation::Refused(refusal) => {
                    tracing::debug!(key = ?start.stored.key, "no room for a restore: {refusal}");
                    RestoreOutcome::NoRoom
                }
            };
            self.ended(start.at, false);
            self.answer_all(start.asked, outcome);
        }
    }

    fn is_present(&self, key: BlockKey) -> bool {
        self.parts.cache.present(&[key]) == [true]
    }

    fn ended(&mut self, (folder, number): ReadId, has_arrived: bool) {
        let now_us = self.parts.clock.now_us();
        if let Some(queue) = self.queues.get_mut(folder) {
            queue.ended(now_us, number, has_arrived);
        }
    }

    fn read(&mut self, start: Start, block: WritingBlock) {
        let Start { at, stored, asked } = start;
        let buffer = match self.buffer(stored.buffer_bytes()) {
            Ok(buffer) => buffer,
            Err(error) => {
                tracing::warn!("no memory for a restore: {error}");
                return self.failed(at, block, asked, RestoreOutcome::Busy);
            }
        };
        let tell = self.tell.clone();
        let wake = self.parker.unparker().clone();
        let done = Box::new(move |unverified| {
            drop(tell.send((at, unverified)));
            wake.unpark();
        });
        match self.parts.store.read(stored.key, buffer, done) {
            Ok(()) => {
                self.by_key.insert(stored.key, at);
                self.reading.insert(at, Reading { block, crc: stored.crc, tag: stored.tag, asked });
            }
            Err((buffer, miss)) => {
                self.spare.push(buffer);
                let outcome = self.outcome_of(stored.key, &miss);
                self.failed(at, block, asked, outcome);
            }
        }
    }

    fn buffer(&mut self, bytes: usize) -> std::io::Result<Buffer> {
        let fits = |buffer: &Buffer| buffer.capacity() >= bytes;
        match self.spare.iter().position(fits) {
            Some(at) => Ok(self.spare.swap_remove(at)),
            None => Buffer::zeroed(bytes),
        }
    }

    /// A block that was reserved and does not arrive.
    fn failed(
        &mut self,
        at: ReadId,
        block: WritingBlock,
        asked: Vec<AskedRestore>,
        outcome: RestoreOutcome,
    ) {
        self.parts.cache.abort(self.parts.clock, vec![block]);
        self.ended(at, false);
        self.answer_all(asked, outcome);
    }

    fn outcome_of(&self, key: BlockKey, miss: &ReadMiss) -> RestoreOutcome {
        match miss {
            ReadMiss::NotFound | ReadMiss::Removed => RestoreOutcome::Unknown,
            ReadMiss::Damaged => {
                tracing::warn!(?key, reason = "damaged", "a block on a drive is a miss: {miss}");
                // The thread that announces may have ended: then nothing is announced any more.
                let _ = self.parts.damaged.send(key);
                RestoreOutcome::Damaged
            }
            ReadMiss::UnknownEncoding(_) => {
                tracing::warn!(?key, reason = "encoding", "a block on a drive is a miss: {miss}");
                // No host is to ask for it again.
                let _ = self.parts.damaged.send(key);
                RestoreOutcome::Unknown
            }
            // Of thousands of blocks of a prompt, and the device was told of: counted as busy.
            ReadMiss::Marked | ReadMiss::QueueFull => {
                tracing::debug!(?key, "a block on a drive is a miss: {miss}");
                RestoreOutcome::Busy
            }
            _ => {
                tracing::warn!(?key, "a block on a drive is a miss: {miss}");
                RestoreOutcome::Busy
            }
        }
    }

    /// Publishes the blocks whose bytes have arrived.
    fn end(&mut self) -> bool {
        let mut arrived = Vec::new();
        let mut is_busy = false;
        while let Ok((at, unverified)) = self.told.try_recv() {
            is_busy = true;
            let key = unverified.key();
            let verified = unverified.verify();
            // Given up before: its slot is another block's by now.
            let Some(reading) = self.reading.remove(&at) else { continue };
            self.by_key.remove(&key);
            match verified {
                Ok((buffer, bytes)) => {
                    self.ended(at, true);
                    arrived.push(Arrived { reading, buffer, bytes: bytes as usize });
                }
                Err((buffer, miss)) => {
                    self.spare.push(buffer);
                    let outcome = self.outcome_of(key, &miss);
                    self.failed(at, reading.block, reading.asked, outcome);
                }
            }
        }
        if !arrived.is_empty() {
            self.publish(arrived);
        }
        self.spare.truncate(SPARE_MAX);
        is_busy
    }

    fn publish(&mut self, arrived: Vec<Arrived>) {
        let memory: Vec<[&[u8]; 1]> = arrived.iter().map(|it| [it.payload()]).collect();
        let mut jobs = Vec::with_capacity(arrived.len());
        for (it, parts) in arrived.iter().zip(&memory) {
            jobs.push(StoreJob { payload: it.reading.block.payload(), parts });
        }
        let stored = self.parts.dma.store(&jobs);
        let (mut complete, mut waiting, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for (Arrived { reading, buffer, bytes }, copied) in arrived.into_iter().zip(stored) {
            self.spare.push(buffer);
            match copied {
                Ok(Checksum(crc)) if crc == reading.crc => {
                    waiting.push((reading.asked, reading.block.key(), bytes));
                    complete.push((reading.block, crc));
                }
                Ok(_) | Err(_) => failed.push((reading.block, reading.asked)),
            }
        }
        let (restored_at, now_ms) = (self.parts.cache.own_position(), self.parts.clock.now_ms());
        let committed = self.parts.cache.commit_restored(self.parts.clock, complete);
        crash::reach(CrashPoint::RestorePublished);
        let mut used = Vec::new();
        for ((asked, key, bytes), committed) in waiting.into_iter().zip(committed) {
            let outcome = match committed {
                Ok(block) => {
                    used.push(key);
                    self.restored.restored(block.handle, restored_at, now_ms);
                    self.parts.figures.count(|figures| figures.restored(bytes as u64));
                    RestoreOutcome::Restored
                }
                Err(error) => {
                    tracing::warn!("a restored block is not published: {error}");
                    RestoreOutcome::Busy
                }
            };
            self.answer_all(asked, outcome);
        }
        self.parts.store.used(&used);
        for (block, asked) in failed {
            tracing::error!("a restored block was not copied into the pool");
            self.parts.cache.abort(self.parts.clock, vec![block]);
            self.answer_all(asked, RestoreOutcome::Busy);
        }
    }

    fn look_at_uses(&mut self) {
        let RestoreParts { cache, clock, figures, .. } = self.parts;
        let used = self.restored.look(clock.now_ms(), |handles| cache.own_uses(handles));
        if used > 0 {
            figures.count(|figures| figures.useful += used);
        }
    }

    /// The memory of such a read stays with the drive; the slot in the pool was not lent to it.
    fn give_up_on_silent_devices(&mut self) {
        let before_us = self.parts.clock.now_us().saturating_sub(READ_TIMEOUT_US);
        for folder in 0..self.queues.len() {
            for number in self.queues[folder].began_before(before_us) {
                let at = (folder, number);
                let Some(reading) = self.reading.remove(&at) else { continue };
                self.by_key.remove(&reading.block.key());
                tracing::error!(folder, "a drive does not answer: a restore is given up");
                self.parts.store.volume(folder).into_iter().for_each(|it| it.read_was_late());
                self.failed(at, reading.block, reading.asked, RestoreOutcome::TooLate);
            }
        }
    }
}
