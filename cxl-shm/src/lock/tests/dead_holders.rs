//! What a process stored under a program's lock before it died there.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::fabric::Fabric;
use crate::layout::HEAP_PURPOSE;
use crate::lock::clear_requests_of;
use crate::units::{Extent, LINE_BYTES, LineRange, NodeId, WordOffset};

/// A line in a chunk of the heap of `owner`, whose first word counts.
fn counter(bed: &Bed, owner: &Process) -> LineRange {
    let chunk = owner.allocate_chunk(&bed.clock, TIMEOUT_MS, HEAP_PURPOSE).unwrap();
    // The first line says who has built the chunk.
    let line = LineRange::covering(owner.layout().chunk(chunk)).iter().nth(1).unwrap();
    let counter = LineRange::one(line);
    owner.may_write(Extent::new(counter.start().bytes(), LINE_BYTES).unwrap());
    owner.fabric().store(word_of(&counter), 0);
    owner.fabric().publish(counter);
    counter
}

fn word_of(counter: &LineRange) -> WordOffset {
    counter.start().word(0).unwrap()
}

/// LOCK-L1, a count, and LOCK-A3 unless the counting process dies before that.
fn count(process: &Process, counter: &LineRange, dies: bool) -> u64 {
    let (fabric, word) = (process.fabric(), word_of(counter));
    fabric.refresh(*counter);
    // MEM-M1: the lock is held; the line passes with it.
    process.may_write(Extent::new(counter.start().bytes(), LINE_BYTES).unwrap());
    let count = fabric.load(word) + 1;
    fabric.store(word, count);
    if !dies {
        fabric.publish(LineRange::one(word.line()));
    }
    count
}

#[test]
fn what_a_dead_process_stored_under_a_lock_cannot_undo_what_later_holders_store() {
    for protocol in PROTOCOLS {
        // Its own object, and one that it took over from another host.
        for owner in [0, 1] {
            let bed = Bed::new(protocol);
            let (dies, remote) = (bed.process(0, 3), bed.process(1, 4));
            let counted = counter(&bed, &bed.process(owner, 4));
            let guard = bed.acquire(&dies);
            count(&dies, &counted, true);
            std::mem::forget(guard);
            bed.kill(3);
            let guard = bed.acquire(&remote);
            let first = count(&remote, &counted, false);
            drop(guard);
            let line = word_of(&counted).line();
            assert!(!bed.rack.dirty_lines(0).contains(&line), "{protocol}: it comes later");
            assert_eq!(bed.rack.device_word(word_of(&counted)), first);
            assert_eq!(bed.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
        }
    }
}

#[test]
fn who_recovers_without_an_agent_flushes_what_the_dead_stored_too() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let (dies, beside) = (bed.process(0, 3), bed.process(0, 4));
        let counted = counter(&bed, &beside);
        let guard = bed.acquire(&dies);
        count(&dies, &counted, true);
        std::mem::forget(guard);
        bed.kill(3);
        // The agent of host 0 stands still.
        drop(bed.clock.others.borrow_mut().remove(0));
        drop(bed.acquire(&beside));
        let line = word_of(&counted).line();
        assert!(!bed.rack.dirty_lines(0).contains(&line), "{protocol}: it comes later");
    }
}

/// Acquires, says whether it was told of a death, and makes the data consistent if `mends`.
fn is_told(bed: &Bed, process: &Process, mends: bool) -> bool {
    let mut guard = bed.acquire(process);
    let told = guard.previous_holder_died();
    if mends {
        guard.set_consistent();
        assert!(!guard.previous_holder_died());
    }
    told
}

fn dies_inside(bed: &Bed, host: usize, pid: u32) {
    let dies = bed.process(host, pid);
    std::mem::forget(bed.acquire(&dies));
    std::mem::forget(dies);
    bed.kill(pid);
}

#[test]
fn every_holder_is_told_of_a_death_until_one_makes_the_data_consistent() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let [near, far, third] = [0, 1, 2].map(|host| bed.process(host, 4));
        for process in [&near, &far, &third] {
            assert!(!is_told(&bed, process, false), "{protocol}: nobody has died");
        }
        for round in 0..3 {
            dies_inside(&bed, round, 3 + 2 * u32::try_from(round).unwrap());
            for process in [&far, &near, &third, &far] {
                assert!(is_told(&bed, process, false), "{protocol}, round {round}");
            }
            assert!(is_told(&bed, &third, true), "{protocol}: it mends what it was told of");
            for process in [&near, &far, &third] {
                assert!(!is_told(&bed, process, false), "{protocol}: it was mended");
            }
        }
        assert_eq!(bed.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
    }
}

