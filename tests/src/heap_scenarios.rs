//! What hosts do with objects and named roots on a simulated rack: run by the rack suite with many
//! seeds, and by the mutation suite with one flush removed.

use cxl_shm_objects::NamedRoots;
use cxl_shm_objects::Objects;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use cxl_shm::layout::HEAP_PURPOSE;
use cxl_shm::layout::{ChunkState, Geometry, ROOTS_MAX, RootHead, RootState, root_name_hash};
use cxl_shm::units::{ChunkId, Incarnation, LINE_BYTES, NodeId};
use cxl_shm::verify::simulated::{Faults, Random, Schedule, Settings};
use cxl_shm_objects::RootKind;
use cxl_shm_objects::{PeerObject, SharedOffset};

use crate::rack::{Cluster, Mutant, RackMember, lock_protocol, run, wait_ms};

const HOSTS: usize = 3;
const TIMEOUT_MS: u64 = 300;
/// A time-out that no sound run without faults comes to.
const NEVER_MS: u64 = 60_000;
/// Names of each host that it puts once and nobody destroys.
const KEPT_NAMES: u64 = 3;
/// Names of each host that it puts and everybody destroys.
const CHURNED_NAMES: u64 = 3;

fn geometry() -> Geometry {
    Geometry {
        region_bytes: (2 << 20) + (12 << 16),
        nodes: 3,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    }
}

fn settings(seed: u64) -> Settings {
    let bytes = geometry().region_bytes;
    let settings = if seed.is_multiple_of(3) {
        Settings { seed, ..Settings::sticky(HOSTS, bytes) }
    } else {
        Settings::adversarial(HOSTS, bytes, seed)
    };
    Settings { posted_writes: seed.is_multiple_of(2), ..settings }
}

/// Agents on all hosts and a lock manager on the first.
fn with_daemons(mut schedule: Schedule, cluster: &Cluster) -> Schedule {
    for host in 0..HOSTS {
        let (cluster, name) = (cluster.clone(), format!("agent {host}"));
        schedule = schedule.daemon(host, name.clone(), move |_| cluster.run_agent(host, &name));
    }
    let cluster = cluster.clone();
    schedule.daemon(0, "manager", move |_| cluster.run_manager(0, "manager"))
}

type Life = (NodeId, Incarnation);

/// What the hosts of a run have told each other, and what they must not forget.
#[derive(Debug, Default)]
struct RunRecord {
    /// Objects that somebody else is to free, and whose they were in which life.
    gifts: Mutex<Vec<(SharedOffset, Life)>>,
    /// Kept names whose put has returned.
    kept: Mutex<BTreeSet<String>>,
}

impl RunRecord {
    fn give(&self, offset: SharedOffset, life: Life) {
        self.gifts.lock().unwrap_or_else(PoisonError::into_inner).push((offset, life));
    }

    fn gift(&self) -> Option<(SharedOffset, Life)> {
        self.gifts.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, name: &str) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    fn kept(&self) -> Vec<String> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// First and last word of an object say which name it was made for.
fn is_for(member: &RackMember, object: &PeerObject, name: &str) -> bool {
    let tag = root_name_hash(name).to_le_bytes();
    let (mut first, mut last) = ([0; 8], [0; 8]);
    let bytes = object.extent().bytes();
    object.read(member.fabric(), 0, &mut first)
        && object.read(member.fabric(), bytes - 8, &mut last)
        && first == tag
        && last == tag
}

/// One process of a host that allocates, frees, names and destroys.
struct Worker<'a> {
    cluster: &'a Cluster,
    member: &'a RackMember,
    record: &'a RunRecord,
    host: usize,
    random: Random,
}

