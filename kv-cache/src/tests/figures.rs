//! What the processes of a host have counted together, and what is in the pool.

use cxl_shm::verify::simulated::{Faults, Schedule};

use super::clear::keep_up;
use super::give_back::without_manager;
use super::recovery::slot_size;
use super::*;
use crate::{Histogram, Latency, Metrics, SummarySeen};

/// What came less what left is what is there.
fn check(cache: &TestCache<'_>, clock: &impl Clock, there: u64) -> Metrics {
    cache.locked(clock, |_| ());
    let sums = cache.host_figures().metrics();
    let came = sums.published_blocks + sums.promoted_blocks + sums.found_blocks;
    let bytes = sums.published_bytes + sums.promoted_bytes + sums.found_bytes;
    assert_eq!(came - sums.removed_blocks, there, "{sums:?}");
    assert_eq!(bytes - sums.removed_bytes, there * BLOCK_BYTES, "{sums:?}");
    let now = cache.occupancy(clock);
    assert_eq!((now.ready_blocks, now.writing_blocks), (there, 0));
    assert_eq!(now.used_bytes, there * slot_size().bytes());
    assert_eq!(now.free_bytes, cache.heap_use(clock).free_bytes);
    sums
}

#[test]
fn blocks_that_came_less_those_that_left_are_there() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (1..=6).map(|number| publish(a, clock, number)).collect();
        check(a, clock, 6);
        assert_eq!(a.retire(clock, &handles[..2]), 2);
        assert_eq!(a.evict(clock, None, 1), 1);
        drop(reserve(a, clock, 9));
        let block = reserve(a, clock, 10);
        store(a, block.payload(), &content(10));
        let restored = a.commit_restored(clock, vec![(block, checksum(&content(10)))]);
        assert!(restored[0].is_ok());
        let sums = check(a, clock, 4);
        assert_eq!((sums.published_blocks, sums.promoted_blocks), (6, 1));
        assert_eq!((sums.removed_blocks, sums.evicted_blocks), (3, 1));
        assert_eq!(a.process_state().metrics().published_blocks, 6);
        assert!(find_and_fetch(b, 10));
        assert_eq!(b.host_figures().metrics().fetched_blocks, 1);
        assert_eq!(b.host_figures().metrics().published_blocks, 0, "a word of another host");
        assert_eq!(a.host_figures().metrics().fetched_blocks, 0);
    });
}

#[test]
fn a_process_that_died_stays_in_the_sums() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        let other = rig.join(0);
        let cache = Cache::attach(&other, clock).unwrap();
        for number in 1..=3 {
            publish(&cache, clock, number);
        }
        cache.took(Latency::Publish, 0, clock);
        // A block is complete, and its process dies before it has counted that.
        let complete = reserve(&cache, clock, 4);
        store(&cache, complete.payload(), &content(4));
        let (state, checksum) = (BlockState::Ready, checksum(&content(4)));
        let handle = complete.descriptor.handle;
        std::mem::forget(other.lock_heap(clock));
        rewrite(&cache, handle, |block| Descriptor { state, checksum, ..block });
        std::mem::forget(complete);
        rig.kill(&other);
        let sums = check(a, clock, 4);
        assert_eq!((sums.published_blocks, sums.found_blocks), (3, 1));
        let publishes: Histogram = a.host_figures().latencies(Latency::Publish);
        assert_eq!((publishes.count(), a.process_state().metrics().published_blocks), (1, 0));
        a.retire(clock, &[handle]);
        check(a, clock, 3);
        crate::reclaim_dead_processes(a.member(), clock);
        crate::reclaim_dead_processes(a.member(), clock);
        assert_eq!(a.host_figures().metrics().ended_processes, 1);
    });
}

#[test]
fn a_host_that_joins_anew_finds_its_blocks() {
    let rig = Rig::new(2, 32, 16);
    let (first, second) = (rig.join(0), rig.join(1));
    {
        let clock = rig.serve(&[&first, &second]);
        let cache = Cache::attach(&second, &clock).unwrap();
        for number in 1..=3 {
            publish(&cache, &clock, number);
        }
        assert_eq!(check(&cache, &clock, 3).found_blocks, 0);
    }
    assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    let again = rig.join(1);
    let clock = rig.serve(&[&first, &again]);
    let cache = Cache::attach(&again, &clock).unwrap();
    assert_eq!(check(&cache, &clock, 3).found_blocks, 3);
}

