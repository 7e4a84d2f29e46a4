//! Words of reclaimers that are gone, or damaged: they keep nobody out, and nothing is lost.

use std::mem::forget;

use cxl_shm::units::NodeId;

use super::orphan::{ORPHAN, Off, blocks_of_orphan, declare_dead, is_recovered, there};
use super::*;
use crate::reclaim::{AGAIN_MS, Orphan, end_reclaim};
use crate::reclaim_dead_processes;

/// A clock on which nobody waits.
struct AtOnce<'c, C>(&'c C);

impl<C: Clock> Clock for AtOnce<'_, C> {
    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    fn pause(&self, _: u32) {
        panic!("somebody waits");
    }
}

fn word_of(rig: &Rig, node: NodeId) -> u64 {
    let layout = Layout::new(rig.geometry).unwrap();
    layout.reclaimer(node).fresh(&rig.rack.host(2))
}

/// A process of host 0 as the reclaimer of `ORPHAN`, whose host lost power; it dies in the middle
/// of a store to what `ORPHAN` published. Others of its host live.
fn die_as_reclaimer(rig: &Rig, clock: &ServingClock<'_>, number: u8) {
    let other = rig.join(0);
    let cache = Cache::attach(&other, clock).unwrap();
    assert!(cache.take_orphan(clock, ORPHAN));
    let handle = find(&cache, number).unwrap();
    let line = cache.areas().segment_of(handle).unwrap().range(handle.slot()).start();
    other.fabric().write_line(line, &[0; 8]);
    rig.kill(&other);
    forget(cache);
}

/// `ORPHAN` has published blocks 1 to 4 and died.
fn with_orphan(nodes: u16) -> Rig {
    let rig = Rig::new(nodes, 32, 16);
    let wall = rig.rack.clock(2);
    let (second, third) = (rig.join(1), rig.join(2));
    {
        let clock = rig.serve(&[&third, &second]);
        let b = Cache::attach(&second, &clock).unwrap();
        for number in 1..=4 {
            publish(&b, &clock, number);
        }
    }
    rig.kill(&second);
    let clock = rig.serve(&[&third]);
    declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);
    drop(clock);
    assert_eq!(third.leave(), LeaveOutcome::NodeLeft);
    rig
}

#[test]
fn a_reclaimers_host_that_comes_back_without_a_cache_keeps_nobody_out() {
    let rig = with_orphan(3);
    let (first, third) = (rig.join(0), rig.join(2));
    {
        let clock = rig.serve(&[&third, &first]);
        die_as_reclaimer(&rig, &clock, 2);
    }
    // The last of its host: nobody declares it dead, and what its caches hold stays there.
    rig.kill(&first);
    drop(first);
    let first = rig.join(0);
    assert_eq!(word_of(&rig, first.node()), 0);
    let again = rig.join(1);
    let clock = rig.serve(&[&third, &first, &again]);
    let b = Cache::attach(&again, &clock).unwrap();
    assert_eq!(b.heap_use(&clock).blocks, 3, "what it wrote has arrived");
    assert_eq!(there(&b, 1..=4), [1, 3, 4]);
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
}

#[test]
fn a_reclaimers_host_that_leaves_keeps_nobody_out() {
    let rig = with_orphan(3);
    let (first, third) = (rig.join(0), rig.join(2));
    {
        let clock = rig.serve(&[&third, &first]);
        die_as_reclaimer(&rig, &clock, 2);
    }
    assert_eq!(first.leave(), LeaveOutcome::NodeLeft);
    assert_eq!(word_of(&rig, NodeId(0)), 0);
    let again = rig.join(1);
    let clock = rig.serve(&[&third, &again]);
    let b = Cache::attach(&again, &AtOnce(&clock)).unwrap();
    assert_eq!(b.heap_use(&clock).blocks, 3, "what it wrote has arrived");
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
}

#[test]
fn what_a_reclaimer_left_is_ended_beside_a_holder_of_the_heap() {
    let rig = with_orphan(3);
    let (first, third) = (rig.join(0), rig.join(2));
    let clock = rig.serve(&[&third, &first]);
    let beside = rig.join(0);
    die_as_reclaimer(&rig, &clock, 2);
    let inside = beside.lock_heap(&clock);
    end_reclaim(&first, &AtOnce(&clock));
    assert_eq!(word_of(&rig, first.node()), 0);
    drop(inside);
    let again = rig.join(1);
    let b = Cache::attach(&again, &AtOnce(&clock)).unwrap();
    assert_eq!(there(&b, 1..=4), [1, 3, 4], "what it wrote has arrived");
}