#[test]
fn who_a_lock_is_passed_to_is_told_too() {
    for protocol in PROTOCOLS {
        for mends in [false, true] {
            let bed = Bed::new(protocol);
            let (first, second) = (bed.process(1, 4), bed.process(1, 6));
            dies_inside(&bed, 0, 3);
            let mut guard = bed.acquire(&first);
            assert!(guard.previous_holder_died());
            let mut next = second.begin_shared(LOCK, &bed.clock);
            if mends {
                guard.set_consistent();
            }
            drop(guard);
            let guard = next.poll().unwrap().expect("passed on: had at the first look");
            assert_eq!(guard.previous_holder_died(), !mends, "{protocol}");
        }
    }
}

#[test]
fn a_death_outside_a_lock_is_told_to_nobody() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let (waits, far) = (bed.process(0, 3), bed.process(1, 4));
        let guard = bed.acquire(&far);
        std::mem::forget(waits.begin_shared(LOCK, &bed.clock));
        bed.kill(3);
        bed.clock.pause(0);
        drop(guard);
        assert!(!is_told(&bed, &far, false), "{protocol}: it only waited");
        assert!(!is_told(&bed, &bed.process(0, 6), false), "{protocol}: it only waited");
    }
}

#[test]
fn a_new_lock_manager_knows_of_earlier_deaths() {
    let bed = Bed::new(LockProtocol::Arbitrated);
    dies_inside(&bed, 0, 3);
    bed.clock.pause(0);
    drop(bed.stop_manager());
    bed.start_manager();
    assert!(is_told(&bed, &bed.process(1, 4), true));
    drop(bed.stop_manager());
    bed.start_manager();
    assert!(!is_told(&bed, &bed.process(1, 6), false), "and of what was mended");
}

#[test]
fn holders_after_a_host_that_was_recovered_are_told() {
    for protocol in PROTOCOLS {
        for holds in [true, false] {
            let bed = Bed::new(protocol);
            let (on_dead, far) = (bed.process(0, 3), bed.process(1, 4));
            let held = (!holds).then(|| bed.acquire(&far));
            let mut pending = on_dead.begin_shared(LOCK, &bed.clock);
            for _ in 0..8 {
                if let Some(guard) = pending.poll().unwrap() {
                    assert!(holds, "{protocol}: another holds it");
                    std::mem::forget(guard);
                    break;
                }
                bed.clock.pause(0);
            }
            std::mem::forget(pending);
            std::mem::forget(on_dead);
            bed.kill_first_host(&[3]);
            bed.rack.crash(0);
            for _ in 0..2 {
                clear_requests_of(protocol, far.layout(), far.fabric(), NodeId(0));
            }
            drop(held);
            for _ in 0..2 {
                assert_eq!(is_told(&bed, &far, false), holds, "{protocol}: held {holds}");
            }
            is_told(&bed, &far, true);
            assert!(!is_told(&bed, &bed.process(2, 6), false), "{protocol}: it was mended");
        }
    }
}

#[test]
fn a_host_that_comes_again_flushes_what_its_former_life_held() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let (dies, far) = (bed.process(0, 3), bed.process(1, 4));
        let counted = counter(&bed, &far);
        let guard = bed.acquire(&dies);
        count(&dies, &counted, true);
        std::mem::forget(guard);
        std::mem::forget(dies);
        bed.kill_first_host(&[3]);
        let again = bed.process(0, 6);
        let line = word_of(&counted).line();
        assert!(!bed.rack.dirty_lines(0).contains(&line), "{protocol}: it comes later");
        assert!(is_told(&bed, &far, true), "{protocol}");
        assert!(!is_told(&bed, &again, false), "{protocol}");
    }
}

#[test]
fn the_last_to_leave_flushes_what_the_dead_of_its_host_held() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let (dies, last, far) = (bed.process(0, 3), bed.process(0, 4), bed.process(1, 4));
        let counted = counter(&bed, &far);
        let guard = bed.acquire(&dies);
        count(&dies, &counted, true);
        std::mem::forget(guard);
        std::mem::forget(dies);
        bed.kill_first_host(&[3]);
        last.leave();
        let line = word_of(&counted).line();
        assert!(!bed.rack.dirty_lines(0).contains(&line), "{protocol}: it comes later");
        assert!(is_told(&bed, &far, false), "{protocol}");
    }
}

#[test]
fn a_panic_inside_is_told_like_a_death() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let (panics, far) = (bed.process(0, 4), bed.process(1, 4));
        let counted = counter(&bed, &panics);
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _guard = bed.acquire(&panics);
            count(&panics, &counted, true);
            panic!("inside");
        }));
        assert!(unwound.is_err());
        assert!(is_told(&bed, &far, false), "{protocol}");
        let line = word_of(&counted).line();
        assert!(!bed.rack.dirty_lines(0).contains(&line), "{protocol}: it comes later");
        assert!(is_told(&bed, &panics, true), "{protocol}");
    }
}

