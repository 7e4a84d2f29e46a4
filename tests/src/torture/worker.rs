//! A worker: counts under locks, takes chunks and gives them back, publishes blocks, removes them
//! and reads those of others, names objects and frees them.

use anyhow::{Result, bail};
use cxl_shm::chunk::{AllocateError, ChunkError};
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::read_superblock;
use cxl_shm::lock::LockError;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{ChunkId, LineRange, WordOffset};
use cxl_shm::verify::simulated::Random;
use cxl_shm::verify::{Mutant, is_mutant};
use kv_cache::reclaim_dead_processes;
use rackline_qualify::{StoreError, store_profile};

use super::blocks::Blocks;
use super::broken::needs_take_overs;
use super::child::{ChildOptions, Order, Orders};
use super::event::{Event, tell};
use super::ground::{COUNTERS, Pair, is_scarce, lock, profile, purpose};
use super::objects::Objects;

pub(super) const LOCK_TIMEOUT_MS: u64 = 1000;
/// How long a worker asks others for a chunk where there are none.
const ASK_MS: u64 = 3;
/// Most chunks that a worker has for itself.
const CHUNKS_MAX: usize = 3;
/// Blocks before the last one of another worker that are looked for.
const AGE_MAX: u64 = 12;
/// One count in this many stays half done for a moment, and one for longer than a host takes to
/// follow a new lock manager.
const LINGER_ONE_IN: u32 = 32;
const LINGER_MS: u64 = 2;
const LINGER_LONG_ONE_IN: u32 = 100;
const LINGER_LONG_MS: u64 = 30;
/// Where take-overs are what matters, one count in this many lasts longer than one takes.
const LINGER_THROUGH_ONE_IN: u32 = 16;
const LINGER_THROUGH_MS: u64 = 2500;
/// Turns between two looks for dead processes of the host.
const RECLAIM_TURNS: u64 = 40;
/// Times that a worker which ends tries to give a chunk back.
const GIVE_BACK_TRIES: u32 = 60;

struct Worker<'m, B: Backend> {
    member: &'m Member<B>,
    clock: SystemClock,
    random: Random,
    index: u32,
    workers: u32,
    blocks: Blocks<'m, B>,
    objects: Objects<'m, B>,
    chunks: Vec<ChunkId>,
    values: u64,
}

pub(super) fn run<B: Backend>(
    options: &ChildOptions,
    member: &Member<B>,
    orders: &Orders,
) -> Result<()> {
    let clock = SystemClock::start();
    // Our former life among them: what it left half done is ended before we look.
    look_after_the_dead(member, &clock);
    let mut worker = Worker {
        member,
        clock,
        random: Random::new(options.seed ^ options.life),
        index: options.index,
        workers: options.workers,
        blocks: Blocks::take_over(options, member)?,
        objects: Objects::take_over(options, member)?,
        chunks: Vec::new(),
        // Of this life: no value of an earlier one looks the same.
        values: options.life << 32,
    };
    worker.take_over_chunks()?;
    tell(&Event::Up)?;
    match options.rounds {
        Some(rounds) => (0..rounds).try_for_each(|round| worker.round(round))?,
        None => {
            let mut turn = 0;
            let is_scarce = is_scarce(member.layout());
            while !orders.stops() {
                if orders.last() != Order::Work {
                    worker.rest(orders)?;
                } else if is_scarce && turn % 4 != 0 {
                    worker.press()?;
                } else {
                    worker.turn(turn)?;
                }
                turn += 1;
            }
        }
    }
    worker.end()
}