#[test]
fn two_that_looked_after_each_other_both_come_back() {
    let rig = with_orphan(3);
    let wall = rig.rack.clock(2);
    let third = rig.join(2);
    // Each dies as the reclaimer of the other.
    for (reclaimer, orphan) in [(0, 1), (1, 0)] {
        let member = rig.join(reclaimer);
        {
            let clock = rig.serve(&[&third, &member]);
            let cache = Cache::attach(&member, &clock).unwrap();
            assert!(cache.take_orphan(&clock, NodeId(orphan)));
        }
        rig.kill(&member);
        let clock = rig.serve(&[&third]);
        declare_dead(&rig, &clock, &wall, NodeId(reclaimer), Off, is_recovered);
        let node = NodeId(reclaimer);
        assert_ne!(word_of(&rig, node), 0, "nobody has cleared it");
    }
    let (first, second) = (rig.join(0), rig.join(1));
    let clock = rig.serve(&[&third, &first, &second]);
    for member in [&first, &second] {
        let cache = Cache::attach(member, &AtOnce(&clock)).unwrap();
        assert_eq!(there(&cache, 1..=4), [1, 2, 3, 4]);
    }
    assert_eq!(rig.rack.conflicts(), []);
}

#[test]
fn a_dead_reclaimer_is_fenced_for_good_whatever_becomes_of_its_slot() {
    let rig = with_orphan(3);
    let wall = rig.rack.clock(2);
    let (first, third) = (rig.join(0), rig.join(2));
    {
        let clock = rig.serve(&[&third, &first]);
        assert!(Cache::attach(&first, &clock).unwrap().take_orphan(&clock, ORPHAN));
    }
    rig.kill(&first);
    let clock = rig.serve(&[&third]);
    // The recovery goes no further than the fence.
    let fenced = |death: &cxl_shm::lifecycle::NodeDeath| !death.is_quarantined();
    declare_dead(&rig, &clock, &wall, first.node(), Off, fenced);
    let again = rig.join(1);
    assert!(Cache::attach(&again, &AtOnce(&clock)).is_ok());
}

#[test]
fn nobody_is_waited_for_where_the_dead_are_reclaimed() {
    let rig = with_orphan(3);
    let (first, third) = (rig.join(0), rig.join(2));
    let clock = rig.serve(&[&third, &first]);
    let a = Cache::attach(&first, &clock).unwrap();
    assert!(a.take_orphan(&clock, ORPHAN));
    let (again, other) = (rig.join(1), rig.join(1));
    rig.kill(&other);
    assert_eq!(again.gone_processes().len(), 1);
    assert_eq!(reclaim_dead_processes(&again, &AtOnce(&clock)), 0);
    assert_eq!(again.gone_processes(), [], "it had nothing of the cache");
    assert_eq!(blocks_of_orphan(&a).len(), 4, "nothing was touched");
}

#[test]
fn the_work_of_a_reclaimer_that_left_is_ended_without_any_dead() {
    let rig = with_orphan(3);
    let (first, third) = (rig.join(0), rig.join(2));
    let clock = rig.serve(&[&third, &first]);
    let other = rig.join(0);
    {
        let cache = Cache::attach(&other, &clock).unwrap();
        // It panics, and is unwound.
        assert!(cache.take_orphan(&clock, ORPHAN));
    }
    assert_eq!(other.leave(), LeaveOutcome::OthersRemain);
    assert_ne!(word_of(&rig, first.node()), 0);
    reclaim_dead_processes(&first, &AtOnce(&clock));
    assert_eq!(word_of(&rig, first.node()), 0);
    // Nor does who takes its place seem to continue with it.
    for _ in 0..2 {
        let beside = rig.join(0);
        let cache = Cache::attach(&beside, &clock).unwrap();
        assert!(cache.take_orphan(&clock, ORPHAN));
        drop(cache);
        let place = beside.process();
        assert_eq!(beside.leave(), LeaveOutcome::OthersRemain);
        assert_ne!(rig.join(0).process(), place, "the word names it");
        reclaim_dead_processes(&first, &AtOnce(&clock));
        let other = rig.join(0);
        assert_eq!(other.process(), place);
        assert_eq!(word_of(&rig, first.node()), 0);
    }
    // Not while it lives.
    let other = rig.join(0);
    let cache = Cache::attach(&other, &clock).unwrap();
    assert!(cache.take_orphan(&clock, ORPHAN));
    reclaim_dead_processes(&first, &AtOnce(&clock));
    assert_ne!(word_of(&rig, first.node()), 0);
    cache.leave_orphan(&clock);
}

