//! Locks between hosts under load: workers on all hosts add one to a pair of counters in turn.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::FIRST_FREE_LOCK;
use cxl_shm::lifecycle::{Attachment, LocalMember};
use cxl_shm::lock::LockError;
use cxl_shm::units::{LineRange, LockId, WordOffset};
use cxl_shm_objects::ObjectChunks;

use crate::counter::{Counter, WORKERS_MAX};

/// Add to the counter under a lock between hosts, with several threads.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    region: PathBuf,

    #[arg(long)]
    node: u16,

    /// The chunk that `counter new` took.
    #[arg(long)]
    chunk: u32,

    #[arg(long, default_value_t = FIRST_FREE_LOCK)]
    lock: u32,

    /// Workers of this process, one thread each.
    #[arg(long, default_value_t = 1)]
    threads: u64,

    /// Number of the first of them: no two workers of the rack have the same.
    #[arg(long)]
    first_worker: u64,

    /// Workers of all processes and hosts: they start together.
    #[arg(long)]
    workers: u64,

    /// How often each worker adds.
    #[arg(long)]
    rounds: u64,

    /// Stop sooner, when there is a file of this name.
    #[arg(long, value_name = "PATH")]
    until: Option<PathBuf>,

    /// When there is a file of this name, stay long between the two stores of an addition, so that
    /// a host can be made to die in the middle of one.
    #[arg(long, value_name = "PATH")]
    linger_when: Option<PathBuf>,

    /// How long a worker waits for the lock.
    #[arg(long, default_value_t = 60_000)]
    timeout_ms: u64,

    /// A host may die between its two stores: complete what it began, and count it.
    #[arg(long)]
    may_repair: bool,
}

/// Far longer than it takes to see from outside that a worker lingers, and to end its host.
const LINGER_MS: u64 = 60_000;

fn is_there(path: &Option<PathBuf>) -> bool {
    path.as_ref().is_some_and(|path| path.exists())
}

/// What one worker did.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    rounds: u64,
    us: u64,
    wait_us_max: u64,
    repaired: u64,
}

pub(crate) fn run(options: &Options) -> Result<String> {
    let end = options.first_worker + options.threads;
    ensure!(end <= WORKERS_MAX && end <= options.workers, "more workers than there can be");
    ensure!(options.lock >= FIRST_FREE_LOCK, "lock {} is Rackline's own", options.lock);
    let attachment = Attachment::attach_with(&options.region, options.node, ObjectChunks)?;
    let mut threads = Vec::new();
    for worker in options.first_worker..end {
        let member = attachment.join_thread()?;
        let options = options.clone();
        threads.push(std::thread::spawn(move || {
            let outcome = Worker::new(&member, &options, worker).and_then(|worker| worker.work());
            (member, outcome)
        }));
    }
    let mut all = Done::default();
    let mut first_error = None;
    for thread in threads {
        let (member, outcome) = thread.join().map_err(|_| anyhow!("a worker panicked"))?;
        attachment.leave_thread(member);
        match outcome {
            Ok(done) => {
                all.rounds += done.rounds;
                all.us = all.us.max(done.us);
                all.wait_us_max = all.wait_us_max.max(done.wait_us_max);
                all.repaired += done.repaired;
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(error) => Err(error),
        None => Ok(format!(
            "workers={} rounds={} us={} wait_us_max={} repaired={}",
            options.threads, all.rounds, all.us, all.wait_us_max, all.repaired
        )),
    }
}

struct Worker<'a> {
    member: &'a LocalMember,
    options: &'a Options,
    worker: u64,
    counter: Counter,
    lock: LockId,
    clock: SystemClock,
}

impl<'a> Worker<'a> {
    fn new(member: &'a LocalMember, options: &'a Options, worker: u64) -> Result<Self> {
        let locks = member.layout().locks();
        ensure!(options.lock < locks, "lock {} of a region with {locks}", options.lock);
        let counter = Counter::in_chunk(member.layout(), options.chunk)?;
        let lock = LockId(options.lock);
        Ok(Self { member, options, worker, counter, lock, clock: SystemClock::start() })
    }

    fn work(&self) -> Result<Done> {
        self.start_together()?;
        let fabric = self.member.fabric();
        let mut done = Done::default();
        let start_us = self.clock.now_us();
        for round in 1..=self.options.rounds {
            if is_there(&self.options.until) {
                break;
            }
            let asked_us = self.clock.now_us();
            let guard = self.take_lock()?;
            done.wait_us_max = done.wait_us_max.max(self.clock.now_us() - asked_us);
            done.repaired += self.add(round)?;
            drop(guard);
            // The worker's own line: a reader learns what was finished before a death.
            self.publish(self.counter.acknowledged(self.worker), round);
            done.rounds = round;
        }
        done.us = self.clock.now_us() - start_us;
        ensure!(
            fabric.load(self.counter.acknowledged(self.worker)) == done.rounds,
            "our own line lost a store"
        );
        Ok(done)
    }

    /// Takes the lock. A lock manager that stands still is waited for like another holder: on a
    /// busy machine an emulated host may get no time for seconds.
    fn take_lock(&self) -> Result<impl Drop> {
        let timeout_ms = self.options.timeout_ms;
        let deadline_ms = self.clock.now_ms() + timeout_ms;
        loop {
            match self.member.lock_shared(self.lock, &self.clock, timeout_ms) {
                Err(LockError::ManagerSilent { .. }) if self.clock.now_ms() < deadline_ms => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    /// One addition, under the lock. Returns how many updates of a dead host were completed.
    fn add(&self, round: u64) -> Result<u64> {
        let (fabric, counter) = (self.member.fabric(), self.counter);
        counter.refresh(fabric);
        let (first, second) = (fabric.load(counter.first()), fabric.load(counter.second()));
        let repaired = u64::from(self.options.may_repair && first == second + 1);
        if first != second + repaired {
            bail!("round {round}: the counters are {first} and {second}: seen half done");
        }
        self.publish(counter.first(), first + 1);
        if is_there(&self.options.linger_when) {
            self.clock.sleep_ms(LINGER_MS);
        }
        self.publish(counter.second(), first + 1);
        let me = u64::from(self.member.node().0) + 1;
        let last = fabric.load(counter.holder());
        if last != 0 && last != me {
            fabric.store(counter.handed_over(), fabric.load(counter.handed_over()) + 1);
        }
        self.publish(counter.holder(), me);
        Ok(repaired)
    }

    /// Waits until all workers of all hosts are there.
    fn start_together(&self) -> Result<()> {
        let (fabric, arrived) = (self.member.fabric(), self.counter.arrived());
        let guard = self.take_lock()?;
        self.counter.refresh(fabric);
        self.publish(arrived, fabric.load(arrived) + 1);
        drop(guard);
        let deadline_ms = self.clock.now_ms() + self.options.timeout_ms;
        let mut tries = 0;
        loop {
            fabric.refresh(LineRange::one(arrived.line()));
            let there = fabric.load(arrived);
            if there == self.options.workers {
                return Ok(());
            }
            if self.clock.now_ms() > deadline_ms {
                bail!("only {there} of {} workers arrived", self.options.workers);
            }
            self.clock.pause(tries);
            tries += 1;
        }
    }

    fn publish(&self, at: WordOffset, value: u64) {
        self.member.fabric().store(at, value);
        self.member.fabric().publish(LineRange::one(at.line()));
    }
}
