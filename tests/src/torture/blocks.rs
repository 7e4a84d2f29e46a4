//! What a worker does with blocks.

use std::collections::BTreeSet;

use anyhow::Result;
use cxl_shm::chunk::AllocateError;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::LineRange;
use kv_cache::{BlockSpec, Cache, HeldBlock, Miss, Refusal, Reservation, Wanted};

use rackline::dma::Checksum;

use super::child::ChildOptions;
use super::event::{Event, tell};
use super::ground::{
    block_bytes, bytes_of, content, is_scarce, key, last_published, load, next_large, store,
};

/// The cache of a child.
/// Most blocks of a worker in the pool.
const WINDOW: usize = 24;
/// Longer than any run waits: a hold ends by its release, or with its process.
const HOLD_MS: u64 = 120_000;
/// Most blocks that a worker holds at a time.
const KEPT_MAX: usize = 6;
/// More blocks than a chunk has room for.
const TOO_MANY: u64 = 12;
/// How long a publish waits for a chunk.
const CHUNK_TIMEOUT_MS: u64 = 1000;

/// The blocks of one worker.
pub(super) struct Blocks<'m, B: Backend> {
    cache: Cache<'m, B>,
    clock: SystemClock,
    worker: u32,
    next: u64,
    /// Published, not removed.
    there: BTreeSet<u64>,
    /// What it holds for some time.
    kept: Vec<Kept>,
}

/// A block that a worker holds for some time: its own, or another's.
struct Kept {
    held: HeldBlock,
    worker: u32,
    number: u64,
}

/// What came of a fetch.
pub(super) enum Fetched {
    /// Whole and right.
    Right,
    /// Not there, or gone meanwhile.
    Missed(Option<Miss>),
    /// What must never be.
    Wrong(String),
}

impl<'m, B: Backend> Blocks<'m, B> {
    /// The blocks of this worker, all looked at: those of its earlier lives that were acknowledged
    /// are there, the others are whole or not there.
    pub(super) fn take_over(options: &ChildOptions, member: &'m Member<B>) -> Result<Self> {
        let clock = SystemClock::start();
        let cache = Cache::attach(member, &clock)?;
        let there = options.blocks.iter().copied().collect();
        let mut blocks = Self {
            cache,
            clock,
            worker: options.index,
            next: options.next_block,
            there,
            kept: vec![],
        };
        for number in blocks.there.clone() {
            blocks.check_own(number)?;
        }
        for number in &options.doubtful_blocks {
            match fetch(&blocks.cache, blocks.worker, *number) {
                // Others may hold it: it is as good as any.
                Fetched::Right => {
                    blocks.there.insert(*number);
                    tell(&Event::Adopted(*number))?;
                }
                Fetched::Missed(_) => {}
                Fetched::Wrong(what) => tell(&Event::Fault(what))?,
            }
        }
        Ok(blocks)
    }

    /// Publishes up to `count` blocks.
    pub(super) fn publish(&mut self, count: u64) -> Result<()> {
        let first = self.next;
        self.next += count;
        tell(&Event::Publishing(first, count))?;
        let spec = |number| BlockSpec {
            key: key(self.worker, number),
            bytes: block_bytes(number),
            depth: 0,
        };
        let specs: Vec<_> = (first..self.next).map(spec).collect();
        let evicted = || self.cache.process_state().metrics().evicted_blocks;
        let evicted_before = evicted();
        let reserved = self.cache.reserve(&self.clock, &specs, CHUNK_TIMEOUT_MS);
        // Where a chunk is not available, room is made for them.
        tell(&Event::Evicted(evicted() - evicted_before))?;
        let (mut writing, mut numbers) = (Vec::new(), Vec::new());
        for (number, outcome) in (first..).zip(reserved) {
            match outcome {
                Reservation::Writing(block) => {
                    let words = content(self.worker, number);
                    store(self.cache.member().fabric(), block.payload(), &words)?;
                    let Checksum(crc) = Checksum::of(&[&bytes_of(&words)]);
                    writing.push((block, crc));
                    numbers.push(number);
                }
                Reservation::Refused(Refusal::NoChunk(AllocateError::Lock(_)))
                | Reservation::Refused(Refusal::Outrun) => tell(&Event::Busy)?,
                Reservation::Refused(Refusal::NoChunk(AllocateError::Exhausted { .. }))
                    if is_scarce(self.cache.member().layout()) =>
                {
                    tell(&Event::Busy)?;
                }
                // Since the turn began, for instance because its host stood still.
                Reservation::Refused(Refusal::MembershipLost(dead)) => return Err(dead.into()),
                Reservation::Refused(why) => {
                    tell(&Event::Fault(format!("block {number} was refused: {why}")))?;
                }
                Reservation::AlreadyThere => {
                    let text = format!("block {number} is there before it was published");
                    tell(&Event::Fault(text))?;
                }
            }
        }
        let mut published = Vec::new();
        for (number, outcome) in numbers.into_iter().zip(self.cache.commit(&self.clock, writing)) {
            match outcome {
                Ok(_) => published.push(number),
                Err(error) => tell(&Event::Fault(format!("block {number}: {error}")))?,
            }
        }
        self.there.extend(&published);
        if let Some(last) = published.last() {
            let member = self.cache.member();
            let at = last_published(member.layout(), self.worker);
            member.fabric().store(at, *last);
            member.fabric().publish(LineRange::one(at.line()));
        }
        tell(&Event::Published(published))
    }