/// What hosts say of themselves, as a tool sees it that had all of it in its caches before.
pub(super) fn summaries_seen_by_tools(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let (member, tool) = (a.member(), rig.rack.host(2));
        let seen = |cache: &TestCache<'_>| {
            let (superblock, layout) = (member.superblock(), member.layout());
            crate::summary_of(&tool, superblock, layout, cache.member().node()).unwrap()
        };
        assert_eq!((seen(a), seen(b)), (SummarySeen::Nothing, SummarySeen::Nothing));
        for number in 1..=3 {
            let handle = publish(a, clock, number);
            let held = hold(b, clock, number).unwrap();
            assert_eq!(fetch(b, number, handle), Ok(()));
            rig.rack.advance_ms(600);
            keep_up(a, clock);
            keep_up(b, clock);
            let incarnation = member.incarnation();
            let (number, blocks) = (u32::from(number), u64::from(number));
            let told = seen(a).of(incarnation).expect("told in this life");
            let owns = (told.number, told.ready_blocks, told.published_blocks, told.chunks);
            assert_eq!(owns, (number, blocks, blocks, 1));
            assert_eq!(told.published_bytes, blocks * BLOCK_BYTES);
            let reads = seen(b).of(b.member().incarnation()).expect("told in this life");
            assert_eq!((reads.number, reads.ready_blocks, reads.holds), (number, 0, 1));
            assert_eq!((reads.fetched_blocks, told.fetched_blocks), (blocks, 0));
            // Half a second is not over.
            keep_up(a, clock);
            assert_eq!(seen(a), SummarySeen::Told(told));
            b.release(clock, vec![held]);
        }
    });
}

#[test]
fn every_host_sees_what_each_host_says_of_itself() {
    summaries_seen_by_tools(SimulatedRack::sticky(3, REGION_BYTES));
}

#[test]
fn a_damaged_summary_is_none_until_the_next() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let (member, fabric) = (a.member(), b.member().fabric());
        let part = a.areas().summary(member.node()).part;
        let seen =
            || crate::summary_of(fabric, member.superblock(), member.layout(), member.node());
        keep_up(a, clock);
        assert!(matches!(seen(), Ok(SummarySeen::Told(_))));
        for line in 0..4 {
            let word = part.part(line, 1).unwrap().word(3).unwrap();
            word.claim().publish(fabric, 0xBAD);
            assert_eq!(seen(), Ok(SummarySeen::Unreadable), "line {line}");
            for _ in 0..2 {
                rig.rack.advance_ms(600);
                keep_up(a, clock);
            }
            assert!(matches!(seen(), Ok(SummarySeen::Told(_))), "line {line}");
        }
    });
}

/// A process dies before one of the operations of telling what its host has done. What another process tells
/// then has a number of its own, so no reader takes lines of both for one summary.
#[test]
fn a_summary_that_was_never_finished_has_a_number_of_its_own() {
    let told_until = |step: Option<u64>| {
        let rig = without_manager(1);
        let clock = rig.rack.clock(0);
        let (survivor, dying) = (rig.join(0), rig.join(0));
        let identity = {
            let mut all = dying.processes().into_iter();
            all.find(|(slot, _)| *slot == dying.process()).unwrap().1
        };
        let a = Cache::attach(&survivor, &clock).unwrap();
        for _ in 0..8 {
            keep_up(&a, &clock);
            rig.rack.advance_ms(600);
        }
        let part = a.areas().summary(survivor.node()).part;
        let numbers = || {
            survivor.fabric().refresh(part.range());
            let number =
                |line| part.part(line, 1).unwrap().word(0).unwrap().cached(survivor.fabric());
            [0, 1, 2, 3].map(|line| number(line) >> 32)
        };
        assert_eq!(numbers(), [8; 4]);
        let deaths = rig.deaths.clone();
        let task = {
            let (rack, clock) = (rig.rack.clone(), rig.rack.clock(0));
            move || {
                let cache = Cache::attach(&dying, &clock).unwrap();
                // The other process tells no more.
                for _ in 0..2 {
                    keep_up(&cache, &clock);
                    rack.advance_ms(600);
                }
            }
        };
        let mut schedule = Schedule::builder(&rig.rack, 1)
            .faults(Faults::NONE)
            .task(0, "dying", task)
            .on_crash(move |_| deaths.0.lock().unwrap().extend([identity]));
        if let Some(step) = step {
            schedule = schedule.crash_process_at("dying", step);
        }
        let report = schedule.run();
        let last = numbers().into_iter().max();
        for _ in 0..2 {
            rig.rack.advance_ms(600);
            keep_up(&a, &clock);
        }
        let now = numbers();
        assert!(now.iter().all(|number| *number == now[0]), "step {step:?}: {now:?}");
        assert!(Some(now[0]) > last, "step {step:?}: {now:?} after {last:?}");
        report.task("dying").unwrap().steps
    };
    let steps = told_until(None);
    for step in 0..=steps {
        told_until(Some(step));
    }
}