#[test]
fn a_waiter_that_gives_up_while_it_flushes_leaves_the_rest_to_the_next() {
    let bed = Bed::new(LockProtocol::Bakery);
    let (dies, beside, far) = (bed.process(0, 3), bed.process(0, 4), bed.process(1, 4));
    let counted = counter(&bed, &far);
    // As if all chunks were in use.
    beside.may_write(beside.layout().payload());
    let guard = bed.acquire(&dies);
    count(&dies, &counted, true);
    std::mem::forget(guard);
    bed.kill(3);
    let mut pending = beside.begin_shared(LOCK, &bed.clock);
    let line = word_of(&counted).line();
    // Up to a thorough look.
    while bed.rack.dirty_lines(0).contains(&line) && !matches!(pending.poll(), Ok(Some(_))) {
        assert!(far.try_lock_shared(LOCK, &bed.clock).unwrap().is_none(), "not released yet");
    }
    drop(pending);
    assert!(is_told(&bed, &far, false));
}

#[test]
fn heartbeats_go_on_while_much_is_flushed_and_untouched_chunks_are_left_out() {
    let geometry = Geometry { region_bytes: 64 << 20, chunk_bytes: 4 << 20, ..GEOMETRY };
    let bed = Bed::with(LockProtocol::Bakery, geometry);
    let dies = bed.process(0, 3);
    let chunks = dies.layout().chunks();
    let touched = [0, 1, chunks - 1].map(|chunk| dies.layout().chunk(crate::units::ChunkId(chunk)));
    touched.iter().for_each(|chunk| dies.may_write(Extent::new(chunk.offset(), 64).unwrap()));
    let untouched = dies.layout().chunk(crate::units::ChunkId(5)).offset();
    let lines = touched.map(|chunk| chunk.end() - 64).map(|at| WordOffset::new(at).unwrap());
    let guard = bed.acquire(&dies);
    for word in lines.iter().chain([&WordOffset::new(untouched).unwrap()]) {
        dies.fabric().store(*word, 1);
    }
    std::mem::forget(guard);
    bed.kill(3);
    let heartbeat = dies.layout().heartbeat(NodeId(0));
    let before = heartbeat.fresh(&bed.rack.host(1));
    bed.clock.others.borrow_mut()[0]();
    let beats = heartbeat.fresh(&bed.rack.host(1)) - before;
    assert!(beats >= 3, "{beats} beats while 12 MiB were flushed");
    let dirty = bed.rack.dirty_lines(0);
    assert!(lines.iter().all(|word| !dirty.contains(&word.line())));
    assert!(dirty.contains(&WordOffset::new(untouched).unwrap().line()), "nobody was told of it");
}

/// Much is to be flushed, and each thread that comes has a short time-out. The agent has no turn: a
/// living thread has the lock whenever it looks.
#[test]
fn waiters_that_give_up_while_they_flush_come_to_an_end_together() {
    let geometry = Geometry { region_bytes: 64 << 20, chunk_bytes: 4 << 20, ..GEOMETRY };
    let bed = Bed::with(LockProtocol::Bakery, geometry);
    let (dies, beside) = (bed.process(0, 3), [4, 6].map(|pid| bed.process(0, pid)));
    dies.may_write(dies.layout().payload());
    let last = WordOffset::new(dies.layout().payload().end() - 64).unwrap();
    let guard = bed.acquire(&dies);
    dies.fabric().store(last, 1);
    std::mem::forget(guard);
    bed.kill(3);
    // 4 MiB at each look, 5 looks a try.
    let had = (0..8).find_map(|time| beside[time % 2].lock_shared(LOCK, &bed.clock, 5).ok());
    let had = had.expect("somebody has flushed all of it");
    assert!(had.previous_holder_died());
    assert!(!bed.rack.dirty_lines(0).contains(&last.line()), "it comes later");
}

/// The tier of this life lies in another folder than that of the life before last, say in a
/// container's: the map in that one says nothing of the last life.
#[test]
fn a_host_that_comes_again_does_not_flush_by_the_map_of_an_older_life() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let far = bed.process(1, 4);
        let counted = counter(&bed, &far);
        bed.kill_first_host(&[]);
        // The second life, on the same machine, with a tier of its own.
        let elsewhere = SimulatedRack::sticky(1, 4096);
        let memory = elsewhere.host_memory(0, HostTier::words_of(&bed.geometry));
        let (identity, me) = (HostIdentity::simulated(0), ProcessIdentity::new(3, 1));
        let (fabric, dead) = (bed.rack.host(0), bed.dead.clone());
        let dies = Member::join(fabric, memory, 0, &identity, me, dead, &bed.clock).unwrap();
        let guard = bed.acquire(&dies);
        count(&dies, &counted, true);
        std::mem::forget(guard);
        std::mem::forget(dies);
        bed.kill(3);
        let _again = bed.process(0, 6);
        let line = word_of(&counted).line();
        assert!(!bed.rack.dirty_lines(0).contains(&line), "{protocol}: it comes later");
    }
}