impl<B: Backend> Worker<'_, B> {
    /// Everything, in order.
    fn round(&mut self, round: u32) -> Result<()> {
        while !self.count(round % COUNTERS)? {}
        self.give_up(round % COUNTERS, u64::from(round % 2))?;
        self.take_chunk()?;
        self.blocks.publish(2)?;
        self.blocks.check_any(|count| count.checked_sub(1))?;
        self.blocks.hold_any(|count| count.checked_sub(1))?;
        self.blocks.check_other((self.index + 1) % self.workers, 0)?;
        // Where chunks are scarce others may hold them.
        if !is_scarce(self.member.layout()) {
            self.blocks.retire_one(1)?;
        }
        self.check_chunk()?;
        self.give_chunk()?;
        self.objects.round()?;
        self.store_profile(u64::from(round))?;
        if is_scarce(self.member.layout()) { self.run_dry() } else { Ok(()) }
    }

    /// Anything.
    fn turn(&mut self, turn: u64) -> Result<()> {
        self.member.check_member()?;
        if turn % RECLAIM_TURNS == RECLAIM_TURNS - 1 {
            reclaim_dead_processes(self.member, &self.clock);
        }
        let counter = u32::try_from(self.random.below(u64::from(COUNTERS))).unwrap_or(0);
        match self.random.below(24) {
            0..5 => self.count(counter).map(drop),
            5 => {
                let timeout_ms = self.random.below(2);
                self.give_up(counter, timeout_ms)
            }
            6 | 7 if self.chunks.len() < CHUNKS_MAX => self.take_chunk(),
            6..9 => self.give_chunk(),
            9 => self.check_chunk(),
            10 | 11 => {
                let count = 1 + self.random.below(3);
                self.blocks.publish(count)
            }
            12 => {
                let random = &mut self.random;
                if random.one_in(4) {
                    self.blocks.hold_any(|count| random.index(count))
                } else {
                    self.blocks.check_any(|count| random.index(count))
                }
            }
            13 => {
                let other = u32::try_from(self.random.below(u64::from(self.workers)));
                let age = self.random.below(AGE_MAX);
                self.blocks.check_other(other.unwrap_or(0), age)
            }
            14..22 => self.objects.turn(&mut self.random),
            22 if self.random.one_in(8) => self.store_profile(turn),
            _ if is_scarce(self.member.layout()) => Ok(()),
            _ => {
                // Twice in a row after a large batch; seldom all of them.
                let keep = if self.random.one_in(50) { 0 } else { usize::MAX };
                while self.blocks.retire_one(keep)? {}
                Ok(())
            }
        }
    }

    /// Publishes more than there is room for, and holds some of it.
    fn press(&mut self) -> Result<()> {
        self.member.check_member()?;
        self.blocks.check_oldest()?;
        let random = &mut self.random;
        match random.below(12) {
            0..6 => self.blocks.publish(1 + random.below(3)),
            6 if random.one_in(4) => self.blocks.publish_large(),
            6..10 => {
                let other = u32::try_from(random.below(u64::from(self.workers))).unwrap_or(0);
                let is_other = other != self.index && random.one_in(2);
                let other = is_other.then(|| (other, random.below(AGE_MAX)));
                self.blocks.keep_one(other, |count| random.index(count))
            }
            10 => self.blocks.let_go(1),
            _ => self.blocks.check_kept(),
        }
    }

    /// Holds nothing, looks for its blocks once everybody rests, and does nothing else.
    fn rest(&mut self, orders: &Orders) -> Result<()> {
        let (_, number) = orders.last_and_rests();
        self.blocks.let_all_go()?;
        look_after_the_dead(self.member, &self.clock);
        tell(&Event::Rests)?;
        let mut has_looked = false;
        while let (order @ (Order::Rest | Order::Census), rests) = orders.last_and_rests()
            && rests == number
        {
            self.member.check_member()?;
            if order == Order::Census && !has_looked {
                self.blocks.check_all()?;
                tell(&Event::Looked)?;
                has_looked = true;
            }
            self.clock.sleep_ms(1);
        }
        Ok(())
    }

    /// Leaves nothing of its own but its blocks, and no count half done.
    fn end(mut self) -> Result<()> {
        self.blocks.let_all_go()?;
        self.objects.end()?;
        for counter in 0..COUNTERS {
            let mut tries = 0;
            while !self.count(counter)? {
                self.member.check_member()?;
                tries += 1;
                if tries == GIVE_BACK_TRIES {
                    bail!("worker {} cannot have lock {counter} any more", self.index);
                }
            }
        }
        for _ in 0..GIVE_BACK_TRIES {
            if self.chunks.is_empty() {
                return Ok(());
            }
            self.member.check_member()?;
            self.give_chunk()?;
        }
        bail!("worker {} cannot give its chunks back: {:?}", self.index, self.chunks)
    }

    /// Counts; whether it had the lock.
    fn count(&mut self, counter: u32) -> Result<bool> {
        let (member, fabric) = (self.member, self.member.fabric());
        let guard = match member.lock_shared(lock(counter), &self.clock, LOCK_TIMEOUT_MS) {
            Ok(guard) => guard,
            Err(error) => return busy(error).map(|()| false),
        };
        tell(&Event::Counting(counter))?;
        let pair = Pair::new(member.layout(), counter);
        let value = match pair.read(fabric) {
            [first, second] if first == second => first,
            [first, second] if first == second + 1 => {
                pair.write(fabric, 1, first);
                tell(&Event::Repaired(counter, first))?;
                first
            }
            [first, second] => {
                let text = format!("counter {counter} says {first} and {second}");
                return tell(&Event::Fault(text)).map(|()| true);
            }
        };
        if is_mutant(Mutant::PublishesAfterRelease) {
            drop(guard);
            // Late enough for somebody else to have it.
            self.clock.sleep_ms(LINGER_MS);
            pair.write(fabric, 0, value + 1);
            pair.write(fabric, 1, value + 1);
            return tell(&Event::Counted(counter, value + 1)).map(|()| true);
        }
        pair.write(fabric, 0, value + 1);
        if takes_over() && self.random.one_in(LINGER_THROUGH_ONE_IN) {
            self.clock.sleep_ms(LINGER_THROUGH_MS);
        } else if self.random.one_in(LINGER_ONE_IN) {
            // Kills come seldom, and half-done counts should be among what they leave.
            self.clock.sleep_ms(LINGER_MS);
        } else if self.random.one_in(LINGER_LONG_ONE_IN) {
            self.clock.sleep_ms(LINGER_LONG_MS);
        }
        match pair.read(fabric) {
            found if found == [value + 1, value] => {}
            // A host that was declared dead holds nothing, as soon as it is fenced.
            _ if member.check_member().is_err() => {}
            [first, second] => {
                let text = format!(
                    "counter {counter} was made {} and {value}, and says {first} and {second} \
                     while its lock is held",
                    value + 1
                );
                return tell(&Event::Fault(text)).map(|()| true);
            }
        }
        pair.write(fabric, 1, value + 1);
        drop(guard);
        tell(&Event::Counted(counter, value + 1))?;
        Ok(true)
    }

    /// Waits for a lock so shortly that it is often withdrawn.
    fn give_up(&mut self, counter: u32, timeout_ms: u64) -> Result<()> {
        match self.member.lock_shared(lock(counter), &self.clock, timeout_ms) {
            Ok(guard) => drop(guard),
            Err(LockError::TimedOut { .. }) => {}
            Err(error) => return busy(error),
        }
        tell(&Event::Locked)
    }

    fn take_chunk(&mut self) -> Result<()> {
        tell(&Event::Taking)?;
        let purpose = purpose(self.index);
        let taken = self.member.allocate_chunk(&self.clock, LOCK_TIMEOUT_MS, purpose);
        self.took(taken).map(drop)
    }

    /// Whether a chunk was taken; not when there is none where chunks are scarce.
    fn took(&mut self, taken: Result<ChunkId, AllocateError>) -> Result<bool> {
        match taken {
            Ok(chunk) => {
                self.mark(chunk);
                self.chunks.push(chunk);
                tell(&Event::Took(chunk.0))?;
                return Ok(true);
            }
            Err(AllocateError::Lock(error)) => busy(error)?,
            Err(AllocateError::Exhausted { .. }) if is_scarce(self.member.layout()) => {
                tell(&Event::Busy)?;
            }
            Err(error) => tell(&Event::Fault(format!("do chunks leak? {error}")))?,
        }
        Ok(false)
    }

    /// Takes what chunks there are, and asks the other hosts for more.
    fn run_dry(&mut self) -> Result<()> {
        let purpose = purpose(self.index);
        let mut more = true;
        while more {
            tell(&Event::Taking)?;
            let taken = self.member.request_chunk(&self.clock, ASK_MS, purpose);
            more = self.took(taken)?;
        }
        self.blocks.publish_too_many()?;
        self.blocks.publish_large()?;
        for _ in 0..GIVE_BACK_TRIES * u32::try_from(self.chunks.len()).unwrap_or(1) {
            self.give_chunk()?;
        }
        Ok(())
    }

    /// Does to the superblock what `rackline qualify` does: stores a profile, or takes it away.
    fn store_profile(&self, number: u64) -> Result<()> {
        let (fabric, profile) = (self.member.fabric(), profile(number));
        match store_profile(self.member, profile, &self.clock, LOCK_TIMEOUT_MS) {
            Ok(stored) if stored.profile == profile => {}
            Ok(stored) => tell(&Event::Fault(format!("{profile:?} is stored as {stored:?}")))?,
            Err(StoreError::Lock(error)) => return busy(error),
            Err(error) => tell(&Event::Fault(error.to_string()))?,
        }
        // Another may have stored one since.
        match read_superblock(fabric) {
            Ok(_) => tell(&Event::Tended),
            Err(error) => tell(&Event::Fault(error.to_string())),
        }
    }

    fn give_chunk(&mut self) -> Result<()> {
        let Some(index) = self.random.index(self.chunks.len()) else {
            return Ok(());
        };
        self.check(self.chunks[index])?;
        let chunk = self.chunks.swap_remove(index);
        tell(&Event::Giving(chunk.0))?;
        match self.member.free_chunk(&self.clock, LOCK_TIMEOUT_MS, chunk) {
            Ok(()) => tell(&Event::Gave(chunk.0)),
            Err(ChunkError::Lock(_)) => {
                self.chunks.push(chunk);
                tell(&Event::Kept(chunk.0))
            }
            Err(error) => tell(&Event::Fault(error.to_string())),
        }
    }

    fn check_chunk(&mut self) -> Result<()> {
        match self.random.index(self.chunks.len()) {
            Some(index) => self.check(self.chunks[index]),
            None => Ok(()),
        }
    }

    /// Chunks that its earlier lives had.
    fn take_over_chunks(&mut self) -> Result<()> {
        let ours = purpose(self.index);
        for (chunk, purpose) in self.member.owned_chunks() {
            if purpose == ours {
                self.mark(chunk);
                self.chunks.push(chunk);
                tell(&Event::Found(chunk.0))?;
            }
        }
        Ok(())
    }

    /// Writes into a chunk whose it is.
    fn mark(&mut self, chunk: ChunkId) {
        self.values += 1;
        let (fabric, at) = (self.member.fabric(), self.mark_at(chunk));
        fabric.store(at, u64::from(self.index) << 56 | self.values);
        fabric.publish(LineRange::one(at.line()));
    }

    /// Nobody else has written into a chunk of ours.
    fn check(&self, chunk: ChunkId) -> Result<()> {
        let (fabric, at) = (self.member.fabric(), self.mark_at(chunk));
        fabric.refresh(LineRange::one(at.line()));
        let owner = fabric.load(at) >> 56;
        if owner == u64::from(self.index) {
            return tell(&Event::Verified);
        }
        let text = format!("chunk {chunk} of worker {} is worker {owner}'s too", self.index);
        tell(&Event::Fault(text))
    }

    fn mark_at(&self, chunk: ChunkId) -> WordOffset {
        let start = self.member.layout().chunk(chunk).offset();
        WordOffset::new(start).expect("chunks start on a line")
    }
}

/// Returns once nothing is left of processes of this host that died.
fn look_after_the_dead<B: Backend>(member: &Member<B>, clock: &SystemClock) {
    let mut tries = 0;
    while !member.gone_processes().is_empty() {
        reclaim_dead_processes(member, clock);
        clock.pause(tries);
        tries += 1;
    }
}

/// Whether this program breaks a rule that matters where lock managers follow one another.
fn takes_over() -> bool {
    Mutant::ALL.into_iter().any(|mutant| needs_take_overs(mutant) && is_mutant(mutant))
}

/// A lock that was not acquired: others are dead, or slow, which is what this is about.
pub(super) fn busy(error: LockError) -> Result<()> {
    match error {
        LockError::MembershipLost(error) => Err(error.into()),
        LockError::TimedOut { .. } | LockError::NoManager | LockError::ManagerSilent { .. } => {
            tell(&Event::Busy)
        }
        _ => tell(&Event::Fault(error.to_string())),
    }
}
