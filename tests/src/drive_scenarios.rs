//! Blocks that leave a too small pool for drives and come back, on simulated racks: the agent of each
//! host backs up, announces, withdraws and restores, beside eviction, publishes of the same blocks,
//! and hosts and processes that die.
//!
//! A drive is a list in memory that survives everything. What a crash does to a real one is the
//! business of `kv_drive`, and what the agent does around both that of `rackline-agent`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cxl_shm::verify::SimulatedBackend;
use cxl_shm::verify::simulated::{Faults, Schedule, SimulatedClock};
use kv_cache::tier::{Announced, DriveAnnouncer, DriveError, DriveReplica, RestoreDesk};
use kv_cache::{
    BlockKey, BlockSpec, Cache, Descriptor, DriveGeometry, HOLD_MS_MAX, NamespaceTag, OwnFeed,
    Reservation, RestoreOutcome, RestoreRequest, SlotContent, Wanted,
};
use rackline::dma::{Checksum, DmaEngine, LoadJob, SimulatedDma, StoreJob};
use rackline::session::{RestoreStop, SessionCore};
use rackline::{Prefetch, RestoreOptions};

use crate::cache_scenarios::{
    BLOCK_BYTES, RackSession, dma_cache, options, payload, prompt, publish_behind,
};
use crate::failing_lines::{LIVES, with_failing_lines};
use crate::pressure_scenarios::{audit, cluster, schedule};
use crate::rack::{Cluster, Mutant, Processes, end_if_cut_off, failed, run, wait_ms};

/// Prompts of five blocks, which share their first two: twice as many as the pool of two hosts takes.
const PROMPTS: u32 = 16;
/// Fewer than the blocks that a host publishes: a drive removes blocks, too.
const DRIVE_BLOCKS: usize = 16;
/// Blocks that an agent backs up or restores in one turn.
const TURN_BLOCKS: usize = 3;
const TURN_MS: u64 = 1;
const CHUNK_TIMEOUT_MS: u64 = 50;
/// Requests of one host to another that are open at once.
const RING: u32 = 8;
/// How long a lookup waits for drives.
const WAIT_MS: u64 = 2000;
/// How often the last reader of all looks again for blocks that a drive has.
const TRIES_MAX: u32 = 40;

type RackCache<'m> = Cache<'m, SimulatedBackend<Processes>>;

/// A block on a drive.
#[derive(Clone, Debug)]
struct Stored {
    key: BlockKey,
    bytes: Vec<u8>,
    crc: u32,
    depth: u16,
    namespace: NamespaceTag,
}

/// The drives of all hosts, oldest block first.
#[derive(Clone, Debug)]
struct Drives(Arc<Mutex<Vec<Vec<Stored>>>>);

impl Drives {
    fn new(hosts: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![Vec::new(); hosts])))
    }

    fn with<T>(&self, host: usize, f: impl FnOnce(&mut Vec<Stored>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)[host])
    }

    fn find(&self, host: usize, key: BlockKey) -> Option<Stored> {
        self.with(host, |drive| drive.iter().find(|block| block.key == key).cloned())
    }

    /// Whether a drive has a block with these bytes. Their first bytes are those of a hash.
    fn have(&self, bytes: &[u8]) -> bool {
        let drives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drives.iter().flatten().any(|block| block.bytes == bytes)
    }

    fn any_key(&self) -> Option<BlockKey> {
        let drives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drives.iter().flatten().next().map(|block| block.key)
    }
}

/// The agent of a host.
struct Agent<'a, 'm> {
    cache: &'a RackCache<'m>,
    clock: &'a SimulatedClock,
    dma: SimulatedDma,
    drives: &'a Drives,
    host: usize,
    announcer: DriveAnnouncer,
    desk: RestoreDesk,
    feed: OwnFeed,
    waiting: Vec<Descriptor>,
}

impl Agent<'_, '_> {
    /// Announces what the drive has: the agent has a new life.
    fn announce_all(&mut self) -> Result<(), DriveError> {
        let blocks = self.drives.with(self.host, |drive| drive.iter().map(announced).collect());
        let blocks: Vec<Announced> = blocks;
        let count = self.announcer.announce(self.cache, &blocks)?;
        // Of zeros nobody can say how much room they have.
        end_if_cut_off();
        assert_eq!(count, blocks.len(), "the directory has room for all that a drive has");
        Ok(())
    }

