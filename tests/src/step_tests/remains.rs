//! What processes and hosts leave that die with the chunk table in their hands, or waiting for it.

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::HEAP_PURPOSE;
use cxl_shm::layout::LockProtocol;
use cxl_shm::lifecycle::LeaveOutcome;
use cxl_shm::units::{LineRange, WordOffset};
use cxl_shm::verify::simulated::{Crash, Faults, Report, Schedule};
use cxl_shm_objects::Objects;

use super::bed::{Scripted, beat_all, cluster, crash};
use crate::rack::{Cluster, Mutant, RackMember};

const TIMEOUT_MS: u64 = 1000;

/// One process of host 1 does `work` and dies before its operation `step`, if it has so many.
fn dies_at(
    cluster: &Cluster,
    mutant: Mutant,
    seed: u64,
    step: u64,
    work: impl Fn(&RackMember) + Send + Sync + 'static,
) -> Report {
    let dies = cluster.join(1, "dies");
    let schedule = Schedule::builder(&cluster.rack, seed)
        .faults(Faults::NONE)
        .steps_max(mutant.steps_max(100_000))
        .crash_process_at("dies", step)
        .task(1, "dies", move || work(&dies));
    let processes = cluster.processes.clone();
    schedule.on_crash(move |crash| processes.crashed(crash)).run()
}

/// Takes all chunks that are left, and writes the first line of each.
fn take_and_write(cluster: &Cluster, member: &RackMember) {
    let clock = cluster.clock(usize::from(member.node().0));
    while let Ok(chunk) = member.allocate_chunk(&clock, TIMEOUT_MS, 9) {
        let at = WordOffset::new(member.layout().chunk(chunk).offset());
        let at = at.expect("chunks are aligned");
        member.fabric().store(at, 9);
        member.fabric().publish(LineRange::one(at.line()));
    }
}

/// A process dies at each step of taking a chunk for its host's heap: the chunk is its host's, or
/// nothing that it wrote there is left in its host's caches (MEM-M1).
///
/// # Panics
/// When something is.
pub fn a_chunk_that_is_not_taken_is_not_written(mutant: Mutant, seed: u64) {
    for step in 1.. {
        let cluster = cluster(LockProtocol::Bakery, mutant, seed);
        let [stays, other] = [1, 2].map(|host| cluster.join(host, "stays"));
        let clock = cluster.clock(1);
        let report = dies_at(&cluster, mutant, seed, step, move |member| {
            let taken = member.allocate_chunk(&clock, TIMEOUT_MS, HEAP_PURPOSE);
            assert!(taken.is_ok(), "{taken:?}");
        });
        beat_all(&[&stays]);
        take_and_write(&cluster, &other);
        let (ours, theirs) = (stays.owned_chunks(), other.owned_chunks());
        assert_eq!(ours.len() + theirs.len(), other.layout().chunks() as usize, "step {step}");
        cluster.check_writers();
        if report.process_crashes == 0 {
            assert_eq!(ours.len(), 1);
            return;
        }
    }
}

/// A process dies at each step of giving a chunk back, its host continues, another host takes the
/// chunk, and the host loses power: what it had given back stays with the other.
///
/// # Panics
/// When the other has lost it.
pub fn what_was_given_back_stays_given_back(mutant: Mutant, seed: u64) {
    const LOSSES: u64 = 2;
    let mut step = 1;
    while (0..LOSSES).all(|loss| gives_back_at(mutant, seed + loss * 2, step)) {
        step += 1;
    }
}

