//! What hosts do with locks and chunks on a simulated rack: run by the rack suite with many seeds,
//! and by the mutation suite with one flush removed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cxl_shm::chunk::{AllocateError, ChunkError};
use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{ChunkState, Geometry};
use cxl_shm::units::{ChunkId, Extent, LineRange, LockId, WordOffset};
use cxl_shm::verify::simulated::{Faults, Schedule, Settings, SimulatedClock, SimulatedHost};
use cxl_shm::verify::{Mutant as Broken, is_mutant};

use crate::lock_gate::{Gate, WaitLimits, is_silence};
use crate::rack::{Cluster, Mutant, RackMember, lock_protocol, run, wait_ms};

pub(crate) const LOCK: LockId = LockId(9);
/// A second one, which other threads of the same hosts want at the same time.
const OTHER_LOCK: LockId = LockId(10);
pub(crate) const LOCKS: [LockId; 2] = [LOCK, OTHER_LOCK];
/// A time-out inside the program that no sound run comes to, whatever pauses and crashes there are.
const NEVER_MS: u64 = 120_000;

pub(crate) fn geometry(nodes: u16) -> Geometry {
    Geometry {
        region_bytes: 8 << 20,
        nodes,
        // The first is for the region itself; no more than are used: a round of a lock manager, and
        // a join, look at each.
        locks: OTHER_LOCK.0 + 1,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    }
}

pub(crate) fn nodes(hosts: usize) -> u16 {
    u16::try_from(hosts).unwrap_or(u16::MAX)
}

/// The settings of run `seed`: one in three is sticky, one in two posts its writes.
pub(crate) fn settings(hosts: usize, seed: u64) -> Settings {
    let bytes = geometry(1).region_bytes;
    let settings = if seed.is_multiple_of(3) {
        Settings { seed, ..Settings::sticky(hosts, bytes) }
    } else {
        Settings::adversarial(hosts, bytes, seed)
    };
    Settings { posted_writes: seed.is_multiple_of(2), ..settings }
}

pub(crate) fn format(settings: Settings, geometry: Geometry, seed: u64, mutant: Mutant) -> Cluster {
    Cluster::format(settings, geometry, lock_protocol(seed), [0; 6], mutant).renumbered(seed)
}

/// Two counters on two lines, updated under one lock and never seen half done.
#[derive(Debug)]
pub(crate) struct Pair([WordOffset; 2]);

impl Pair {
    pub(crate) fn of(member: &RackMember, lock: LockId) -> Self {
        // In a chunk that nobody takes here: the table hands out those of the nodes' parts first.
        let chunk = member.layout().chunk(ChunkId(member.layout().chunks() - 1)).offset();
        let first = chunk + u64::from(lock.0) * 128;
        Self([first, first + 64].map(|at| WordOffset::new(at).expect("chunks are aligned")))
    }

    fn lines(&self) -> LineRange {
        LineRange::covering(Extent::new(self.0[0].bytes(), 128).expect("inside the region"))
    }

    /// LOCK-L1, then a read of both.
    pub(crate) fn read(&self, fabric: &SimulatedHost) -> [u64; 2] {
        fabric.refresh(self.lines());
        self.0.map(|word| fabric.load(word))
    }

    pub(crate) fn write(&self, fabric: &SimulatedHost, value: u64) {
        for word in self.0 {
            fabric.store(word, value);
            fabric.publish(LineRange::one(word.line()));
        }
    }
}

/// Takes `lock`, adds one to its pair, stays inside for `stay_ms`, and gives it back.
fn count_once(
    member: &RackMember,
    clock: &SimulatedClock,
    lock: LockId,
    name: &str,
    stay_ms: u64,
    gate: &Gate,
) {
    let pair = Pair::of(member, lock);
    let guard = gate.enter(member, clock, lock, name);
    let [a, b] = pair.read(member.fabric());
    assert_eq!(a, b, "an update was seen half done");
    wait_ms(clock, stay_ms);
    // LOCK-A3.
    let late = is_mutant(Broken::PublishesAfterRelease);
    if !late {
        pair.write(member.fabric(), a + 1);
    }
    gate.leave(lock, name);
    drop(guard);
    if late {
        pair.write(member.fabric(), a + 1);
    }
}

/// Adds one to each of the two pairs in turn, `rounds` times in all, beginning with `first`, and
/// stays inside for `stay_ms` each time.
fn count_up(
    cluster: &Cluster,
    host: usize,
    name: &str,
    first: usize,
    rounds: u64,
    stay_ms: u64,
    gate: &Gate,
) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    for (_, lock) in (0..rounds).zip(LOCKS.into_iter().cycle().skip(first)) {
        count_once(&member, &clock, lock, name, stay_ms, gate);
    }
}