    fn turn(&mut self) -> Result<(), DriveError> {
        let published = self.cache.follow_own(&mut self.feed).blocks;
        self.waiting.extend(published.into_iter().map(|(block, _)| block));
        let some = self.waiting.len().min(TURN_BLOCKS);
        for block in self.waiting.drain(..some).collect::<Vec<_>>() {
            self.back_up(&block)?;
        }
        for asked in self.desk.next(self.cache)? {
            let outcome = match asked.request {
                Some(request) if self.desk.cancelled(self.cache, &[asked])? == [true] => {
                    assert!(request.wait_ms > 0);
                    RestoreOutcome::Cancelled
                }
                Some(request) => self.restore(request.key),
                None => RestoreOutcome::Damaged,
            };
            self.desk.answer(self.cache, &[(asked, outcome)])?;
        }
        Ok(())
    }

    /// Copies a block to the drive. Its bytes are believed for the two looks alone: that the checksum
    /// is theirs shows that the looks suffice (READ-F2, AGENT-B1).
    fn back_up(&mut self, block: &Descriptor) -> Result<(), DriveError> {
        if self.drives.find(self.host, block.key).is_some() {
            return Ok(());
        }
        let Descriptor { key, handle, depth, namespace, .. } = *block;
        let wanted = Wanted { handle, key, bytes: BLOCK_BYTES as u64 };
        let Some(Ok(ticket)) = self.cache.open(&[wanted]).pop() else { return Ok(()) };
        let mut bytes = vec![0; BLOCK_BYTES];
        let parts = vec![bytes.as_mut_slice()];
        let mut jobs = [LoadJob { payload: ticket.payload(), parts }];
        let loaded = self.dma.load(&mut jobs).pop();
        let Some(Ok(Checksum(crc))) = loaded else { panic!("no copy fails: {loaded:?}") };
        if self.cache.close_unused(&[(ticket, None)]) != [Ok(())] {
            return Ok(());
        }
        assert_eq!(crc, block.checksum, "host {}: the bytes are another block's", self.host);
        let stored = Stored { key, bytes, crc, depth, namespace };
        if let Some(leaf) = self.drives.with(self.host, |drive| leaf_of_full(drive)) {
            self.announcer.withdraw(self.cache, &[leaf])?;
            self.drives.with(self.host, |drive| drive.retain(|block| block.key != leaf));
        }
        self.drives.with(self.host, |drive| drive.push(stored.clone()));
        assert_eq!(self.announcer.announce(self.cache, &[announced(&stored)])?, 1);
        Ok(())
    }

    fn restore(&self, key: BlockKey) -> RestoreOutcome {
        if self.cache.present(&[key]) == [true] {
            return RestoreOutcome::Restored;
        }
        let Some(stored) = self.drives.find(self.host, key) else {
            return RestoreOutcome::Unknown;
        };
        let spec = BlockSpec { key, bytes: stored.bytes.len() as u64, depth: stored.depth.into() };
        let reserved =
            self.cache.reserve_tagged(self.clock, stored.namespace, &[spec], CHUNK_TIMEOUT_MS);
        let block = match reserved.into_iter().next() {
            Some(Reservation::Writing(block)) => block,
            Some(Reservation::AlreadyThere) if self.cache.present(&[key]) == [true] => {
                return RestoreOutcome::Restored;
            }
            Some(Reservation::AlreadyThere) | None => return RestoreOutcome::Busy,
            Some(Reservation::Refused(_)) => return RestoreOutcome::NoRoom,
        };
        let parts = [stored.bytes.as_slice()];
        let stored_sum = self.dma.store(&[StoreJob { payload: block.payload(), parts: &parts }]);
        assert_eq!(stored_sum, [Ok(Checksum(stored.crc))], "no copy fails");
        match self.cache.commit_restored(self.clock, vec![(block, stored.crc)]).pop() {
            Some(Ok(_)) => RestoreOutcome::Restored,
            Some(Err(_)) | None => RestoreOutcome::Busy,
        }
    }
}

/// The block that leaves a full drive: the oldest of those that are last in a prefix.
fn leaf_of_full(drive: &[Stored]) -> Option<BlockKey> {
    let deepest = drive.iter().map(|block| block.depth).max()?;
    let leaf = drive.iter().find(|block| block.depth == deepest);
    leaf.filter(|_| drive.len() >= DRIVE_BLOCKS).map(|block| block.key)
}

