//! Many threads of each host want one lock all the time. No thread is overtaken without bound, and
//! a lock that is passed on within a host is never lost, whichever process dies. Counted in grants,
//! not in time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::lock::PASSES_MAX;
use cxl_shm::units::{ChunkId, Extent, LineRange, WordOffset};
use cxl_shm::verify::simulated::schedule::Crash;
use cxl_shm::verify::simulated::{Faults, Schedule};

use crate::lock_gate::is_silence;
use crate::lock_scenarios::{LOCK, format, geometry, settings, with_agents, with_manager};
use crate::rack::{Cluster, Mutant, RackMember, run};

const HOSTS: usize = 3;
const THREADS_A_HOST: usize = 3;
const ROUNDS: u64 = 48;

const TOTAL: u64 = HOSTS as u64 * THREADS_A_HOST as u64 * ROUNDS;
/// What the two queues explain. Until our turn in the host every thread that was there before us
/// has the lock once. For each of them, and for us, each other host may have two turns, a grant and
/// what it passes on each: one for what it asked before us, and, when it is done and asks again
/// before anybody has seen what we asked, one more. And a turn is under way when we come.
const OVERTAKEN_MAX: u64 = {
    let (others, threads) = (HOSTS as u64 - 1, THREADS_A_HOST as u64);
    let turn = PASSES_MAX as u64 + 1;
    threads - 1 + threads * others * 2 * turn + turn
};
const _: () = assert!(OVERTAKEN_MAX * 3 < TOTAL, "a lock without order overtakes more");

/// Who is inside, and how often anybody was.
#[derive(Debug, Default)]
struct Gate {
    inside: Option<String>,
    grants: u64,
    /// The most grants to others between a begin and its acquisition.
    overtaken_max: u64,
    crashes: u64,
    /// Somebody died inside, and nobody has had the lock since.
    is_left: bool,
}

fn lock(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A counter under the lock: one word, so that a death leaves it as it was or counted up.
fn counter(member: &RackMember) -> WordOffset {
    let chunk = member.layout().chunk(ChunkId(member.layout().chunks() - 1));
    WordOffset::new(chunk.offset()).unwrap_or_else(|| panic!("chunks are aligned"))
}

/// Counts up `rounds` times under the lock.
fn count(cluster: &Cluster, host: usize, name: &str, rounds: u64, gate: &Mutex<Gate>) {
    let member = cluster.join(host, name);
    let (clock, word) = (cluster.clock(host), counter(&member));
    // What is promised after a death inside covers what the member was told of (LOCK-L5).
    member.may_write(Extent::new(word.bytes(), 8).unwrap_or_else(|| panic!("in the region")));
    for _ in 0..rounds {
        let mut pending = member.begin_shared(LOCK, &clock);
        let grants = lock(gate).grants;
        let mut tries = 0;
        let mut guard = loop {
            match pending.poll() {
                Ok(Some(guard)) => break guard,
                Ok(None) => {}
                // A manager that is silent is answered by waiting for its next life.
                Err(error) => assert!(is_silence(&error), "{name}: {error}"),
            }
            clock.pause(tries);
            tries += 1;
        };
        {
            let mut gate = lock(gate);
            let found = gate.inside.replace(name.to_owned());
            assert_eq!(found, None, "{name} is inside together with another");
            gate.overtaken_max = gate.overtaken_max.max(gate.grants - grants);
            gate.grants += 1;
            let left = std::mem::take(&mut gate.is_left);
            assert!(!left || guard.previous_holder_died(), "{name} was not told of a death");
        }
        // LOCK-L1, then LOCK-A3.
        let fabric = member.fabric();
        fabric.refresh(LineRange::one(word.line()));
        fabric.store(word, fabric.load(word) + 1);
        fabric.publish(LineRange::one(word.line()));
        // The counter is one word: it is consistent whenever its holder dies.
        guard.set_consistent();
        assert_eq!(lock(gate).inside.take().as_deref(), Some(name));
        drop(guard);
    }
}

fn final_count(cluster: &Cluster) -> u64 {
    let member = cluster.audit(0);
    let word = counter(&member);
    member.fabric().refresh(LineRange::one(word.line()));
    member.fabric().load(word)
}

fn name_of(host: usize, thread: usize) -> String {
    format!("worker {host}.{thread}")
}

/// Three hosts with three threads each, all of which want the same lock again as soon as they have
/// given it back.
///
/// # Panics
/// When a waiter is overtaken by more than its place in the two queues explains, or an update is
/// lost.
pub fn overtaking_is_bounded(mutant: Mutant, seed: u64) {
    let cluster = format(settings(HOSTS, seed), geometry(3), seed, mutant);
    let gate = Arc::new(Mutex::new(Gate::default()));
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(1_000_000));
    // Nobody pauses: a host that stands still before it has asked is overtaken for as long.
    schedule = schedule.faults(Faults::NONE);
    schedule = with_agents(with_manager(schedule, &cluster, 0), &cluster, HOSTS);
    for host in 0..HOSTS {
        for thread in 0..THREADS_A_HOST {
            let (cluster, gate) = (cluster.clone(), Arc::clone(&gate));
            let name = name_of(host, thread);
            schedule = schedule.task(host, name.clone(), move || {
                count(&cluster, host, &name, ROUNDS, &gate);
            });
        }
    }
    run(schedule);
    assert_eq!(final_count(&cluster), TOTAL);
    cluster.check_writers();
    let overtaken = lock(&gate).overtaken_max;
    assert!(overtaken <= OVERTAKEN_MAX, "overtaken {overtaken} times, {OVERTAKEN_MAX} at most");
}

/// As [`overtaking_is_bounded`] while processes die at any moment, waiting, holding, passing or
/// taking over, and come back: no two are inside, no update is lost, and everybody gets through.
///
/// # Panics
/// When that is not so.
pub fn pass_through_crashes(mutant: Mutant, seed: u64) {
    let cluster = format(settings(HOSTS, seed), geometry(3), seed, mutant);
    let gate = Arc::new(Mutex::new(Gate::default()));
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(2_000_000)).spare(0);
    schedule = schedule.faults(Faults {
        host_crash_one_in: 20_000,
        host_crashes_max: 1,
        process_crash_one_in: 700,
        process_crashes_max: 6,
        ..Faults::NONE
    });
    schedule = with_agents(with_manager(schedule, &cluster, 0), &cluster, HOSTS);
    for host in 0..HOSTS {
        for thread in 0..THREADS_A_HOST {
            let (cluster, gate) = (cluster.clone(), Arc::clone(&gate));
            let name = name_of(host, thread);
            schedule = schedule.restarting(host, name.clone(), move |_| {
                count(&cluster, host, &name, ROUNDS / 8, &gate);
            });
        }
    }
    let (processes, crashed) = (cluster.processes.clone(), Arc::clone(&gate));
    run(schedule.on_crash(move |crash| {
        processes.crashed(crash);
        let mut gate = lock(&crashed);
        gate.crashes += 1;
        let dead = |name: &String| match crash {
            Crash::Process { task, .. } => name == task,
            Crash::Host { host } => name.starts_with(&format!("worker {host}.")),
        };
        let left = gate.inside.take_if(|name| dead(name)).is_some();
        gate.is_left |= left;
    }));
    // LOCK-L5: also of the counter, which a process may have stored and not published when it died.
    cluster.check_writers();
    let (counted, gate) = (final_count(&cluster), lock(&gate));
    // A death inside may come before or after its update.
    let lost = gate.grants - counted;
    assert!(
        lost <= gate.crashes,
        "{} grants, {counted} counted, {} died",
        gate.grants,
        gate.crashes
    );
}