/// What the two pairs were counted up to, together.
fn final_count(cluster: &Cluster) -> u64 {
    let member = cluster.audit(0);
    let counts = LOCKS.map(|lock| {
        let [a, b] = Pair::of(&member, lock).read(member.fabric());
        assert_eq!(a, b, "the last update of lock {lock} is half done");
        a
    });
    counts.iter().sum()
}

pub(crate) fn with_agents(mut schedule: Schedule, cluster: &Cluster, hosts: usize) -> Schedule {
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("agent {host}"));
        schedule = schedule.daemon(host, name.clone(), move |_| cluster.run_agent(host, &name));
    }
    schedule
}

pub(crate) fn with_manager(schedule: Schedule, cluster: &Cluster, host: usize) -> Schedule {
    let (cluster, name) = (cluster.clone(), format!("manager {host}"));
    schedule.daemon(host, name.clone(), move |_| cluster.run_manager(host, &name))
}

/// Two to four hosts, two competing processes on the first two, one lock manager, processes and
/// hosts that pause: no two hold a lock at once, no update is lost, no free lock stays free.
///
/// # Panics
/// When that is not so.
pub fn count_together(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 2..=4);
    let cluster = format(settings(hosts, seed), geometry(nodes(hosts)), seed, mutant);
    let gate = Gate::new(WaitLimits::LONG);
    let rounds = mutant.rounds(3);
    let mut schedule = Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(400_000));
    schedule = with_agents(with_manager(schedule, &cluster, 0), &cluster, hosts);
    let mut workers = 0;
    for host in 0..hosts {
        for process in 0..if host < 2 { 2 } else { 1 } {
            let name = format!("worker {host}.{process}");
            let (cluster, gate) = (cluster.clone(), gate.clone());
            workers += 1;
            schedule = schedule.task(host, name.clone(), move || {
                count_up(&cluster, host, &name, host + process, rounds, 0, &gate);
            });
        }
    }
    run(schedule);
    assert_eq!(final_count(&cluster), rounds * workers);
    cluster.check_writers();
}

/// How far the two threads of a host are.
type Progress = Arc<Mutex<[u64; 2]>>;

/// Two or three hosts with two threads each, which ask for a lock each at the same moment, and ask
/// for nothing more before both had theirs. Nobody pauses, so each free lock is granted at once.
///
/// # Panics
/// When a lock stays free although somebody waits for it.
pub fn free_locks_are_granted(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 2..=3);
    let cluster = format(settings(hosts, seed), geometry(nodes(hosts)), seed, mutant);
    let gate = Gate::new(WaitLimits::SHORT);
    let rounds = mutant.rounds(12);
    let mut schedule = Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(800_000));
    schedule = schedule.faults(Faults::NONE);
    schedule = with_agents(with_manager(schedule, &cluster, 0), &cluster, hosts);
    for host in 0..hosts {
        let progress = Progress::default();
        for thread in 0..2 {
            let name = format!("worker {host}.{thread}");
            let (cluster, gate) = (cluster.clone(), gate.clone());
            let progress = Arc::clone(&progress);
            schedule = schedule.task(host, name.clone(), move || {
                count_in_step(&cluster, host, thread, &name, rounds, &progress, &gate);
            });
        }
    }
    run(schedule);
    assert_eq!(final_count(&cluster), rounds * 2 * hosts as u64);
    cluster.check_writers();
}

/// The body of one of two threads of a host: in each round it takes the one lock and the other
/// thread the other.
fn count_in_step(
    cluster: &Cluster,
    host: usize,
    thread: usize,
    name: &str,
    rounds: u64,
    progress: &Progress,
    gate: &Gate,
) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    for (round, lock) in (1..=rounds).zip(LOCKS.into_iter().cycle().skip(thread)) {
        count_once(&member, &clock, lock, name, 0, gate);
        let both = |mine: bool| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            if mine {
                progress[thread] = round;
            }
            progress.iter().all(|done| *done >= round)
        };
        both(true);
        let mut tries = 0;
        while !both(false) {
            clock.pause(tries);
            tries += 1;
        }
    }
}