impl Worker<'_> {
    fn bytes(&mut self) -> u64 {
        if self.random.one_in(4) {
            1 + self.random.below(20_000)
        } else {
            1 + self.random.below(400)
        }
    }

    /// Makes an object for `name` and puts it. One whose put fails is freed.
    fn put(&mut self, name: &str) -> bool {
        let (clock, bytes) = (self.cluster.clock(self.host), self.bytes());
        let Ok(object) = self.member.allocate(&clock, TIMEOUT_MS, bytes) else { return false };
        let tag = root_name_hash(name).to_le_bytes();
        let last = object.extent().bytes() - 8;
        let fits = object.write(self.member.fabric(), 0, &tag)
            && object.write(self.member.fabric(), last, &tag);
        assert!(fits, "an object has a line at least");
        let (offset, kind) = (object.offset(), RootKind::Linked);
        let put = self.member.put_root(&clock, TIMEOUT_MS, name, offset, kind);
        if put.is_err() {
            let freed = self.member.free(&clock, TIMEOUT_MS, offset);
            assert_eq!(freed, Ok(()), "{name}: {put:?}, and what was allocated cannot be freed");
        }
        put.is_ok()
    }

    fn step(&mut self) {
        let clock = self.cluster.clock(self.host);
        let any_host = self.random.below(HOSTS as u64);
        let kept = self.random.below(KEPT_NAMES);
        let churned = self.random.below(CHURNED_NAMES);
        match self.random.below(7) {
            0 => {
                let name = format!("kept {}.{kept}", self.host);
                if self.put(&name) {
                    self.record.keep(&name);
                }
            }
            1 | 2 => {
                self.put(&format!("churned {}.{churned}", self.host));
            }
            3 => {
                let name = format!("churned {any_host}.{churned}");
                // Most often there is none, or it is just being destroyed by another.
                let _ = self.member.destroy_root(&clock, TIMEOUT_MS, &name);
            }
            4 => {
                let kept = self.record.kept();
                if let Some(name) = self.random.index(kept.len()).and_then(|n| kept.get(n)) {
                    let root = self.member.root(name);
                    // Only a writer that died and is not recovered from yet hides a root.
                    if let Ok(root) = root {
                        let root = root.unwrap_or_else(|| panic!("{name} is gone"));
                        assert!(is_for(self.member, &root.object, name), "{name} is another's");
                    }
                }
            }
            5 => {
                let bytes = self.bytes();
                if let Ok(object) = self.member.allocate(&clock, TIMEOUT_MS, bytes) {
                    if self.random.one_in(2) {
                        let life = (self.member.node(), self.member.incarnation());
                        self.record.give(object.offset(), life);
                    } else {
                        let freed = self.member.free(&clock, TIMEOUT_MS, object.offset());
                        assert_eq!(freed, Ok(()));
                    }
                }
            }
            _ => {
                if let Some((offset, life)) = self.record.gift()
                    && let Some(object) = self.member.object(offset)
                    && object.life() == Some(life)
                {
                    // Its owner may die at any moment, and use the place for something else. What
                    // is not freed for that the sweep at the end finds.
                    let _ = self.member.free_object(&clock, TIMEOUT_MS, &object);
                }
                let _ = self.member.answer_chunk_requests(&clock, TIMEOUT_MS);
            }
        }
    }
}

