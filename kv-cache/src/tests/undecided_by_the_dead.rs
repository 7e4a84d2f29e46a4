//! Blocks that say EVICTING, and whose owner does not come to a decision.

use super::orphan::{ORPHAN, Off, declare_dead, is_recovered};
use super::*;
use crate::upkeep::Watermarks;

/// Counts how often somebody waits.
struct CountedPauses<'c, 'm> {
    clock: &'c ServingClock<'m>,
    pauses: Cell<u32>,
}

impl Clock for CountedPauses<'_, '_> {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn pause(&self, tries: u32) {
        self.pauses.set(self.pauses.get() + 1);
        self.clock.pause(tries);
    }
}

/// The owner announces that the block may leave, and comes no further.
fn announce(owner: &TestCache<'_>, clock: &impl Clock, handle: Handle) {
    owner.locked(clock, |heap| heap.writer().announce(heap.ready(&[handle.slot()])));
}

#[test]
fn a_block_that_its_dead_owner_was_about_to_evict_is_held_at_once() {
    for left in [false, true] {
        let rig = Rig::new(3, 32, 16);
        let wall = rig.rack.clock(0);
        let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
        let handle = {
            let clock = rig.serve(&[&first, &second, &third]);
            let b = Cache::attach(&second, &clock).unwrap();
            let handle = publish(&b, &clock, 1);
            announce(&b, &clock, handle);
            handle
        };
        let clock = rig.serve(&[&first, &third]);
        if left {
            assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
        } else {
            rig.kill(&second);
            declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);
        }
        let [a, c] = [&first, &third].map(|it| Cache::attach(it, &clock).unwrap());
        assert_eq!(find(&c, 1), Some(handle));
        let counted = CountedPauses { clock: &clock, pauses: Cell::new(0) };
        let held = hold(&c, &counted, 1).unwrap();
        assert_eq!(counted.pauses.get(), 0, "nobody decides whom it could wait for");
        assert_eq!(fetch(&c, 1, held.handle()), Ok(()));
        // A process that comes later announces the block again, and sees the reader word.
        assert!(!a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
        assert_eq!(fetch(&c, 1, held.handle()), Ok(()));
        let again = rig.join(1);
        let b = Cache::attach(&again, &clock).unwrap();
        assert_eq!(b.evict(&clock, None, usize::MAX), 0);
        assert_eq!(fetch(&c, 1, held.handle()), Ok(()));
        c.release(&clock, vec![held]);
        assert_eq!(b.evict(&clock, None, usize::MAX), 1);
        assert_eq!(rig.rack.conflicts(), []);
    }
}

#[test]
fn a_block_beside_a_reclaimer_is_not_held_before_that_has_decided() {
    let rig = Rig::new(3, 32, 16);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    {
        let clock = rig.serve(&[&first, &second, &third]);
        publish(&Cache::attach(&second, &clock).unwrap(), &clock, 1);
    }
    assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    let clock = rig.serve(&[&first, &third]);
    let [a, c] = [&first, &third].map(|it| Cache::attach(it, &clock).unwrap());
    let handle = find(&c, 1).unwrap();
    for reclaimer in [&a, &c] {
        // Of another host, and of the reader's own.
        assert!(reclaimer.take_orphan(&clock, ORPHAN));
        let orphan = crate::reclaim::Orphan::of(reclaimer, ORPHAN);
        let blocks = super::orphan::blocks_of_orphan(&a);
        orphan.announce(&blocks);
        let held = c.hold(&clock, &[wanted(1, handle)], HOLD_MS).remove(0);
        assert_eq!(held.unwrap_err(), HoldError::Miss(Miss::NotReady));
        c.release(&clock, Vec::new());
        orphan.resolve(&blocks);
        reclaimer.leave_orphan(&clock);
    }
    let held = c.hold(&clock, &[wanted(1, handle)], HOLD_MS).remove(0).unwrap();
    c.release(&clock, vec![held]);
}

#[test]
fn a_block_whose_owner_has_stopped_is_published_anew_and_found_again_when_it_goes_on() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        assert_eq!(find(b, 1), Some(handle));
        announce(a, clock, handle);
        assert_eq!(hold(b, clock, 1).unwrap_err(), HoldError::Miss(Miss::NotReady));
        // Who has the handle reads it as ever (EVICT-H2). No lookup waits for it a second time.
        assert_eq!(fetch(b, 1, handle), Ok(()));
        assert_eq!(find(b, 1), None);
        let copy = publish(b, clock, 1);
        assert_eq!(find(b, 1), Some(copy));
        let held = hold(b, clock, 1).unwrap();
        b.release(clock, vec![held]);
        (0..50).for_each(|_| assert_eq!(find(b, 1), Some(copy), "not decided yet"));

        // It continues, and the block stays. No log tells of that.
        let areas = Areas::new(*a.member().layout(), a.geometry());
        let segment = areas.own_segment(a.member().node(), a.member().area());
        let Ok(SlotContent::Block(block)) = segment.own(a.member().fabric(), handle.slot()) else {
            panic!("it is there");
        };
        segment.publish_as(a.member().fabric(), &[block], BlockState::Ready);
        assert!((0..64).any(|_| find(b, 1) == Some(handle)), "as all readers do (INDEX-R4)");
        b.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        let held = hold(b, clock, 1).unwrap();
        assert_eq!(held.handle(), handle);
        b.release(clock, vec![held]);
    });
}
