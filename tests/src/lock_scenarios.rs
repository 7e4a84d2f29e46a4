//! What hosts do with locks and chunks on a simulated rack: run by the rack suite with many seeds,
//! and by the mutation suite with one flush removed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cxl_shm::fabric::Fabric;
use cxl_shm::fabric::simulated::{Faults, Schedule, Settings, SimulatedHost};
use cxl_shm::layout::{ChunkState, Geometry};
use cxl_shm::proof::{Mutant as Broken, is_mutant};
use cxl_shm::units::{ChunkId, Extent, LineRange, LockId, WordOffset};

use crate::rack::{Cluster, Mutant, RackMember, lock_protocol, run, wait_ms};

pub(crate) const LOCK: LockId = LockId(9);

pub(crate) fn geometry(nodes: u16) -> Geometry {
    Geometry {
        region_bytes: 8 << 20,
        nodes,
        // The first is for the region itself; no more than are used: a round of a lock manager, and
        // a join, look at each.
        locks: LOCK.0 + 2,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    }
}

fn nodes(hosts: usize) -> u16 {
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
    Cluster::format(settings, geometry, lock_protocol(seed), [0; 6], mutant)
}

/// Two counters on two lines, updated under the lock and never seen half done.
#[derive(Debug)]
struct Pair([WordOffset; 2]);

impl Pair {
    fn of(member: &RackMember) -> Self {
        // In a chunk that nobody takes here: the table hands out those of the nodes' parts first.
        let chunk = member.layout().chunk(ChunkId(member.layout().chunks() - 1)).offset();
        Self([chunk, chunk + 64].map(|at| WordOffset::new(at).expect("chunks are aligned")))
    }

    fn lines(&self) -> LineRange {
        LineRange::covering(Extent::new(self.0[0].bytes(), 128).expect("inside the region"))
    }

    /// L1, then a read of both.
    fn read(&self, fabric: &SimulatedHost) -> [u64; 2] {
        fabric.refresh(self.lines());
        self.0.map(|word| fabric.load(word))
    }

    fn write(&self, fabric: &SimulatedHost, value: u64) {
        for word in self.0 {
            fabric.store(word, value);
            fabric.publish(LineRange::one(word.line()));
        }
    }
}

/// Adds one to the pair, `rounds` times, and stays inside for `stay_ms` each time. A time-out, or a
/// lock manager that pauses for longer than it may, is answered by trying again.
fn count_up(
    cluster: &Cluster,
    host: usize,
    name: &str,
    rounds: u64,
    stay_ms: u64,
    inside: &Mutex<Option<String>>,
) {
    let swap =
        |now| std::mem::replace(&mut *inside.lock().unwrap_or_else(PoisonError::into_inner), now);
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let pair = Pair::of(&member);
    let mut done = 0;
    while done < rounds {
        let Ok(guard) = member.lock_shared(LOCK, &clock, 500) else { continue };
        assert_eq!(swap(Some(name.to_owned())), None, "{name} is inside together with another");
        let [a, b] = pair.read(member.fabric());
        assert_eq!(a, b, "an update was seen half done");
        wait_ms(&clock, stay_ms);
        // A3.
        let late = is_mutant(Broken::PublishesAfterRelease);
        if !late {
            pair.write(member.fabric(), a + 1);
        }
        assert_eq!(swap(None).as_deref(), Some(name));
        drop(guard);
        if late {
            pair.write(member.fabric(), a + 1);
        }
        done += 1;
    }
}

fn final_count(cluster: &Cluster) -> [u64; 2] {
    let member = cluster.audit(0);
    Pair::of(&member).read(member.fabric())
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

/// Two to four hosts, two competing processes on the first, one lock manager: no two hold the lock
/// at once, and no update is lost.
///
/// # Panics
/// When that is not so.
pub fn count_together(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 2..=4);
    let cluster = format(settings(hosts, seed), geometry(nodes(hosts)), seed, mutant);
    let inside = Arc::new(Mutex::new(None));
    let rounds = mutant.rounds(3);
    let mut schedule = Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(400_000));
    schedule = with_agents(with_manager(schedule, &cluster, 0), &cluster, hosts);
    let mut workers = 0;
    for host in 0..hosts {
        for process in 0..if host == 0 { 2 } else { 1 } {
            let name = format!("worker {host}.{process}");
            let (cluster, inside) = (cluster.clone(), Arc::clone(&inside));
            workers += 1;
            schedule = schedule.task(host, name.clone(), move || {
                count_up(&cluster, host, &name, rounds, 0, &inside);
            });
        }
    }
    run(schedule);
    assert_eq!(final_count(&cluster), [rounds * workers; 2]);
    cluster.check_writers();
}

/// Three hosts, two of which have a lock manager: the active one pauses for longer than it may, is
/// deposed, wakes again, dies and comes back; the lock stays exclusive.
///
/// # Panics
/// When it does not.
pub fn count_through_takeovers(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 3..=3);
    let cluster = format(settings(hosts, seed), geometry(nodes(hosts)), seed, mutant);
    let inside = Arc::new(Mutex::new(None));
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
        let (cluster, inside, name) =
            (cluster.clone(), Arc::clone(&inside), format!("worker {host}"));
        schedule = schedule.task(host, name.clone(), move || {
            count_up(&cluster, host, &name, rounds, stay_ms, &inside);
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    assert_eq!(final_count(&cluster), [rounds * hosts as u64; 2]);
    cluster.check_writers();
}

/// A lock manager and a standby on another host, and nobody pauses: the standby stands by.
///
/// # Panics
/// When it takes over.
pub fn standby_stands_by(mutant: Mutant, seed: u64) {
    let cluster = format(settings(2, seed), geometry(2), seed, mutant);
    let inside = Arc::new(Mutex::new(None));
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
        count_up(&worker, 0, "worker", 1, 0, &inside);
        // Longer than a standby waits for a silent manager.
        wait_ms(&clock, 3000);
    });
    run(schedule);
    let seen = cluster.audit(0).manager_seen();
    assert_eq!(seen.map(|seen| seen.node.0), Some(0), "the standby took over");
}

/// Takes chunks until the node has `wanted`, then gives one back.
fn take_chunks(cluster: &Cluster, host: usize, name: &str, wanted: usize) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let mut failures = 0;
    loop {
        // What a process of this host that died had begun to take or to give back is done first: it
        // would change what we own after we have looked.
        while !member.recover_locks() {
            wait_ms(&clock, 1);
        }
        let owned = member.owned_chunks();
        let outcome = if owned.len() < wanted {
            member.allocate_chunk(&clock, 2000, 42).map_err(|error| error.to_string()).map(
                |chunk| {
                    let owned = member.owned_chunks();
                    assert!(owned.contains(&(chunk, 42)), "a chunk that was had is in the table");
                },
            )
        } else if owned.len() > wanted {
            member.free_chunk(&clock, 2000, owned[0].0).map_err(|error| error.to_string())
        } else {
            return;
        };
        if let Err(error) = outcome {
            failures += 1;
            assert!(failures < 100, "{name}: {error}");
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