/// Says whether there was such a step.
fn gives_back_at(mutant: Mutant, seed: u64, step: u64) -> bool {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let [stays, other] = [1, 2].map(|host| cluster.join(host, "stays"));
    let clock = cluster.clock(1);
    let chunk = stays.allocate_chunk(&clock, TIMEOUT_MS, 7).unwrap_or_else(|e| panic!("{e}"));
    let report = dies_at(&cluster, mutant, seed, step, move |member| {
        let freed = member.free_chunk(&clock, TIMEOUT_MS, chunk);
        assert!(freed.is_ok(), "{freed:?}");
    });
    beat_all(&[&stays]);
    take_and_write(&cluster, &other);
    let taken = other.owned_chunks();
    crash(&cluster, 1);
    std::mem::forget(stays);
    let back = cluster.join(1, "back");
    assert_eq!(other.owned_chunks(), taken, "step {step}: an update was done again");
    assert_eq!(back.owned_chunks().len() + taken.len(), back.layout().chunks() as usize);
    cluster.check_writers();
    report.process_crashes > 0
}

/// A host loses power while it asks for a chunk: its next life does not ask any more.
///
/// # Panics
/// When it does.
pub fn the_dead_ask_for_nothing(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let [asking, holder] = [1, 2].map(|host| cluster.join(host, "asking"));
    take_and_write(&cluster, &holder);
    let rack = cluster.rack.clone();
    let word = holder.layout().chunk_demand(holder.layout().node(1).expect("there are three"));
    let word = word.range().start().word(0).expect("a line has eight");
    let processes = cluster.processes.clone();
    Schedule::builder(&cluster.rack, seed)
        .faults(Faults::NONE)
        .steps_max(mutant.steps_max(100_000))
        .task(1, "asking", move || {
            let clock = Scripted::new(|_| {
                if rack.device_word(word) != 0 {
                    rack.crash(1);
                }
            });
            let chunk = asking.request_chunk(&clock, TIMEOUT_MS, 7);
            panic!("its request was not published: {chunk:?}");
        })
        .on_crash(move |crash| processes.crashed(crash))
        .run();
    assert_eq!(holder.chunks_requested(), 1, "a request was not seen at once");
    let back = cluster.join(1, "back");
    assert_eq!(holder.chunks_requested(), 0, "a former life still asks");
    drop(back);
    cluster.check_writers();
}

/// A process dies with stores that it had not published, in its node's own lines, in a chunk for
/// payload, in an object of its node's heap, and in one that it took over in another's; and the
/// last process of its host leaves: another machine that takes the slot is the only one that writes
/// them (MEM-M1).
///
/// # Panics
/// When something of the dead is left in its host's caches.
pub fn who_leaves_takes_nothing_along(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let [stays, dies] = ["stays", "dies"].map(|name| cluster.join(1, name));
    let giver = cluster.join(0, "giver");
    let layout = *stays.layout();
    let clock = cluster.clock(1);
    let payload = dies.allocate_chunk(&clock, TIMEOUT_MS, 7).unwrap_or_else(|e| panic!("{e}"));
    let own = dies.allocate(&clock, TIMEOUT_MS, 64).unwrap_or_else(|e| panic!("{e}"));
    let given = giver.allocate(&cluster.clock(0), TIMEOUT_MS, 64);
    let given = given.unwrap_or_else(|error| panic!("{error}")).offset();
    let taken = dies.take_over(given).unwrap_or_else(|error| panic!("{error}"));
    let written = [layout.chunk(payload), own.extent(), taken.extent()];
    let written = written.map(|extent| WordOffset::new(extent.offset()));
    let lines = [layout.area(stays.node()), layout.recoveries(stays.node())];
    let words = lines.map(|lines| lines.range().start().word(0)).into_iter().chain(written);
    let words: Vec<WordOffset> = words.map(|word| word.expect("all start on lines")).collect();
    words.iter().for_each(|word| dies.fabric().store(*word, 5));
    cluster.processes.crashed(&Crash::Process { host: 1, task: "dies".to_owned() });
    std::mem::forget(dies);
    assert_eq!(stays.leave(), LeaveOutcome::NodeLeft);
    let next = cluster.join_as(2, 1, "next").unwrap_or_else(|error| panic!("{error}"));
    for word in words {
        next.fabric().store(word, 6);
        next.fabric().publish(LineRange::one(word.line()));
    }
    cluster.check_writers();
}
