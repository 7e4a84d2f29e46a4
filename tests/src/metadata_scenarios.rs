//! Lines of the metadata that the device cannot read any more, at any moment: a process that asks for
//! one is cut off (FAULT-F4), and the others go on.
//!
//! What may be lost: what a process that was cut off had not finished, and the pool for each process
//! that asks for such a line. What may not: a byte, a block that was acknowledged as published, the
//! work of a process that never asks for such a line, and the end of any call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::host::LossCause;
use cxl_shm::layout::Layout;
use cxl_shm::lifecycle::{ATTEND_BEATS, NoFence};
use cxl_shm::lock::LockError;
use cxl_shm::units::LockId;
use cxl_shm::verify::simulated::schedule::crash_this_process;
use cxl_shm::verify::simulated::{Crash, CutOff, Faults, Schedule, SimulatedHost};
use cxl_shm_objects::Objects;
use kv_cache::{BlockHash, Cache};
use lock_manager::{ManagerRole, Timeouts};
use rackline::NewBlock;
use rackline::dma::SimulatedDma;
use rackline::session::{PublishOutcome, SessionCore, SessionError};

use crate::cache_scenarios::{
    BLOCK_BYTES, RackSession, cluster, dma_cache, options, payload, prompt,
};
use crate::failing_lines::{LIVES, Part, random, with_failing_lines};
use crate::lock_scenarios::{LOCKS, Pair, format, geometry, nodes, settings};
use crate::rack::{Cluster, Mutant, RackMember, pause_idle, run, wait_ms};

const PROMPTS: u32 = 4;
const ROUNDS: u32 = 3;
/// Of a process that counts under locks.
const COUNTS: usize = 16;
const BEAT_MS: u64 = 20;

/// What came of a run.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// The lines that processes met, by the part that they are in.
    pub met: BTreeMap<Part, u64>,
    /// Blocks that were acknowledged as published.
    pub acknowledged: usize,
    /// Processes that did all their work.
    pub finished: usize,
    /// Processes that were left without the pool in the end.
    pub without_pool: usize,
}

/// What processes of a run say, as engines outside of the pool would remember it.
#[derive(Clone, Debug, Default)]
struct Witness(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    published: BTreeSet<BlockHash>,
    finished: usize,
    without_pool: usize,
}

impl Witness {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that was cut off: its call has said so.
#[derive(Debug)]
pub(crate) struct Stopped;

/// The error of a call that may fail only because its process was cut off.
///
/// # Panics
/// When it was not.
pub(crate) fn stopped(fabric: &SimulatedHost, name: &str, error: &dyn fmt::Display) -> Stopped {
    assert!(fabric.is_cut_off(), "{name}: {error}");
    Stopped
}

/// A process ends that was cut off, in life `life`: it starts again, unless it did so often.
pub(crate) fn end_of_life(life: u32) {
    if life + 1 < LIVES {
        crash_this_process();
    }
}

/// Starts process `name` on `host` and joins the host's node.
pub(crate) fn join(cluster: &Cluster, host: usize, name: &str) -> Result<RackMember, Stopped> {
    let joined = cluster.try_join(host, name);
    joined.map_err(|error| stopped(&cluster.rack.host(host), name, &error))
}

/// A host's agent process, until it is cut off.
fn run_agent(cluster: &Cluster, host: usize, name: &str) -> Stopped {
    let Ok(member) = join(cluster, host, name) else { return Stopped };
    let clock = cluster.clock(host);
    for beat in 0_u64.. {
        if member.beat()
            && beat.is_multiple_of(ATTEND_BEATS)
            && let Err(error) = member.attend(&clock)
        {
            return stopped(member.fabric(), name, &error);
        }
        if let Err(error) = member.check_member() {
            return stopped(member.fabric(), name, &error);
        }
        wait_ms(&clock, BEAT_MS);
    }
    Stopped
}

/// A lock manager, until it is cut off.
fn run_manager(cluster: &Cluster, host: usize, name: &str) -> Stopped {
    let Ok(member) = join(cluster, host, name) else { return Stopped };
    let clock = cluster.clock(host);
    // Nobody is declared dead, however long he pauses.
    let timeouts = Timeouts { takeover_ms: 300, declare_ms: u64::MAX };
    let mut role = match ManagerRole::new(&member, &clock, timeouts) {
        Ok(role) => role,
        Err(error) => return stopped(member.fabric(), name, &error),
    };
    let mut tries = 0;
    loop {
        match role.step(clock.now_ms(), &mut NoFence) {
            Ok(outcome) => tries = if outcome.busy { 0 } else { tries + 1 },
            Err(error) => return stopped(member.fabric(), name, &error),
        }
        pause_idle(&clock, tries);
    }
}

/// Adds the agents of all hosts, and lock managers on the first two.
pub(crate) fn with_staff(mut schedule: Schedule, cluster: &Cluster, hosts: usize) -> Schedule {
    for host in 0..hosts.min(2) {
        let (cluster, name) = (cluster.clone(), format!("manager {host}"));
        schedule = schedule.daemon(host, name.clone(), move |life| {
            run_manager(&cluster, host, &name);
            end_of_life(life);
        });
    }
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("agent {host}"));
        schedule = schedule.daemon(host, name.clone(), move |life| {
            run_agent(&cluster, host, &name);
            end_of_life(life);
        });
    }
    schedule
}

