//! The two-tier lock, membership and the lock manager on simulated racks of 2 to 4 hosts: many
//! seeds, both cache modes, pauses, crashes of processes and of the lock manager.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that one alone.

use std::sync::{Arc, Mutex};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::fabric::simulated::{Faults, Schedule, Settings, SimulatedHost};
use cxl_shm::layout::Geometry;
use cxl_shm::lock::LockError;
use cxl_shm::units::{ChunkId, Extent, LineRange, LockId, WordOffset};
use rackline_tests::rack::{Cluster, RackMember, for_seeds};

const LOCK: LockId = LockId(9);

fn geometry(nodes: u16) -> Geometry {
    Geometry {
        region_bytes: 8 << 20,
        nodes,
        locks: 16,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    }
}

fn settings(hosts: usize, seed: u64) -> Settings {
    let bytes = geometry(1).region_bytes;
    let mut settings = if seed % 3 == 0 {
        Settings { seed, ..Settings::sticky(hosts, bytes) }
    } else {
        Settings::adversarial(hosts, bytes, seed)
    };
    settings.posted_writes = seed % 2 == 0;
    settings
}

/// Two counters on two lines, updated under the lock and never half done.
struct Pair([WordOffset; 2]);

impl Pair {
    fn of(member: &RackMember) -> Self {
        let chunk = member.layout().chunk(ChunkId(0)).offset();
        Self([chunk, chunk + 64].map(|at| WordOffset::new(at).unwrap()))
    }

    fn lines(&self) -> LineRange {
        LineRange::covering(Extent::new(self.0[0].bytes(), 128).unwrap())
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

/// Adds one to the pair, `rounds` times. A time-out, or a lock manager that pauses for longer than
/// it may, is answered by trying again.
fn count_up(cluster: &Cluster, host: usize, name: &str, rounds: u64, inside: &Mutex<Option<String>>) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let pair = Pair::of(&member);
    let mut done = 0;
    while done < rounds {
        let guard = match member.lock_shared(LOCK, &clock, 500) {
            Ok(guard) => guard,
            Err(LockError::TimedOut { .. } | LockError::NoManager | LockError::ManagerSilent { .. }) => {
                continue;
            }
        };
        let other = inside.lock().unwrap().replace(name.to_owned());
        assert_eq!(other, None, "{name} is inside together with another");
        let [a, b] = pair.read(member.fabric());
        assert_eq!(a, b, "an update was seen half done");
        pair.write(member.fabric(), a + 1);
        let left = inside.lock().unwrap().take();
        assert_eq!(left.as_deref(), Some(name));
        drop(guard);
        done += 1;
    }
}

fn final_count(cluster: &Cluster) -> [u64; 2] {
    let member = cluster.join(0, "auditor");
    Pair::of(&member).read(member.fabric())
}

#[test]
fn no_two_hold_a_lock_and_no_update_is_lost() {
    for_seeds(0..60, |seed| {
        let hosts = 2 + usize::try_from(seed % 3).unwrap();
        let cluster = Cluster::format(settings(hosts, seed), geometry(4), [0; 6]);
        let inside = Arc::new(Mutex::new(None));
        let rounds = 3;
        let mut schedule = Schedule::builder(&cluster.rack, seed).steps_max(4_000_000);
        let manager = cluster.clone();
        schedule = schedule.daemon(0, "manager", move |_| manager.run_manager(0, "manager"));
        for host in 0..hosts {
            let (agent, name) = (cluster.clone(), format!("agent {host}"));
            schedule =
                schedule.daemon(host, name.clone(), move |_| agent.run_agent(host, &name));
            // Two processes on host 0 compete in its host tier as well.
            for process in 0..if host == 0 { 2 } else { 1 } {
                let name = format!("worker {host}.{process}");
                let (cluster, inside) = (cluster.clone(), Arc::clone(&inside));
                schedule = schedule.task(host, name.clone(), move || {
                    count_up(&cluster, host, &name, rounds, &inside);
                });
            }
        }
        schedule.run();
        let expected = rounds * (u64::try_from(hosts).unwrap() + 1);
        assert_eq!(final_count(&cluster), [expected; 2], "seed {seed}");
    });
}

#[test]
fn locks_survive_the_change_of_their_manager() {
    for_seeds(0..40, |seed| {
        let cluster = Cluster::format(settings(3, seed), geometry(3), [0; 6]);
        let inside = Arc::new(Mutex::new(None));
        let rounds = 4;
        let mut schedule = Schedule::builder(&cluster.rack, seed).steps_max(6_000_000);
        // Pauses longer than the suspicion make the standby take over from a manager that wakes
        // again; crashes of the process make it start again.
        schedule = schedule.faults(Faults {
            pause_one_in: 3000,
            pause_ms_max: 4000,
            ..Faults::NONE
        });
        for host in 0..2 {
            let (manager, name) = (cluster.clone(), format!("manager {host}"));
            schedule =
                schedule.daemon(host, name.clone(), move |_| manager.run_manager(host, &name));
        }
        schedule = schedule.crash_process_at("manager 0", 500 + seed * 37);
        for host in 0..3 {
            let (agent, name) = (cluster.clone(), format!("agent {host}"));
            schedule =
                schedule.daemon(host, name.clone(), move |_| agent.run_agent(host, &name));
            let name = format!("worker {host}");
            let (cluster, inside) = (cluster.clone(), Arc::clone(&inside));
            schedule = schedule.task(host, name.clone(), move || {
                count_up(&cluster, host, &name, rounds, &inside);
            });
        }
        let processes = cluster.processes.clone();
        schedule.on_crash(move |crash| processes.crashed(crash)).run();
        assert_eq!(final_count(&cluster), [rounds * 3; 2], "seed {seed}");
    });
}

/// Takes chunks and gives every second one back, through any number of crashes.
fn take_chunks(cluster: &Cluster, host: usize, name: &str, wanted: usize) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let mut failures = 0;
    while member.owned_chunks().len() < wanted {
        match member.allocate_chunk(&clock, 2000, 42) {
            Ok(chunk) => {
                let owned = member.owned_chunks();
                assert!(owned.contains(&(chunk, 42)), "a chunk that was had is in the table");
            }
            Err(error) => {
                failures += 1;
                assert!(failures < 100, "{name}: {error}");
            }
        }
    }
}

