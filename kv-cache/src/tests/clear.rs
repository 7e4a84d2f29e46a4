//! Namespaces that are cleared, on all nodes.

use super::*;
use crate::format::{Directive, DirectiveLine};
use crate::tests::orphan::there;
use crate::upkeep::Watermarks;
use crate::{Clearing, DirectiveError};
use cxl_shm::lifecycle::LeaveOutcome;

pub(super) fn tenant() -> Namespace {
    Namespace::new("tenant", b"")
}

/// Publishes a block under a key of its own that counts for `namespace`.
pub(super) fn publish_for(
    cache: &TestCache<'_>,
    clock: &impl Clock,
    namespace: &Namespace,
    number: u8,
) -> Handle {
    let reserved = cache.reserve_for(clock, namespace, &[spec(number)], CHUNK_TIMEOUT_MS).remove(0);
    let Reservation::Writing(block) = reserved else { panic!("{reserved:?}") };
    let bytes = content(number);
    store(cache, block.payload(), &bytes);
    cache.commit(clock, vec![(block, checksum(&bytes))]).remove(0).unwrap().handle
}

pub(super) fn keep_up(cache: &TestCache<'_>, clock: &impl Clock) -> u64 {
    cache.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS).cleared_blocks
}

/// More directives than there are lines for, each carried out before the next, with what each host
/// saw before still in its caches.
pub(super) fn cleared_by_their_owner(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let other = publish(a, clock, 1);
        for round in 0..20 {
            let handle = publish_for(a, clock, &tenant(), 2);
            assert_eq!((keep_up(a, clock), keep_up(b, clock)), (0, 0));
            assert_eq!((find(b, 1), find(b, 2)), (Some(other), Some(handle)), "round {round}");
            // CLEAR-D3.
            let held = hold(b, clock, 2).unwrap();
            let (first, second) = (a.member().node(), b.member().node());
            let mut clearing = b.clear(clock, Some(&tenant())).unwrap();
            if round % 2 == 0 {
                // At once: nothing else that the asking host does makes the directive visible.
                assert_eq!(keep_up(a, clock), 1);
                assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![second]));
            } else {
                assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![first, second]));
                assert_eq!(keep_up(a, clock), 1);
            }
            assert_eq!(keep_up(b, clock), 0);
            assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![]));
            assert_eq!(open(b, 2, handle), Err(Miss::Absent));
            b.release(clock, vec![held]);
            assert_eq!((find(b, 1), find(b, 2)), (Some(other), None));
        }
        assert_eq!(fetch(b, 1, other), Ok(()), "another namespace");
    });
}

/// A node that leaves without an answer, and without blocks, is not waited for.
pub(super) fn cleared_while_a_node_leaves(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 64, 64);
    let (first, second) = (rig.join(0), rig.join(1));
    let clock = rig.serve(&[&first, &second]);
    let a = Cache::attach(&first, &clock).unwrap();
    let b = Cache::attach(&second, &clock).unwrap();
    publish_for(&a, &clock, &tenant(), 2);
    let mut clearing = a.clear(&clock, Some(&tenant())).unwrap();
    assert_eq!(keep_up(&a, &clock), 1);
    assert_eq!(a.cleared(&clock, &mut clearing), Ok(vec![second.node()]));
    drop((b, clock));
    assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    let clock = rig.rack.clock(0);
    assert_eq!(a.cleared(&clock, &mut clearing), Ok(vec![]));
}

#[test]
fn a_node_that_leaves_is_not_waited_for() {
    cleared_while_a_node_leaves(SimulatedRack::sticky(2, REGION_BYTES));
}

#[test]
fn a_namespace_is_cleared_by_the_owners_of_its_blocks() {
    cleared_by_their_owner(SimulatedRack::sticky(2, REGION_BYTES));
}

#[test]
fn all_namespaces_are_cleared_and_later_blocks_stay() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        publish(a, clock, 1);
        publish_for(b, clock, &tenant(), 2);
        let mut clearing = a.clear(clock, None).unwrap();
        assert_eq!((keep_up(a, clock), keep_up(b, clock)), (1, 1));
        assert_eq!(a.cleared(clock, &mut clearing), Ok(vec![]));
        let later = publish(a, clock, 1);
        assert_eq!((keep_up(a, clock), keep_up(b, clock)), (0, 0), "carried out once");
        assert_eq!((find(b, 1), find(a, 2)), (Some(later), None));
    });
}