/// Serves every prompt `rounds` times, until that is done or the process is cut off.
fn serve(
    cluster: &Cluster,
    host: usize,
    name: &str,
    rounds: u32,
    seed: u64,
    witness: &Witness,
) -> Result<usize, Stopped> {
    let member = join(cluster, host, name)?;
    let clock = cluster.clock(host);
    let cache =
        Cache::attach(&member, &clock).map_err(|error| stopped(member.fabric(), name, &error))?;
    let dma = SimulatedDma::new(member.fabric().clone(), dma_cache(seed));
    let session = SessionCore::new(&cache, &dma, &clock, options());
    let mut fetched = 0;
    for (round, number) in (0..rounds).flat_map(|round| (0..PROMPTS).map(move |it| (round, it))) {
        // Each host in an order of its own.
        let first = u32::try_from(host).unwrap_or(0) + round;
        let hashes = prompt((first + number) % PROMPTS);
        match serve_prompt(&session, &hashes, name, witness) {
            Ok(valid) => fetched += valid,
            Err(error) => {
                says_why(&session, &hashes, name, &error);
                return Err(stopped(member.fabric(), name, &error));
            }
        }
    }
    if member.fabric().is_cut_off() {
        return Err(Stopped);
    }
    Ok(fetched)
}

/// Fetches what the pool has of a prompt, which must be right, and publishes the rest.
fn serve_prompt(
    session: &RackSession<'_>,
    hashes: &[BlockHash],
    name: &str,
    witness: &Witness,
) -> Result<usize, SessionError> {
    let found = session.lookup(hashes)?;
    let mut bytes = vec![vec![0; BLOCK_BYTES]; found.blocks().len()];
    let parts = bytes.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
    let valid = session.fetch(found.blocks(), parts)?.valid_blocks();
    for (hash, bytes) in hashes.iter().zip(&bytes[..valid]) {
        assert!(*bytes == payload(hash), "{name}: wrong bytes were accepted");
    }
    let computed: Vec<_> = hashes[valid..].iter().map(payload).collect();
    let parts = computed.iter().map(|bytes| [bytes.as_slice()]);
    let depth = u32::try_from(valid).unwrap_or(u32::MAX);
    let blocks = NewBlock::chain(depth, hashes[valid..].iter().copied(), parts);
    let report = session.publish(&blocks)?;
    for (block, outcome) in blocks.iter().zip(report.outcomes()) {
        if *outcome == PublishOutcome::Published {
            witness.said().published.insert(block.hash);
        }
    }
    Ok(valid)
}

/// Every call of a process that was cut off says so, and comes to its end.
fn says_why(session: &RackSession<'_>, hashes: &[BlockHash], name: &str, first: &SessionError) {
    let lookup = session.lookup(hashes).map(drop);
    let held = session.lookup_and_hold(hashes).map(drop);
    let parts = [payload(&hashes[0])];
    let block = NewBlock { hash: hashes[0], depth: 0, bytes: [parts[0].as_slice()] };
    let publish = session.publish(&[block]).map(drop);
    for outcome in [lookup, held, publish] {
        let Err(SessionError::MembershipLost(lost)) = &outcome else {
            panic!("{name}: {outcome:?} after {first}");
        };
        assert_eq!(lost.cause, LossCause::MemoryFailed, "{name}");
    }
}

/// Two or three hosts with two processes each serve prompts while one to three lines of the metadata
/// fail, and processes and hosts pause and crash. No wrong byte is accepted. What was acknowledged as
/// published is on the device. Every process does its work or says that its memory failed, within a
/// bounded number of steps; a process that was cut off counts as dead, and says so by every call.
///
/// # Panics
/// When that is not so.
pub fn metadata_goes_bad(mutant: Mutant, seed: u64) {
    let _ = report_of(mutant, seed, false);
}