fn announced(block: &Stored) -> Announced {
    Announced {
        key: block.key,
        bytes: u32::try_from(BLOCK_BYTES).unwrap_or(u32::MAX),
        depth: block.depth,
        namespace: block.namespace,
    }
}

/// The body of the process that owns the drive of a host: never returns.
fn run_drive(cluster: &Cluster, drives: &Drives, host: usize, name: &str, seed: u64) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| failed(name, &error));
    let dma = SimulatedDma::new(member.fabric().clone(), dma_cache(seed));
    let ended = own_a_drive(&cache, &clock, dma, drives, host);
    failed(name, &format!("{ended:?}"));
}

fn own_a_drive(
    cache: &RackCache<'_>,
    clock: &SimulatedClock,
    dma: SimulatedDma,
    drives: &Drives,
    host: usize,
) -> Result<(), DriveError> {
    let claim = cache.claim_drives()?;
    let mut replica = DriveReplica::begin(&claim, cache);
    let (announcer, desk) = (DriveAnnouncer::begin(&claim, cache)?, RestoreDesk::begin(&claim));
    let (feed, waiting) = (OwnFeed::default(), Vec::new());
    let mut agent = Agent { cache, clock, dma, drives, host, announcer, desk, feed, waiting };
    agent.announce_all()?;
    loop {
        replica.sync(cache, clock)?;
        agent.turn()?;
        wait_ms(clock, TURN_MS);
    }
}

/// Looks a prompt up, with what drives have of it, and checks the bytes. Returns how many blocks were
/// fetched, how many of them a drive gave, and why there were no more.
fn fetch(
    session: &RackSession<'_>,
    number: u32,
    name: &str,
) -> (usize, usize, Option<RestoreStop>) {
    let hashes = prompt(number);
    let restore = RestoreOptions::new(Duration::from_millis(WAIT_MS));
    // Of some prompts the blocks are asked for ahead, and of some of these not wanted any more.
    if number.is_multiple_of(2) {
        let refused = |error| -> Prefetch { failed(name, &error) };
        let prefetch = session.prefetch(&hashes, restore).unwrap_or_else(refused);
        if number.is_multiple_of(4) {
            session.cancel_prefetch(&prefetch).unwrap_or_else(|error| failed(name, &error));
        }
    }
    let report = session.lookup_and_restore(&hashes, restore);
    let report = report.unwrap_or_else(|error| failed(name, &error));
    let blocks = report.held().blocks();
    let mut bytes = vec![vec![0; BLOCK_BYTES]; blocks.len()];
    let parts = bytes.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
    let fetched = session.fetch(&blocks, parts).unwrap_or_else(|error| failed(name, &error));
    let valid = fetched.valid_blocks();
    for (hash, bytes) in hashes.iter().zip(&bytes[..valid]) {
        assert!(*bytes == payload(hash), "{name}: wrong bytes were accepted");
    }
    let under_way = session.poll_prefetches().unwrap_or_else(|error| failed(name, &error));
    let counted = session.metrics();
    let ended = counted.prefetch_restored_blocks
        + counted.prefetch_late_blocks
        + counted.prefetch_refused_blocks
        + counted.prefetch_cancelled_blocks;
    let asked = counted.prefetch_asked_blocks;
    assert_eq!(asked, ended + under_way as u64, "{name}: a block ends once");
    let (restored, stop) = (report.restored(), report.stop());
    session.release(report.into_held());
    (valid, restored, stop)
}

/// Runs `body` with a session of a new process of `host`.
fn with_session<T>(
    cluster: &Cluster,
    host: usize,
    name: &str,
    seed: u64,
    body: impl FnOnce(&RackSession<'_>, &RackCache<'_>, &SimulatedClock) -> T,
) -> T {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| failed(name, &error));
    let dma = SimulatedDma::new(member.fabric().clone(), dma_cache(seed));
    let options = options().with_hold(Duration::from_millis(HOLD_MS_MAX));
    body(&SessionCore::new(&cache, &dma, &clock, options), &cache, &clock)
}