/// Three hosts, two of which have a lock manager: the active one pauses for longer than it may, is
/// deposed, wakes again, dies and comes back; the lock stays exclusive.
///
/// # Panics
/// When it does not.
pub fn count_through_takeovers(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 3..=3);
    let cluster = format(settings(hosts, seed), geometry(nodes(hosts)), seed, mutant);
    let gate = Gate::new(WaitLimits::LONG);
    let rounds = mutant.rounds(4);
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(1_000_000));
    schedule = schedule.faults(Faults { pause_one_in: 3000, pause_ms_max: 4000, ..Faults::NONE });
    for host in 0..2 {
        schedule = with_manager(schedule, &cluster, host);
    }
    // While somebody waits or holds: managers come back after some milliseconds.
    schedule = schedule.crash_process_at("manager 0", 200 + seed % 100 * 13);
    let stay_ms = if seed % 8 == 1 { 6 } else { 0 };
    schedule = with_agents(schedule, &cluster, hosts);
    for host in 0..hosts {
        let (cluster, gate, name) = (cluster.clone(), gate.clone(), format!("worker {host}"));
        schedule = schedule.task(host, name.clone(), move || {
            count_up(&cluster, host, &name, host, rounds, stay_ms, &gate);
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    assert_eq!(final_count(&cluster), rounds * hosts as u64);
    cluster.check_writers();
}

/// A lock manager and a standby on another host, and nobody pauses: the standby stands by.
///
/// # Panics
/// When it takes over.
pub fn standby_stands_by(mutant: Mutant, seed: u64) {
    let cluster = format(settings(2, seed), geometry(2), seed, mutant);
    let gate = Gate::new(WaitLimits::SHORT);
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(1_000_000));
    schedule = schedule.faults(Faults::NONE);
    schedule = with_agents(with_manager(schedule, &cluster, 0), &cluster, 2);
    let standby = cluster.clone();
    schedule = schedule.daemon(1, "standby", move |_| {
        let member = standby.join(1, "standby look-out");
        while member.manager_seen().is_none() {
            wait_ms(&standby.clock(1), 1);
        }
        standby.run_manager(1, "standby");
    });
    let (worker, clock) = (cluster.clone(), cluster.clock(0));
    schedule = schedule.task(0, "worker", move || {
        count_up(&worker, 0, "worker", 0, 1, 0, &gate);
        // Longer than a standby waits for a silent manager.
        wait_ms(&clock, 3000);
    });
    run(schedule);
    let seen = cluster.audit(0).manager_seen();
    assert_eq!(seen.map(|seen| seen.node), Some(cluster.node_of(0)), "the standby took over");
}

/// Takes chunks until the node has `wanted`, then gives one back. Only the silence of a lock
/// manager that died is answered by trying again.
fn take_chunks(cluster: &Cluster, host: usize, name: &str, wanted: usize) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    loop {
        // What a process of this host that died had begun to take or to give back is done first: it
        // would change what we own after we have looked.
        while !member.recover_locks() {
            wait_ms(&clock, 1);
        }
        let owned = member.owned_chunks();
        if owned.len() < wanted {
            match member.allocate_chunk(&clock, NEVER_MS, 42) {
                Ok(chunk) => {
                    let owned = member.owned_chunks();
                    assert!(owned.contains(&(chunk, 42)), "a chunk that was had is in the table");
                }
                Err(AllocateError::Lock(error)) if is_silence(&error) => wait_ms(&clock, 1),
                Err(error) => panic!("{name} gets no chunk: {error}"),
            }
        } else if owned.len() > wanted {
            match member.free_chunk(&clock, NEVER_MS, owned[0].0) {
                Ok(()) => {}
                Err(ChunkError::Lock(error)) if is_silence(&error) => wait_ms(&clock, 1),
                Err(error) => panic!("{name} cannot give a chunk back: {error}"),
            }
        } else {
            return;
        }
    }
}

/// Three hosts take chunks while processes and whole hosts crash and come back: in the end each has
/// what it wanted, no chunk has two owners, and the rest is free.
///
/// # Panics
/// When that is not so.
pub fn chunks_through_crashes(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 3..=3);
    let cluster = format(settings(hosts, seed), geometry(nodes(hosts)), seed, mutant);
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(2_000_000)).spare(0);
    schedule = schedule.faults(Faults {
        host_crash_one_in: 4000,
        host_crashes_max: 2,
        process_crash_one_in: 1500,
        process_crashes_max: 4,
        ..Faults::NONE
    });
    schedule = with_agents(with_manager(schedule, &cluster, 0), &cluster, hosts);
    let wanted = usize::try_from(mutant.rounds(4)).unwrap_or(1);
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("worker {host}"));
        schedule = schedule.restarting(host, name.clone(), move |life| {
            // A first life wants more, so that there is something to give back after it.
            take_chunks(&cluster, host, &name, wanted + usize::from(life == 0));
            take_chunks(&cluster, host, &name, wanted);
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));

    let mut owners = HashMap::new();
    for host in 0..hosts {
        let owned = cluster.audit(host).owned_chunks();
        assert_eq!(owned.len(), wanted, "host {host} has {owned:?}");
        for (chunk, _) in owned {
            assert_eq!(owners.insert(chunk, host), None, "{chunk} has two owners");
        }
    }
    let member = cluster.audit(0);
    for chunk in (0..member.layout().chunks()).map(ChunkId) {
        let entry = member.layout().chunk_entry(chunk).fresh(member.fabric());
        let state = entry.unwrap_or_else(|error| panic!("{error}")).state();
        let expected = if owners.contains_key(&chunk) { None } else { Some(ChunkState::Free) };
        assert!(expected.is_none() || state == expected, "{chunk} is lost: {state:?}");
    }
    cluster.check_writers();
}
