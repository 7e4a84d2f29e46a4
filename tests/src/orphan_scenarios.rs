//! Blocks of a host that died or left, on simulated racks. Other hosts still read these blocks, and
//! evict them when the pool runs short. A host that reclaims them may die too. The first host
//! rejoins and finds the remaining ones.

use std::sync::{Arc, Mutex, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::layout::Layout;
use cxl_shm::lifecycle::{Fence, FenceOrder, FenceState, LeaveOutcome, is_vacant};
use cxl_shm::node::SUSPECT_MS;
use cxl_shm::verify::simulated::{Crash, Faults, Schedule};
use kv_cache::Watermarks;
use kv_cache::{Cache, reclaim_dead_processes};
use lock_manager::{ManagerRole, RoleError, Timeouts};
use rackline::dma::SimulatedDma;
use rackline::session::SessionCore;

use crate::cache_scenarios::{dma_cache, fetch_or_compute, options, prompt};
use crate::pressure_scenarios::{audit, cluster, serve};
use crate::rack::{Cluster, Mutant, pause_idle, run, wait_ms};

const HOSTS: usize = 3;
/// Who dies first, or leaves.
const VICTIM: usize = 1;
/// Prompts that each host that lives publishes, besides those of the one that is gone.
const NEW_PROMPTS: u32 = 6;
const UPKEEP_MS: u64 = 20;
const CHUNK_TIMEOUT_MS: u64 = 50;

/// What cuts the power of a host in its first life here. A host that lives there later came after.
#[derive(Clone, Debug)]
struct PowerOff(Cluster);

impl Fence for PowerOff {
    fn poll(&mut self, order: &FenceOrder, _: u64) -> FenceState {
        self.0.rack.crash(self.0.host_of(order.victim));
        FenceState::Fenced
    }
}

fn manage(cluster: &Cluster, host: usize, name: &str) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let timeouts = Timeouts { takeover_ms: 300, declare_ms: SUSPECT_MS };
    let role = ManagerRole::new(&member, &clock, timeouts);
    let mut role = role.unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut fence = PowerOff(cluster.clone());
    let mut tries = 0;
    loop {
        match role.step(clock.now_ms(), &mut fence) {
            Ok(outcome) => tries = if outcome.busy { 0 } else { tries + 1 },
            Err(RoleError::MembershipLost(_)) => return,
            Err(error) => panic!("{name}: {error}"),
        }
        pause_idle(&clock, tries);
    }
}

/// The process of a host that maintains its part of the pool, and counts what it reclaimed of nodes
/// that are gone.
fn keep_up(cluster: &Cluster, host: usize, name: &str, inherited: &Mutex<u64>) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut counted = 0;
    loop {
        cache.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        reclaim_dead_processes(&member, &clock);
        let now = cache.process_state().metrics().inherited_chunks;
        *inherited.lock().unwrap_or_else(PoisonError::into_inner) += now - counted;
        counted = now;
        wait_ms(&clock, UPKEEP_MS);
    }
}

/// Publishes what nobody has yet, which needs room, reads it, and reads what the host published
/// that is gone.
fn work(cluster: &Cluster, host: usize, name: &str, seed: u64) {
    {
        let member = cluster.join(host, name);
        let clock = cluster.clock(host);
        let cache =
            Cache::attach(&member, &clock).unwrap_or_else(|error| panic!("{name}: {error}"));
        let dma = SimulatedDma::new(member.fabric().clone(), dma_cache(seed));
        let session = SessionCore::new(&cache, &dma, &clock, options());
        for number in 0..NEW_PROMPTS {
            let own = 100 * (1 + u32::try_from(host).unwrap_or(0)) + number;
            for hashes in [prompt(own), prompt(number)] {
                fetch_or_compute(&session, &hashes, name);
            }
        }
    }
    serve(cluster, host, name, 1, seed, false);
}

/// The victim's host, once it is declared dead and recovered, or has left, and for a while after:
/// it comes back in the middle of whatever its reclaimer does.
fn come_back(cluster: &Cluster, name: &str, seed: u64) {
    let (fabric, clock) = (cluster.rack.host(VICTIM), cluster.clock(VICTIM));
    let layout = Layout::new(cluster.geometry()).unwrap_or_else(|error| panic!("{error}"));
    let victim = cluster.node_of(VICTIM);
    while !is_vacant(&layout, &fabric, victim) {
        wait_ms(&clock, 5);
    }
    wait_ms(&clock, seed % 23 * 10);
    serve(cluster, VICTIM, name, 1, seed, false);
}