#[test]
fn chunks_have_one_owner_whoever_dies() {
    for_seeds(0..60, |seed| {
        let hosts = 3;
        let cluster = Cluster::format(settings(hosts, seed), geometry(3), [0; 6]);
        let mut schedule = Schedule::builder(&cluster.rack, seed).steps_max(8_000_000).spare(0);
        schedule = schedule.faults(Faults {
            host_crash_one_in: 4000,
            host_crashes_max: 2,
            process_crash_one_in: 1500,
            process_crashes_max: 4,
            ..Faults::NONE
        });
        let manager = cluster.clone();
        schedule = schedule.daemon(0, "manager", move |_| manager.run_manager(0, "manager"));
        let wanted = 4;
        for host in 0..hosts {
            let (agent, name) = (cluster.clone(), format!("agent {host}"));
            schedule =
                schedule.daemon(host, name.clone(), move |_| agent.run_agent(host, &name));
            let (cluster, name) = (cluster.clone(), format!("worker {host}"));
            schedule = schedule
                .restarting(host, name.clone(), move |_| take_chunks(&cluster, host, &name, wanted));
        }
        let processes = cluster.processes.clone();
        schedule.on_crash(move |crash| processes.crashed(crash)).run();

        // Every host has what it wanted, none has another's, and the rest is free.
        let mut owners = std::collections::HashMap::new();
        for host in 0..hosts {
            let member = cluster.join(host, "auditor");
            let owned = member.owned_chunks();
            assert!(owned.len() >= wanted, "seed {seed}: host {host} has {owned:?}");
            for (chunk, _) in owned {
                assert_eq!(owners.insert(chunk, host), None, "seed {seed}: {chunk} has two owners");
            }
        }
        let member = cluster.join(0, "auditor");
        let clock = cluster.clock(0);
        assert!(clock.now_ms() > 0);
        let entries = (0..member.layout().chunks()).map(ChunkId);
        for chunk in entries.filter(|chunk| !owners.contains_key(chunk)) {
            let entry = member.layout().chunk_entry(chunk).fresh(member.fabric()).unwrap();
            assert_eq!(entry.state(), Some(cxl_shm::layout::ChunkState::Free), "seed {seed}");
        }
    });
}