/// As [`metadata_goes_bad`]. With `goes_on` a process that asked for a line that failed goes on with
/// zeros in place of the page: without FAULT-F4.
///
/// # Panics
/// When that is not so.
pub fn report_of(mutant: Mutant, seed: u64, goes_on: bool) -> Report {
    let hosts = mutant.hosts(seed, 2..=3);
    let cluster = cluster(hosts, seed, mutant);
    if goes_on {
        cluster.rack.go_on_after_failures();
    }
    if random(seed, 100).is_multiple_of(2) {
        cluster.rack.let_engines_go_on();
    }
    let witness = Witness::default();
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(12_000_000)).spare(0);
    schedule = with_staff(schedule.faults(faults(seed)), &cluster, hosts);
    schedule = with_failing_lines(schedule, &cluster, seed);
    for (host, number) in (0..hosts).flat_map(|host| [(host, 0), (host, 1)]) {
        let (cluster, witness) = (cluster.clone(), witness.clone());
        let name = format!("worker {number} of {host}");
        schedule = schedule.restarting(host, name.clone(), move |life| {
            match serve(&cluster, host, &name, ROUNDS, seed, &witness) {
                Ok(_) => witness.said().finished += 1,
                Err(Stopped) => {
                    end_of_life(life);
                    witness.said().without_pool += 1;
                }
            }
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
    what_was_acknowledged_is_there(&cluster, seed, &witness);
    everybody_comes_to_an_end(&cluster, hosts, mutant, seed, &witness);
    let layout = Layout::new(cluster.geometry()).unwrap_or_else(|error| panic!("{error}"));
    let said = witness.said();
    let mut report = Report {
        acknowledged: said.published.len(),
        finished: said.finished,
        without_pool: said.without_pool,
        ..Report::default()
    };
    for CutOff { line, .. } in cluster.rack.cut_offs() {
        // Another line of a page that was taken may be in no part.
        if let Some(part) = Part::of(&layout, line) {
            *report.met.entry(part).or_default() += 1;
        }
    }
    report
}

fn faults(seed: u64) -> Faults {
    if seed.is_multiple_of(2) {
        return Faults::NONE;
    }
    Faults {
        host_crash_one_in: 40_000,
        host_crashes_max: 1,
        process_crash_one_in: 8000,
        process_crashes_max: 3,
        pause_one_in: 20_000,
        pause_ms_max: 500,
        ..Faults::NONE
    }
}

/// On a rack whose device holds the same and fails nowhere, every block is found that was
/// acknowledged as published, and its bytes are right.
fn what_was_acknowledged_is_there(cluster: &Cluster, seed: u64, witness: &Witness) {
    let whole = cluster.on_a_whole_device();
    let (member, clock) = (whole.join(0, "auditor"), whole.clock(0));
    let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| panic!("auditor: {error}"));
    let dma = SimulatedDma::new(member.fabric().clone(), dma_cache(seed));
    let session = SessionCore::new(&cache, &dma, &clock, options());
    for hash in &witness.said().published {
        let found = session.lookup(&[*hash]).unwrap_or_else(|error| panic!("auditor: {error}"));
        let mut bytes = vec![vec![0; BLOCK_BYTES]; found.blocks().len()];
        let parts = bytes.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
        let report = session.fetch(found.blocks(), parts);
        let report = report.unwrap_or_else(|error| panic!("auditor: {error}"));
        assert_eq!(report.valid_blocks(), 1, "an acknowledged block is lost: {report:?}");
        assert!(bytes[0] == payload(hash), "an acknowledged block has other bytes");
    }
}

/// Whatever fails by now: a process that starts on any host does its work, or says why not.
fn everybody_comes_to_an_end(
    cluster: &Cluster,
    hosts: usize,
    mutant: Mutant,
    seed: u64,
    witness: &Witness,
) {
    cluster.processes.end_all();
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(5_000_000));
    schedule = with_staff(schedule.faults(Faults::NONE), cluster, hosts);
    for host in 0..hosts {
        let (cluster, witness, name) = (cluster.clone(), witness.clone(), format!("last {host}"));
        schedule = schedule.task(host, name.clone(), move || {
            let _ = serve(&cluster, host, &name, 1, seed, &witness);
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
}

/// Who is inside which lock, as one sees it from outside.
type Inside = Arc<Mutex<BTreeMap<LockId, String>>>;

/// Tries to acquire a lock, of a process that gives up after them.
const TRIES_MAX: u32 = 20;
const TRY_MS: u64 = 100;

/// Adds one to each of two pairs of words in turn, each under its lock. Gives up when a lock is not to
/// be had. Returns how often it did so.
fn count(cluster: &Cluster, host: usize, name: &str, inside: &Inside) -> Result<u64, Stopped> {
    let member = join(cluster, host, name)?;
    let clock = cluster.clock(host);
    let fabric = member.fabric();
    let inside = || inside.lock().unwrap_or_else(PoisonError::into_inner);
    let mut counted = 0;
    for lock in (0..COUNTS).zip(LOCKS.into_iter().cycle().skip(host)).map(|(_, lock)| lock) {
        let mut tries = 0;
        let mut guard = loop {
            match member.lock_shared(lock, &clock, TRY_MS) {
                Ok(guard) => break guard,
                Err(LockError::MembershipLost(lost)) => return Err(stopped(fabric, name, &lost)),
                // Its holder, or the lock manager, is gone with the part of the metadata that failed.
                Err(_) if tries == TRIES_MAX => return Ok(counted),
                Err(_) => tries += 1,
            }
        };
        assert!(!fabric.is_cut_off(), "{name} has lock {lock} and is cut off");
        let found = inside().insert(lock, name.to_owned());
        assert_eq!(found, None, "{name} is inside lock {lock} together with another");
        let pair = Pair::of(&member, lock);
        let [a, b] = pair.read(fabric);
        let was_told = guard.previous_holder_died();
        assert!(a == b || was_told || fabric.is_cut_off(), "a death under {lock} was not told of");
        pair.write(fabric, a.max(b) + 1);
        if was_told {
            guard.set_consistent();
        }
        // One that was cut off counts as dead: another may be inside by now.
        if !fabric.is_cut_off() {
            counted += 1;
            assert_eq!(inside().remove(&lock).as_deref(), Some(name), "two inside lock {lock}");
        }
        drop(guard);
        if let Err(lost) = member.check_member() {
            return Err(stopped(fabric, name, &lost));
        }
    }
    Ok(counted)
}

/// Two or three hosts with two processes each count under two locks while lines of the metadata fail:
/// no two are inside a lock, no count is lost that was made, the next holder after a process that was cut
/// off inside is told of a death, and every wait ends. Returns how many processes were cut off.
///
/// # Panics
/// When that is not so.
pub fn counts_beside_bad_metadata(mutant: Mutant, seed: u64) -> usize {
    let hosts = mutant.hosts(seed, 2..=3);
    let cluster = format(settings(hosts, seed), geometry(nodes(hosts)), seed, mutant);
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(3_000_000)).spare(0);
    schedule = with_staff(schedule.faults(Faults::NONE), &cluster, hosts);
    schedule = with_failing_lines(schedule, &cluster, seed);
    let (inside, all) = (Inside::default(), Arc::new(Mutex::new(0)));
    for (host, number) in (0..hosts).flat_map(|host| [(host, 0), (host, 1)]) {
        let (cluster, inside, all) = (cluster.clone(), Arc::clone(&inside), Arc::clone(&all));
        let name = format!("worker {number} of {host}");
        schedule = schedule.restarting(host, name.clone(), move |life| {
            match count(&cluster, host, &name, &inside) {
                Ok(counted) => {
                    *all.lock().unwrap_or_else(PoisonError::into_inner) += counted;
                }
                Err(Stopped) => end_of_life(life),
            }
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| {
        if let Crash::Process { task, .. } = crash {
            let mut inside = inside.lock().unwrap_or_else(PoisonError::into_inner);
            inside.retain(|_, name| name != task);
        }
        processes.crashed(crash);
    }));
    cluster.check_writers();
    let whole = cluster.on_a_whole_device();
    let member = whole.join(0, "auditor");
    let counts = LOCKS.map(|lock| Pair::of(&member, lock).read(member.fabric()));
    let least: u64 = counts.iter().map(|[a, b]| a.max(b)).sum();
    let all = *all.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(least >= all, "{counts:?}, and {all} were counted");
    cluster.rack.cut_offs().len()
}

/// As [`counts_beside_bad_metadata`].
///
/// # Panics
/// When it does.
pub fn locks_beside_bad_metadata(mutant: Mutant, seed: u64) {
    let _ = counts_beside_bad_metadata(mutant, seed);
}