#[test]
fn a_damaged_word_is_in_force_for_nobody_and_its_own_host_clears_it() {
    for damaged in [7 << 16, 1 << 32 | 40, u64::from(u16::MAX), u64::MAX] {
        let rig = with_orphan(4);
        let (first, third) = (rig.join(0), rig.join(2));
        let clock = rig.serve(&[&third, &first]);
        let (a, c) =
            (Cache::attach(&first, &clock).unwrap(), Cache::attach(&third, &clock).unwrap());
        first.reclaimer_word().publish(first.fabric(), damaged);
        assert!(c.take_orphan(&clock, ORPHAN), "{damaged:#x}: it names nobody");
        c.leave_orphan(&clock);
        assert!(a.take_orphan(&clock, ORPHAN), "{damaged:#x}: it is cleared on the way");
        a.leave_orphan(&clock);
        first.reclaimer_word().publish(first.fabric(), damaged);
        reclaim_dead_processes(&first, &AtOnce(&clock));
        assert_eq!(word_of(&rig, first.node()), 0, "{damaged:#x}");
    }
}

#[test]
fn a_word_of_a_slot_that_nobody_ever_had_is_damage() {
    let rig = with_orphan(4);
    let third = rig.join(2);
    let clock = rig.serve(&[&third]);
    let c = Cache::attach(&third, &clock).unwrap();
    let line = third.layout().reclaimer(NodeId(3)).range();
    let fabric = rig.rack.host(3);
    fabric.store(line.start().word(0).unwrap(), 1 << 32 | u64::from(ORPHAN.0 + 1));
    fabric.publish(line);
    assert_ne!(word_of(&rig, NodeId(3)), 0);
    assert!(c.take_orphan(&clock, ORPHAN));
    c.leave_orphan(&clock);
    let again = rig.join(1);
    assert!(Cache::attach(&again, &AtOnce(&clock)).is_ok());
}

#[test]
fn a_block_that_a_reclaimer_died_over_is_decided_on_by_the_next() {
    let rig = with_orphan(3);
    let (first, third) = (rig.join(0), rig.join(2));
    let clock = rig.serve(&[&third, &first]);
    let c = Cache::attach(&third, &clock).unwrap();
    let held = hold(&c, &clock, 2).unwrap();
    // Of the line that says EVICTING the state alone has arrived.
    let other = rig.join(0);
    let cache = Cache::attach(&other, &clock).unwrap();
    assert!(cache.take_orphan(&clock, ORPHAN));
    let line = cache.areas().segment_of(held.handle()).unwrap().range(held.handle().slot()).start();
    let whole = other.fabric().read_line(line);
    let block: Vec<_> =
        blocks_of_orphan(&cache).into_iter().filter(|it| it.key == key(2)).collect();
    Orphan::of(&cache, ORPHAN).announce(&block);
    let [arrived, ..] = other.fabric().read_line(line);
    assert_ne!(arrived, whole[0]);
    other.fabric().write_line(line, &[&[arrived], &whole[1..]].concat().try_into().unwrap());
    rig.kill(&other);
    forget(cache);
    let a = Cache::attach(&first, &clock).unwrap();
    reclaim_dead_processes(&first, &AtOnce(&clock));
    assert_eq!(blocks_of_orphan(&c).len(), 3, "nobody can read it");

    assert!(!a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS), "somebody holds a block in its chunk");
    assert_eq!(fetch(&c, 2, held.handle()), Ok(()));
    c.release(&clock, vec![held]);
    rig.rack.advance_ms(AGAIN_MS);
    assert!(a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!(blocks_of_orphan(&c), []);
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
}