    /// Publishes more than there is room for, where chunks have run out: some make room for others.
    pub(super) fn publish_too_many(&mut self) -> Result<()> {
        self.publish(TOO_MANY)
    }

    /// Publishes a block of a size of which there may be none, where chunks have run out: those of
    /// a whole chunk make room for it.
    pub(super) fn publish_large(&mut self) -> Result<()> {
        self.next = next_large(self.next);
        self.publish(1)
    }

    /// Removes the oldest block when there are more than there should be; whether there were.
    pub(super) fn retire_one(&mut self, keep: usize) -> Result<bool> {
        if self.there.len() <= keep.min(WINDOW) {
            return Ok(false);
        }
        let Some(number) = self.there.pop_first() else {
            return Ok(false);
        };
        tell(&Event::Retiring(number))?;
        if self.remove(number) == 0 {
            tell(&Event::Missing(number))?;
        }
        tell(&Event::Retired(number))?;
        Ok(true)
    }

    /// One of its own blocks, drawn by `draw`, is there.
    pub(super) fn check_any(&mut self, draw: impl FnOnce(usize) -> Option<usize>) -> Result<()> {
        match draw(self.there.len()).and_then(|index| self.there.iter().nth(index)) {
            Some(number) => self.check_own(*number),
            None => Ok(()),
        }
    }

    /// Holds one of its own blocks, drawn by `draw`: as long as it does, the block stays.
    pub(super) fn hold_any(&mut self, draw: impl FnOnce(usize) -> Option<usize>) -> Result<()> {
        let drawn = draw(self.there.len()).and_then(|index| self.there.iter().nth(index).copied());
        let Some(number) = drawn else { return Ok(()) };
        self.keep(self.worker, number)?;
        self.let_go(KEPT_MAX)
    }

    /// Holds a block of `worker` from now on, if it is there.
    fn keep(&mut self, worker: u32, number: u64) -> Result<()> {
        let key = key(worker, number);
        let found = self.cache.lookup(&[key]);
        let Some(block) = found.blocks().first() else {
            return if worker == self.worker { self.check_own(number) } else { Ok(()) };
        };
        let bytes = block_bytes(number);
        let wanted = Wanted { handle: block.handle, key, bytes };
        match self.cache.hold(&self.clock, &[wanted], HOLD_MS).pop() {
            Some(Ok(held)) => self.kept.push(Kept { held, worker, number }),
            // Evicted since it was found, or as many are held as can be.
            _ => return tell(&Event::Busy),
        }
        tell(&Event::Held)?;
        self.check_kept()
    }

    /// Holds one more block for some time: one of its own, drawn by `draw`, or, of `other` if there
    /// is one, the one `age` before its last.
    pub(super) fn keep_one(
        &mut self,
        other: Option<(u32, u64)>,
        draw: impl FnOnce(usize) -> Option<usize>,
    ) -> Result<()> {
        if self.kept.len() >= KEPT_MAX {
            return self.let_go(1);
        }
        if let Some((other, age)) = other {
            return match self.last_of(other).checked_sub(age) {
                Some(number) => self.keep(other, number),
                None => Ok(()),
            };
        }
        let drawn = draw(self.there.len()).and_then(|index| self.there.iter().nth(index).copied());
        drawn.map_or(Ok(()), |number| self.keep(self.worker, number))
    }

