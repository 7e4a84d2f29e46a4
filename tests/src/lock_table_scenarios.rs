//! Which locks are in use, given out and taken back by several hosts of a simulated rack whose
//! processes die in the middle of it.

use cxl_shm_objects::LockTable;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use cxl_shm::layout::{FIRST_FREE_LOCK, Geometry};
use cxl_shm::units::LockId;
use cxl_shm::verify::simulated::{Faults, Schedule, Settings};

use crate::rack::{Cluster, Mutant, RackMember, lock_protocol, run};

const HOSTS: usize = 3;

/// What the processes were told: the locks they have, and those that a process may have had or
/// given back when it died.
#[derive(Debug, Default)]
struct RunRecord {
    given: BTreeSet<u32>,
    unsure: usize,
}

/// Each host takes two locks and gives one back, twice; nobody gets one that another has; who dies
/// leaves at most the one it was about to take or give back in doubt.
///
/// # Panics
/// When that is not so.
pub fn locks_given_out_through_crashes(mutant: Mutant, seed: u64) {
    let geometry = Geometry {
        region_bytes: 2 << 20,
        nodes: 3,
        locks: 20,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    };
    let settings = if seed.is_multiple_of(3) {
        Settings { seed, ..Settings::sticky(HOSTS, geometry.region_bytes) }
    } else {
        Settings::adversarial(HOSTS, geometry.region_bytes, seed)
    };
    let settings = Settings { posted_writes: seed.is_multiple_of(2), ..settings };
    let cluster = Cluster::format(settings, geometry, lock_protocol(seed), [0; 6], mutant);
    let cluster = cluster.renumbered(seed);
    let record = Arc::new(Mutex::new(RunRecord::default()));
    let faults = Faults { pause_one_in: 5000, pause_ms_max: 100, ..Faults::NONE };
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(600_000)).faults(faults);
    let manager = cluster.clone();
    schedule = schedule.daemon(0, "manager 0", move |_| manager.run_manager(0, "manager 0"));
    for host in 0..HOSTS {
        let (agent, name) = (cluster.clone(), format!("agent {host}"));
        schedule = schedule.daemon(host, name.clone(), move |_| agent.run_agent(host, &name));
        let (cluster, record, name) =
            (cluster.clone(), Arc::clone(&record), format!("taker {host}"));
        schedule = schedule.task(host, name.clone(), move || {
            take_and_give_back(&cluster, host, &name, &record);
        });
    }
    schedule = schedule.crash_process_at("taker 1", 200 + seed * 53 % 4000);
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));

    let auditor = cluster.audit(2);
    let record = record.lock().unwrap_or_else(PoisonError::into_inner);
    let in_use: BTreeSet<u32> =
        (0..geometry.locks).filter(|lock| auditor.is_lock_in_use(LockId(*lock))).collect();
    let doubtful = in_use.symmetric_difference(&record.given).count();
    assert!(doubtful <= record.unsure, "in use: {in_use:?}, given out: {record:?}");
    cluster.check_writers();
}

fn take_and_give_back(cluster: &Cluster, host: usize, name: &str, record: &Mutex<RunRecord>) {
    let record = || record.lock().unwrap_or_else(PoisonError::into_inner);
    let member = cluster.join(host, name);
    for _ in 0..2 {
        let [kept, returned] = [(); 2].map(|()| {
            record().unsure += 1;
            let lock = take(&member, cluster, host);
            let mut record = record();
            assert!(record.given.insert(lock.0), "{lock} was given out twice");
            assert!(lock.0 >= FIRST_FREE_LOCK, "{lock} is the region's own");
            record.unsure -= 1;
            lock
        });
        assert_ne!(kept, returned);
        record().unsure += 1;
        // From here on another may be given it.
        assert!(record().given.remove(&returned.0));
        give_back(&member, cluster, host, returned);
        record().unsure -= 1;
    }
}

/// No sound run comes to this time-out: a process that dies holds a lock for some beats only.
const NEVER_MS: u64 = 60_000;

fn take(member: &RackMember, cluster: &Cluster, host: usize) -> LockId {
    let taken = member.allocate_lock(&cluster.clock(host), NEVER_MS);
    taken.unwrap_or_else(|error| panic!("host {host} is given no lock: {error}"))
}

fn give_back(member: &RackMember, cluster: &Cluster, host: usize, lock: LockId) {
    let freed = member.free_lock(&cluster.clock(host), NEVER_MS, lock);
    freed.unwrap_or_else(|error| panic!("host {host} cannot give {lock} back: {error}"));
}