/// The last process of the victim's host leaves, the others of that life being gone.
fn leave_in_order(cluster: &Cluster) {
    let last = cluster.join(VICTIM, "last");
    for task in ["first agent", "first"] {
        cluster.processes.crashed(&Crash::Process { host: VICTIM, task: task.to_owned() });
    }
    assert_eq!(last.leave(), LeaveOutcome::NodeLeft);
}

/// As [`the_dead_make_room`], for the list of all scenarios.
///
/// # Panics
/// As that one.
pub fn vacant_nodes_make_room(mutant: Mutant, seed: u64) {
    the_dead_make_room(mutant, seed);
}

/// A host publishes and crashes, or a process of it dies and it leaves, for good or for a while;
/// two others run short, and use its room. By seed a process of a reclaimer dies, or its whole
/// host: nothing is lost then either, and no wrong byte is accepted. Returns how many chunks of the
/// dead were used.
///
/// # Panics
/// When that is not so.
pub fn the_dead_make_room(mutant: Mutant, seed: u64) -> u64 {
    let cluster = cluster(HOSTS, seed, mutant, None);
    let leaves = seed % 5 == 4;
    // It lives alone at first, has all the room, and crashes somewhere.
    let step = 4000 + seed * 997 % 9001;
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(5_000_000));
    schedule = schedule.faults(Faults::NONE);
    schedule = if leaves {
        schedule.crash_process_at("first", step)
    } else {
        schedule.crash_host_at(VICTIM, step)
    };
    let body = cluster.clone();
    schedule = schedule.daemon(VICTIM, "first agent", move |life| {
        if life == 0 {
            body.run_agent(VICTIM, "first agent");
        }
    });
    let body = cluster.clone();
    schedule = schedule.daemon(0, "first manager", move |_| body.run_manager(0, "first manager"));
    let body = cluster.clone();
    schedule = schedule.daemon(0, "first watch", move |_| body.run_agent(0, "first watch"));
    let body = cluster.clone();
    schedule = schedule.restarting(VICTIM, "first", move |life| {
        if life == 0 {
            serve(&body, VICTIM, "first", 4, seed, true);
        }
    });
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    if leaves {
        leave_in_order(&cluster);
    }
    cluster.processes.end_all();

    let inherited = Arc::new(Mutex::new(0));
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(20_000_000)).spare(2);
    schedule = schedule.faults(Faults::NONE);
    for host in [0, 2] {
        // A host that was cut off stays so.
        let body = cluster.clone();
        schedule = schedule.daemon(host, format!("agent {host}"), move |life| {
            if life == 0 {
                body.run_agent(host, &format!("agent {host}"));
            }
        });
        let body = cluster.clone();
        schedule = schedule.daemon(host, format!("manager {host}"), move |life| {
            if life == 0 {
                manage(&body, host, &format!("manager {host}"));
            }
        });
        let (body, count) = (cluster.clone(), Arc::clone(&inherited));
        let host_dies = seed % 3 == 2 && host == 0;
        schedule = schedule.daemon(host, format!("keeper {host}"), move |life| {
            if life == 0 || !host_dies {
                keep_up(&body, host, &format!("keeper {host}"), &count);
            }
        });
        let body = cluster.clone();
        schedule = schedule.restarting(host, format!("worker {host}"), move |life| {
            if life == 0 || !host_dies {
                work(&body, host, &format!("worker {host}"), seed);
            }
        });
    }
    if seed.is_multiple_of(2) {
        let body = cluster.clone();
        schedule = schedule.restarting(VICTIM, "returned", move |_| {
            come_back(&body, "returned", seed);
        });
    }
    schedule = match seed % 3 {
        0 => schedule,
        1 => (1..4).fold(schedule, |schedule, part| {
            schedule.crash_process_at("keeper 0", part * (900 + seed * 131 % 1500))
        }),
        _ => schedule.crash_host_at(0, 9000 + seed * 1231 % 20_000),
    };
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.processes.end_all();
    // Who was looking after another when all ended ends that first.
    for host in [2, 0] {
        let member = cluster.join(host, "late reclaimer");
        let cache = Cache::attach(&member, &cluster.clock(host));
        drop(cache.unwrap_or_else(|error| panic!("host {host}: {error}")));
    }
    audit(&cluster, HOSTS, mutant, seed);
    let inherited = inherited.lock().unwrap_or_else(PoisonError::into_inner);
    *inherited
}