#[test]
fn a_node_that_does_not_answer_bounds_what_is_asked() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        publish_for(a, clock, &tenant(), 2);
        let mut clearings: Vec<_> =
            (0..16).map(|_| b.clear(clock, Some(&tenant())).unwrap()).collect();
        let node = a.member().node();
        keep_up(b, clock);
        assert_eq!(b.clear(clock, None).err(), Some(DirectiveError::Unanswered { node }));
        // A node of which nobody keeps the blocks, and that has none, is not waited for.
        let clearing = clearings.last_mut().unwrap();
        rig.rack.advance_ms(1100);
        assert_eq!(b.cleared(clock, clearing), Ok(vec![node]));
        assert_eq!(keep_up(a, clock), 1);
        assert_eq!(b.cleared(clock, clearing), Ok(vec![]));
        let mut clearing = b.clear(clock, None).unwrap();
        keep_up(b, clock);
        assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![node]));
        rig.rack.advance_ms(1100);
        assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![]));
    });
}

#[test]
fn the_asking_node_clears_those_that_have_left() {
    let rig = Rig::new(2, 64, 64);
    let (first, second) = (rig.join(0), rig.join(1));
    let clock = rig.serve(&[&first, &second]);
    let a = Cache::attach(&first, &clock).unwrap();
    let b = Cache::attach(&second, &clock).unwrap();
    publish(&b, &clock, 1);
    publish_for(&b, &clock, &tenant(), 2);
    let _held = hold(&a, &clock, 2).unwrap();
    drop((b, clock));
    assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    let clock = rig.serve(&[&first]);
    let mut clearing = a.clear(&clock, Some(&tenant())).unwrap();
    keep_up(&a, &clock);
    assert_eq!(a.cleared(&clock, &mut clearing), Ok(vec![]));
    assert_eq!(clearing.orphaned_blocks, 1);
    assert_eq!(there(&a, [1, 2]), [1]);

    // Its next life answers, and loses nothing else.
    drop(clock);
    let second = rig.join(1);
    let clock = rig.serve(&[&first, &second]);
    let b = Cache::attach(&second, &clock).unwrap();
    assert_eq!(keep_up(&b, &clock), 0);
    assert_eq!(there(&a, [1, 2]), [1]);
    assert_eq!(rig.rack.conflicts(), []);
}

/// Lets a node leave when the clock is read for the first time.
struct Leaves {
    clock: SimulatedClock,
    node: RefCell<Option<TestMember>>,
}

impl Clock for Leaves {
    fn now_ms(&self) -> u64 {
        let node = self.node.borrow_mut().take();
        assert!(node.is_none_or(|node| node.leave() == LeaveOutcome::NodeLeft));
        self.clock.now_ms()
    }

    fn pause(&self, tries: u32) {
        self.clock.pause(tries);
    }
}

#[test]
fn a_node_that_leaves_between_two_looks_is_not_forgotten() {
    let rig = Rig::new(3, 64, 64);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    let mut clearing;
    {
        let clock = rig.serve(&[&first, &second, &third]);
        let [a, b, c] = [&first, &second, &third].map(|it| Cache::attach(it, &clock).unwrap());
        publish_for(&b, &clock, &tenant(), 2);
        publish_for(&c, &clock, &tenant(), 3);
        clearing = a.clear(&clock, Some(&tenant())).unwrap();
        keep_up(&a, &clock);
    }
    assert_eq!(third.leave(), LeaveOutcome::NodeLeft);
    let wall = rig.rack.clock(0);
    let a = Cache::attach(&first, &wall).unwrap();
    // While the blocks of the third are removed the second leaves.
    let node = second.node();
    let leaves = Leaves { clock: rig.rack.clock(0), node: RefCell::new(Some(second)) };
    assert_eq!(a.cleared(&leaves, &mut clearing), Ok(vec![node]));
    assert!(leaves.node.borrow().is_none());
    assert_eq!(there(&a, [2, 3]), [2]);
    assert_eq!(a.cleared(&wall, &mut clearing), Ok(vec![]));
    assert_eq!((there(&a, [2, 3]), clearing.orphaned_blocks), (vec![], 2));
}

/// A node asks for so many things as it has lines for. A process of it dies before it has counted the next
/// one, whose line it has written. Returns the last one that counts, which no node has answered.
pub(super) fn die_before_the_count(
    a: &TestCache<'_>,
    b: &TestCache<'_>,
    clock: &ServingClock<'_>,
) -> Clearing {
    for _ in 0..15 {
        a.clear(clock, Some(&tenant())).unwrap();
    }
    keep_up(a, clock);
    keep_up(b, clock);
    let last = a.clear(clock, Some(&tenant())).unwrap();
    let next = DirectiveLine::new(17, Directive::Clear(None));
    a.areas().own_directives(a.member().area()).line(17).publish(a.member().fabric(), &next);
    last
}

/// It was written over one that all nodes have answered.
#[test]
fn a_directive_that_was_not_counted_is_no_damage_that_is_mended() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let mut last = die_before_the_count(a, b, clock);
        let (first, second) = (a.member().node(), b.member().node());
        assert_eq!(a.cleared(clock, &mut last), Ok(vec![first, second]));
        let line = a.areas().directives(first).line(17).fresh(a.member().fabric()).unwrap();
        assert_eq!(line.directive(17), Some(Directive::Clear(None)));
    });
}