/// Counts every byte of a host's heap after a sweep: what roots name is allocated, the rest free.
fn audit(cluster: &Cluster, host: usize, record: &RunRecord) {
    let member = cluster.join(host, &format!("auditor {host}"));
    let clock = cluster.clock(host);
    let swept = member.sweep_heap(&clock, NEVER_MS);
    let swept = swept.unwrap_or_else(|error| panic!("host {host} sweeps nothing: {error}"));
    let usage = member.heap_usage(&clock);
    let usage = usage.unwrap_or_else(|error| panic!("host {host} counts nothing: {error}"));
    let owner_of = |object: &PeerObject| {
        let chunk = member.layout().chunk_of(object.extent()).expect("an object is in a chunk");
        let entry = member.layout().chunk_entry(chunk).fresh(member.fabric());
        match entry.ok().and_then(|entry| entry.state()) {
            Some(ChunkState::Owned { owner, purpose: HEAP_PURPOSE, .. }) => owner,
            state => panic!("a root names an object of a chunk that is {state:?}"),
        }
    };
    let roots = member.roots();
    let ours: Vec<_> =
        roots.iter().filter(|root| owner_of(&root.object) == member.node()).collect();
    let named_bytes: u64 = ours.iter().map(|root| root.object.extent().bytes()).sum();
    assert_eq!(usage.objects, ours.len() as u64, "objects that no root names are left");
    assert_eq!(usage.allocated_bytes, named_bytes);
    assert_eq!(usage.damaged_bytes, 0);
    assert_eq!(usage.allocated_bytes + usage.free_bytes, usage.capacity_bytes);
    assert_eq!(swept.kept_bytes, named_bytes);
    assert_eq!(usage.chunks, member.owned_chunks().len() as u64);
    assert_eq!(usage.capacity_bytes, usage.chunks * member.object_bytes_max());
    for root in &roots {
        assert!(is_for(&member, &root.object, &root.name), "{} is damaged", root.name);
    }
    for name in record.kept() {
        assert!(roots.iter().any(|root| root.name == name), "{name} is gone");
    }
}

/// After all hosts were audited: no chunk is lost, no entry of the table waits for ever.
fn audit_region(cluster: &Cluster) {
    let member = cluster.join(0, "region auditor");
    let (layout, fabric) = (member.layout(), member.fabric());
    for chunk in (0..layout.chunks()).map(ChunkId) {
        let entry = layout.chunk_entry(chunk).fresh(fabric);
        let state = entry.unwrap_or_else(|error| panic!("{error}")).state();
        let known = matches!(
            state,
            Some(ChunkState::Free | ChunkState::Owned { purpose: HEAP_PURPOSE, .. })
        );
        assert!(known, "{chunk} is {state:?}");
    }
    let roots = layout.roots();
    for entry in 0..ROOTS_MAX {
        let head = roots.line::<RootHead>(entry * roots.lines() / ROOTS_MAX);
        if let Ok(head) = head.expect("a line of the table").fresh(fabric) {
            assert_ne!(head.state(), Some(RootState::Retired), "root {entry} was not collected");
        }
    }
}

/// Two processes on the first of three hosts, one on the others, work on objects and roots while
/// processes and hosts crash and come back. Afterwards every byte is accounted for.
///
/// # Panics
/// When one is not, or something that was named is gone or another's.
pub fn heaps_through_crashes(mutant: Mutant, seed: u64) {
    let faults = Faults {
        host_crash_one_in: 6000,
        host_crashes_max: 3,
        process_crash_one_in: 2000,
        process_crashes_max: 6,
        ..Faults::NONE
    };
    heaps(mutant, seed, faults, 24);
}

/// As [`heaps_through_crashes`], without crashes and with pauses.
///
/// # Panics
/// As that.
pub fn heaps_without_crashes(mutant: Mutant, seed: u64) {
    let faults = Faults { pause_one_in: 3000, pause_ms_max: 20, ..Faults::NONE };
    heaps(mutant, seed, faults, 24);
}