/// Serves every prompt `rounds` times, with what the pool and drives have of it.
fn serve(cluster: &Cluster, host: usize, name: &str, rounds: u32, seed: u64, nobody_dies: bool) {
    with_session(cluster, host, name, seed, |session, _, _| {
        for round in 0..rounds {
            for number in 0..PROMPTS {
                // Each host in an order of its own.
                let first = u32::try_from(host).unwrap_or(0) * 3 + round;
                let number = (first + number) % PROMPTS;
                let (valid, _, stop) = fetch(session, number, name);
                let is_in_time = !matches!(
                    stop,
                    Some(RestoreStop::Late | RestoreStop::NoAgent | RestoreStop::RequestsFull)
                );
                assert!(is_in_time || !nobody_dies, "{name}: {stop:?}");
                publish_behind(session, &prompt(number), valid, name);
            }
        }
    });
}

fn with_drives(
    mut schedule: Schedule,
    cluster: &Cluster,
    drives: &Drives,
    hosts: usize,
    seed: u64,
) -> Schedule {
    for host in 0..hosts {
        let (cluster, drives, name) = (cluster.clone(), drives.clone(), format!("drive {host}"));
        schedule = schedule.daemon(host, name.clone(), move |_| {
            run_drive(&cluster, &drives, host, &name, seed);
        });
    }
    schedule
}

/// Removes every block of the pool, when nobody lives any more.
fn empty_pool(cluster: &Cluster, hosts: usize) {
    cluster.processes.end_all();
    for host in 0..hosts {
        let (member, clock) = (cluster.join(host, "cleaner"), cluster.clock(host));
        let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| panic!("{error}"));
        let segment = cache.segment(member.node()).unwrap_or_else(|| panic!("a node has one"));
        let mut handles = Vec::new();
        segment.scan(member.fabric(), |_, content| {
            if let Ok(SlotContent::Block(block)) = content {
                handles.push(block.handle);
            }
        });
        assert_eq!(cache.retire(&clock, &handles), handles.len() as u64, "host {host}");
    }
    cluster.processes.end_all();
}

/// Once nobody else lives, and the pool is empty: every host gets every prefix that drives have.
fn everything_comes_back(cluster: &Cluster, drives: &Drives, hosts: usize, seed: u64, steps: u64) {
    let key = drives.any_key().unwrap_or_else(|| panic!("nothing was backed up"));
    for host in 0..hosts {
        empty_pool(cluster, hosts);
        let last = schedule(cluster, hosts, seed, steps).faults(Faults::NONE);
        let last = with_drives(last, cluster, drives, hosts, seed);
        let (reader, drives) = (cluster.clone(), drives.clone());
        run(last.task(host, "reader", move || {
            with_session(&reader, host, "reader", seed, |session, cache, clock| {
                let each = |number| read_all_that_drives_have(session, clock, &drives, number);
                assert!((0..PROMPTS).map(each).sum::<usize>() > 0, "the pool was not empty");
                every_line_takes_a_request(cache, clock, hosts, key);
            });
        }));
    }
}

/// Reads a prompt until it has all that drives have of it. Returns how many blocks were restored.
fn read_all_that_drives_have(
    session: &RackSession<'_>,
    clock: &SimulatedClock,
    drives: &Drives,
    number: u32,
) -> usize {
    let (mut tries, mut all, mut last) = (0, 0, None);
    loop {
        // A drive that is full removes blocks while others are backed up again.
        let hashes = prompt(number);
        let there = hashes.iter().take_while(|hash| drives.have(&payload(hash))).count();
        let (valid, restored, stop) = fetch(session, number, "reader");
        all += restored;
        if valid >= there {
            return all;
        }
        assert!(tries < TRIES_MAX, "prompt {number}: {valid} of {there}: {stop:?}, {last:?}");
        (tries, last) = (tries + 1, stop);
        // An agent that starts is seen after its second beat.
        wait_ms(clock, 100);
    }
}

/// All requests were answered, also those of the dead: each ring has room for as many as it has lines.
fn every_line_takes_a_request(
    cache: &RackCache<'_>,
    clock: &SimulatedClock,
    hosts: usize,
    key: BlockKey,
) {
    let requests =
        vec![RestoreRequest { key, wait_ms: 100, recompute_ms: None, ahead: false }; RING as usize];
    for node in
        (0..hosts).filter_map(|node| cache.member().layout().node(u16::try_from(node).ok()?))
    {
        let asked = |_| {
            wait_ms(clock, 100);
            let asked = cache.ask_restore(clock, node, &requests);
            asked.unwrap_or_else(|error| panic!("{error}")).full
        };
        assert!((0..TRIES_MAX).map(asked).any(|full| full == 0), "requests to {node:?} stay open");
    }
}