    /// What it holds is there, and is what it was: nobody removes blocks that may be held.
    pub(super) fn check_kept(&self) -> Result<()> {
        for Kept { worker, number, .. } in &self.kept {
            match fetch(&self.cache, *worker, *number) {
                Fetched::Right => tell(&Event::Verified)?,
                // Of a host that was declared dead nobody regards the holds.
                Fetched::Missed(_) if self.cache.member().check_member().is_err() => {}
                Fetched::Missed(why) => {
                    let text = format!("block {number} of worker {worker} was held: {why:?}");
                    tell(&Event::Fault(text))?;
                }
                Fetched::Wrong(what) => tell(&Event::Fault(what))?,
            }
        }
        Ok(())
    }

    /// Lets the oldest `count` of what it holds go, which are there until then.
    pub(super) fn let_go(&mut self, count: usize) -> Result<()> {
        self.check_kept()?;
        let released = self.kept.drain(..count.min(self.kept.len())).map(|kept| kept.held);
        self.cache.release(&self.clock, released.collect());
        Ok(())
    }

    /// Lets everything go.
    pub(super) fn let_all_go(&mut self) -> Result<()> {
        self.let_go(usize::MAX)
    }

    /// Looks for every block of its own.
    pub(super) fn check_all(&mut self) -> Result<()> {
        self.there.clone().into_iter().try_for_each(|number| self.check_own(number))
    }

    /// Looks for the oldest of its own blocks, which is the next to be evicted.
    pub(super) fn check_oldest(&mut self) -> Result<()> {
        self.there.first().copied().map_or(Ok(()), |number| self.check_own(number))
    }

    /// The number of the block that `other` published last.
    fn last_of(&self, other: u32) -> u64 {
        let member = self.cache.member();
        let at = last_published(member.layout(), other);
        member.fabric().refresh(LineRange::one(at.line()));
        member.fabric().load(at)
    }

    /// Reads a block of another worker, `age` before its last, which may be gone.
    pub(super) fn check_other(&self, other: u32, age: u64) -> Result<()> {
        let Some(number) = self.last_of(other).checked_sub(age) else {
            return Ok(());
        };
        match fetch(&self.cache, other, number) {
            Fetched::Right => tell(&Event::Verified),
            Fetched::Missed(_) => Ok(()),
            Fetched::Wrong(what) => tell(&Event::Fault(what)),
        }
    }

    /// A block of its own that nobody removes is whole. Its parent counts those that are missing:
    /// there are as many as were evicted.
    fn check_own(&mut self, number: u64) -> Result<()> {
        match fetch(&self.cache, self.worker, number) {
            Fetched::Right => tell(&Event::Verified),
            Fetched::Missed(_) => {
                self.there.remove(&number);
                tell(&Event::Missing(number))
            }
            Fetched::Wrong(what) => tell(&Event::Fault(what)),
        }
    }

    fn remove(&self, number: u64) -> u64 {
        let found = self.cache.lookup(&[key(self.worker, number)]);
        let handles: Vec<_> = found.blocks().iter().map(|block| block.handle).collect();
        self.cache.retire(&self.clock, &handles)
    }
}

/// Looks a block up and reads it.
pub(super) fn fetch<B: Backend>(cache: &Cache<'_, B>, worker: u32, number: u64) -> Fetched {
    let key = key(worker, number);
    let found = cache.lookup(&[key]);
    let Some(block) = found.blocks().first() else {
        return Fetched::Missed(None);
    };
    let bytes = block_bytes(number);
    let wanted = Wanted { handle: block.handle, key, bytes };
    let ticket = match cache.open(&[wanted]).remove(0) {
        Ok(ticket) => ticket,
        Err(miss) => return Fetched::Missed(Some(miss)),
    };
    let words = load(cache.member().fabric(), ticket.payload());
    let Checksum(crc) = Checksum::of(&[&bytes_of(&words)]);
    match cache.close(&[(ticket, Some(crc))]).remove(0) {
        Ok(()) if words == content(worker, number) => Fetched::Right,
        Ok(()) => Fetched::Wrong(format!("block {number} of worker {worker} has other bytes")),
        // The second look found the same descriptor: these were the bytes that it promised.
        Err(Miss::Checksum) => {
            Fetched::Wrong(format!("block {number} of worker {worker} was accepted damaged"))
        }
        Err(miss) => Fetched::Missed(Some(miss)),
    }
}