fn heaps(mutant: Mutant, seed: u64, faults: Faults, steps: u32) {
    let protocol = lock_protocol(seed);
    let cluster = Cluster::format(settings(seed), geometry(), protocol, [0; 6], mutant);
    let cluster = cluster.renumbered(seed);
    cluster.warm();
    let record = Arc::new(RunRecord::default());
    let steps_max = mutant.steps_max(6_000_000);
    let mut schedule = Schedule::builder(&cluster.rack, seed).steps_max(steps_max).spare(0);
    schedule = with_daemons(schedule.faults(faults), &cluster);
    for (host, process) in [(0, 0), (0, 1), (1, 0), (2, 0)] {
        let (cluster, record, name) =
            (cluster.clone(), Arc::clone(&record), format!("worker {host}.{process}"));
        schedule = schedule.restarting(host, name.clone(), move |life| {
            let member = cluster.join(host, &name);
            let random =
                Random::new(seed << 16 | u64::from(life) << 8 | (host * 2 + process) as u64);
            let mut worker =
                Worker { cluster: &cluster, member: &member, record: &record, host, random };
            for _ in 0..steps {
                worker.step();
            }
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));

    cluster.processes.end_all();
    let mut schedule = Schedule::builder(&cluster.rack, seed ^ 1).steps_max(steps_max);
    schedule = with_daemons(schedule.faults(Faults::NONE), &cluster);
    let done = Arc::new(Mutex::new(0));
    for host in 0..HOSTS {
        let (cluster, record, done) = (cluster.clone(), Arc::clone(&record), Arc::clone(&done));
        schedule = schedule.task(host, format!("audit {host}"), move || {
            audit(&cluster, host, &record);
            let finished = |more| {
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                *done += more;
                *done == HOSTS
            };
            finished(1);
            while host == 0 && !finished(0) {
                wait_ms(&cluster.clock(host), 1);
            }
            if host == 0 {
                audit_region(&cluster);
            }
        });
    }
    run(schedule);
    cluster.check_writers();
}

/// A host that runs dry asks, and gets every chunk that another host has no use for, which is idle
/// and has only its agent.
///
/// # Panics
/// When it does not get it.
pub fn chunks_on_request(mutant: Mutant, seed: u64) {
    let cluster = Cluster::format(settings(seed), geometry(), lock_protocol(seed), [0; 6], mutant);
    let cluster = cluster.renumbered(seed);
    cluster.warm();
    let steps_max = mutant.steps_max(3_000_000);
    let mut schedule = Schedule::builder(&cluster.rack, seed).steps_max(steps_max);
    schedule = with_daemons(schedule.faults(Faults::NONE), &cluster);
    let full = Arc::new(Mutex::new(false));
    let is_full = |full: &Mutex<bool>| *full.lock().unwrap_or_else(PoisonError::into_inner);
    let (holder, record) = (cluster.clone(), Arc::clone(&full));
    schedule = schedule.daemon(1, "holder", move |_| {
        let member = holder.join(1, "holder");
        let clock = holder.clock(1);
        let most = member.object_bytes_max();
        let objects: Vec<_> =
            std::iter::from_fn(|| member.allocate(&clock, 100, most).ok()).collect();
        assert!(!objects.is_empty());
        for object in &objects {
            assert_eq!(member.free(&clock, TIMEOUT_MS, object.offset()), Ok(()));
        }
        *record.lock().unwrap_or_else(PoisonError::into_inner) = true;
        // It does nothing any more: the rest is its host's agent's.
        loop {
            wait_ms(&clock, 1000);
        }
    });
    let asking = cluster.clone();
    schedule = schedule.task(2, "asking", move || {
        let member = asking.join(2, "asking");
        let clock = asking.clock(2);
        while !is_full(&full) {
            wait_ms(&clock, 1);
        }
        let mut objects = Vec::new();
        let most = member.object_bytes_max();
        while (objects.len() as u64) < u64::from(member.layout().chunks()) {
            let error = match member.allocate(&clock, 2000, most) {
                Ok(object) => {
                    // The lines of a chunk that came from another host are ours alone now.
                    let lines = object.extent().bytes() / LINE_BYTES;
                    let at = (lines - 1) * LINE_BYTES;
                    assert!(object.write(member.fabric(), at, &objects.len().to_le_bytes()));
                    objects.push(object);
                    continue;
                }
                Err(error) => error,
            };
            panic!("{} of {} chunks, then {error}", objects.len(), member.layout().chunks());
        }
        for (number, object) in objects.iter().enumerate() {
            let mut word = [0; 8];
            let at = object.extent().bytes() - LINE_BYTES;
            assert!(object.peer().read(member.fabric(), at, &mut word));
            assert_eq!(usize::from_le_bytes(word), number, "somebody else wrote there");
        }
    });
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
}