fn geometry() -> DriveGeometry {
    DriveGeometry::new(64, 16, RING).unwrap_or_else(|error| panic!("{error}"))
}

/// Two to four hosts serve twice as many prompts as the pool has room for, with a drive each, without
/// faults but the caches' own: no byte is wrong, no lookup waits in vain, and in the end every host
/// gets what the drives have.
///
/// # Panics
/// When that is not so.
pub fn serve_from_drives(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 2..=4);
    let cluster = cluster(hosts, seed, mutant, Some(geometry()));
    let (drives, steps) = (Drives::new(hosts), mutant.steps_max(30_000_000));
    let mut first = schedule(&cluster, hosts, seed, steps).faults(Faults::NONE);
    first = with_drives(first, &cluster, &drives, hosts, seed);
    let rounds = u32::try_from(mutant.rounds(2)).unwrap_or(1);
    for (host, number) in (0..hosts).flat_map(|host| [(host, 0), (host, 1)]) {
        let (cluster, name) = (cluster.clone(), format!("worker {number} of {host}"));
        first = first.task(host, name.clone(), move || {
            serve(&cluster, host, &name, rounds, seed, true);
        });
    }
    run(first);
    audit(&cluster, hosts, mutant, seed);
    everything_comes_back(&cluster, &drives, hosts, seed, steps);
    cluster.check_writers();
}

/// As [`serve_from_drives`] while processes and hosts pause and crash at any moment, agents among
/// them: no wrong byte is accepted, no slot of the pool stays taken, no request stays open, and every
/// block that a drive has is found again by all hosts.
///
/// # Panics
/// When that is not so.
pub fn agents_die_beside_requests(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 3..=3);
    let cluster = cluster(hosts, seed, mutant, Some(geometry()));
    let (drives, steps) = (Drives::new(hosts), mutant.steps_max(60_000_000));
    let mut first = schedule(&cluster, hosts, seed, steps).spare(0).faults(Faults {
        host_crash_one_in: 10_000,
        host_crashes_max: 4,
        process_crash_one_in: 800,
        process_crashes_max: 40,
        pause_one_in: 10_000,
        pause_ms_max: 1000,
        ..Faults::NONE
    });
    first = with_drives(first, &cluster, &drives, hosts, seed);
    let rounds = u32::try_from(mutant.rounds(2)).unwrap_or(1);
    for (host, number) in (0..hosts).flat_map(|host| [(host, 0), (host, 1)]) {
        let (cluster, name) = (cluster.clone(), format!("worker {number} of {host}"));
        first = first.restarting(host, name.clone(), move |_| {
            serve(&cluster, host, &name, rounds, seed, false);
        });
    }
    let processes = cluster.processes.clone();
    run(first.on_crash(move |crash| processes.crashed(crash)));
    audit(&cluster, hosts, mutant, seed);
    everything_comes_back(&cluster, &drives, hosts, seed, steps);
    cluster.check_writers();
}

/// As [`serve_from_drives`] while lines of the metadata fail (FAULT-F4): no wrong byte is accepted,
/// every process does its work or is left without the pool, and on a device that fails nowhere every
/// block that a drive has is found again by all hosts.
///
/// # Panics
/// When that is not so.
pub fn drives_beside_bad_metadata(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 2..=3);
    let cluster = cluster(hosts, seed, mutant, Some(geometry()));
    let (drives, steps) = (Drives::new(hosts), mutant.steps_max(40_000_000));
    let mut first = schedule(&cluster, hosts, seed, steps).spare(0).faults(Faults::NONE);
    first = with_drives(first, &cluster, &drives, hosts, seed);
    first = with_failing_lines(first, &cluster, seed);
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("worker {host}"));
        first = first.restarting(host, name.clone(), move |life| {
            if life < LIVES {
                serve(&cluster, host, &name, 1, seed, false);
            }
        });
    }
    let processes = cluster.processes.clone();
    run(first.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
    let whole = cluster.on_a_whole_device();
    audit(&whole, hosts, mutant, seed);
    if drives.any_key().is_some() {
        everything_comes_back(&whole, &drives, hosts, seed, steps);
    }
    whole.check_writers();
}
