//! What vacant nodes published: read on, emptied by who lives when room is short, and taken over by
//! their next life.

use std::mem::forget;

use cxl_shm::layout::{NodeState, RecoveryStep};
use cxl_shm::member::{Deaths as DeathWatch, Fence, FenceOrder, FenceState, NodeDeath};
use cxl_shm::units::NodeId;

use super::*;
use crate::AttachError;
use crate::evict::Watermarks;
use crate::ward::{AGAIN_MS, Ward};

pub(super) const WARD: NodeId = NodeId(1);

/// The power of the host is off.
pub(super) struct Off;

impl Fence for Off {
    fn poll(&mut self, _: &FenceOrder, _: u64) -> FenceState {
        FenceState::Fenced
    }
}

/// The host of `victim`'s node loses power; it is declared dead and, with a `fence`, recovered.
pub(super) fn bury<'m>(
    rig: &Rig,
    clock: &ServingClock<'m>,
    wall: &'m SimulatedClock,
    victim: NodeId,
    mut fence: impl Fence,
    until: impl Fn(&NodeDeath) -> bool,
) {
    rig.rack.crash(victim.index());
    let member = clock.members[0];
    let mut deaths = DeathWatch::watch(&clock.manage.borrow(), wall, 0);
    let is_over = || {
        let death = NodeDeath::of(member.layout(), member.fabric(), victim);
        death.is_some_and(|death| until(&death))
    };
    while !is_over() {
        rig.rack.advance_ms(20);
        clock.pause(0);
        deaths.step(wall.now_ms(), true, &mut fence);
    }
}

pub(super) fn is_recovered(death: &NodeDeath) -> bool {
    death.step == Some(RecoveryStep::Done)
}

fn metadata(rig: &Rig) -> LineRange {
    LineRange::covering(Layout::new(rig.geometry).unwrap().metadata())
}

/// Blocks that node `WARD` has according to the device, in whatever state.
pub(super) fn blocks_of_ward(reader: &TestCache<'_>) -> Vec<Descriptor> {
    let mut blocks = Vec::new();
    reader.segment(WARD).unwrap().scan(reader.member().fabric(), |_, content| {
        if let Ok(SlotContent::Block(block)) = content {
            blocks.push(block);
        }
    });
    blocks
}

pub(super) fn there(cache: &TestCache<'_>, numbers: impl IntoIterator<Item = u8>) -> Vec<u8> {
    numbers.into_iter().filter(|number| find_and_fetch(cache, *number)).collect()
}

/// Lets a guardian stop at its third pause.
struct Waiting<'c, 'm> {
    clock: &'c ServingClock<'m>,
    guardian: &'c TestCache<'m>,
    pauses: Cell<u32>,
}

impl Clock for Waiting<'_, '_> {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn pause(&self, tries: u32) {
        self.clock.pause(tries);
        self.pauses.set(self.pauses.get() + 1);
        if self.pauses.get() == 3 {
            self.guardian.leave_ward(self.clock);
        }
    }
}

/// All that becomes of a ward, step by step, with caches that hold everything as it was before; also
/// run with flushes and fences removed.
pub(super) fn guardians_and_homecomings(rack: SimulatedRack) {
    let rig = Rig::on(rack, 3, 32, 16);
    let wall = rig.rack.clock(0);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    {
        let clock = rig.serve(&[&first, &second, &third]);
        let [a, b, c] = [&first, &second, &third].map(|it| Cache::attach(it, &clock).unwrap());
        for number in 1..=8 {
            publish(&b, &clock, number);
        }
        assert_eq!(there(&a, 1..=10).len(), 8);
        rig.rack.warm(0, metadata(&rig));
        rig.rack.warm(2, metadata(&rig));
        // In a chunk of their own: two blocks, and one that is being written.
        publish(&b, &clock, 9);
        publish(&b, &clock, 10);
        forget(reserve(&b, &clock, 11));
        let state = BlockState::Evicting;
        rewrite(&b, find(&b, 1).unwrap(), |block| Descriptor { state, ..block });
        assert_eq!(there(&c, 1..=11), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert!(!a.take_ward(&clock, WARD), "it lives");
        assert!(!a.empty_a_ward(&clock, CHUNK_TIMEOUT_MS));
    }
    rig.kill(&second);
    let clock = rig.serve(&[&first, &third]);
    bury(&rig, &clock, &wall, WARD, Off, is_recovered);
    let [a, c] = [&first, &third].map(|it| Cache::attach(it, &clock).unwrap());

    // The chunk with the fewest blocks goes first; the rest is read on.
    assert_eq!(there(&c, 1..=11), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    c.release(&clock, vec![hold(&c, &clock, 1).unwrap()]);
    // Also for a host whose caches know of the other one only.
    assert!(c.empty_a_ward(&clock, CHUNK_TIMEOUT_MS));
    // What the dead was about to do with a block is undone, for everybody to see.
    assert!(blocks_of_ward(&c).iter().all(|block| block.state == BlockState::Ready));
    let held = hold(&c, &clock, 1).unwrap();
    assert_eq!(blocks_of_ward(&c).len(), 8);
    assert_eq!(third.chunks_of(WARD).len(), 1);
    for cache in [&a, &c] {
        assert_eq!(there(cache, 1..=11), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
    // A guardian stops in the middle. The next, whose caches know of the time before, undoes that,
    // though what is held keeps the chunk.
    rig.rack.warm(0, metadata(&rig));
    assert!(c.take_ward(&clock, WARD));
    Ward::of(&c, WARD).announce(&blocks_of_ward(&c));
    c.leave_ward(&clock);
    assert!(!a.empty_a_ward(&clock, CHUNK_TIMEOUT_MS));
    assert!(blocks_of_ward(&c).iter().all(|block| block.state == BlockState::Ready));
    assert!(a.take_ward(&clock, WARD));
    let blocks = blocks_of_ward(&a);
    let ward = Ward::of(&a, WARD);
    ward.announce(&blocks);
    assert_eq!(hold(&c, &clock, 2).unwrap_err(), Miss::NotReady.into(), "it may be about to go");
    c.release(&clock, Vec::new());
    ward.settle(&blocks);
    c.release(&clock, vec![hold(&c, &clock, 2).unwrap()]);
    ward.announce(&blocks);
    let decision = ward.decide(&blocks, &clock);
    assert_eq!((decision.stay.len(), decision.leave.len()), (1, 7));
    ward.carry_out(&decision);
    // While there is a guardian only what says READY is held.
    let again = c.hold(&clock, &[wanted(1, held.handle())], HOLD_MS).remove(0).unwrap();
    a.leave_ward(&clock);
    assert_eq!(there(&c, 1..=11), [1]);
    c.release(&clock, vec![held, again]);
    assert!(!a.empty_a_ward(&clock, CHUNK_TIMEOUT_MS), "it was looked at a moment ago");
    rig.rack.advance_ms(AGAIN_MS);
    assert!(a.empty_a_ward(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!((third.chunks_of(WARD).len(), there(&c, 1..=11).len()), (0, 0));
    assert!(!a.empty_a_ward(&clock, CHUNK_TIMEOUT_MS), "nothing is left");

    // Its next life publishes again, and dies.
    let lost = rig.join(1);
    {
        let b = Cache::attach(&lost, &clock).unwrap();
        assert_eq!(b.heap_use(&clock).blocks, 0);
        for number in 20..24 {
            publish(&b, &clock, number);
        }
    }
    rig.kill(&lost);
    bury(&rig, &clock, &wall, WARD, Off, is_recovered);
    (0..3).for_each(|host| rig.rack.warm(host, metadata(&rig)));
    assert!(a.take_ward(&clock, WARD));
    assert!(!c.take_ward(&clock, WARD), "one at a time");
    let lost = rig.join(1);
    rig.rack.warm(1, metadata(&rig));
    // The guardian is in the middle of a batch.
    let ward = Ward::of(&a, WARD);
    let block: Vec<_> = blocks_of_ward(&a).into_iter().filter(|it| it.key == key(20)).collect();
    ward.announce(&block);
    ward.carry_out(&ward.decide(&block, &clock));
    let waiting = Waiting { clock: &clock, guardian: &a, pauses: Cell::new(0) };
    {
        let b = Cache::attach(&lost, &waiting).unwrap();
        assert!(waiting.pauses.get() >= 3, "it waits for its guardian");
        assert_eq!(b.heap_use(&clock).blocks, 3);
        for cache in [&a, &b, &c] {
            assert_eq!(there(cache, 20..24), [21, 22, 23]);
        }
        assert!(!a.take_ward(&clock, WARD), "it lives again");
        publish(&b, &clock, 20);
    }
    rig.kill(&lost);
    bury(&rig, &clock, &wall, WARD, Off, is_recovered);

    // A process dies as guardian, in the middle of a store.
    let other = rig.join(0);
    let cache = Cache::attach(&other, &clock).unwrap();
    assert!(cache.take_ward(&clock, WARD));
    assert!(!a.take_ward(&clock, WARD), "another process of the host is at it");
    let handle = find(&a, 21).unwrap();
    let line = a.areas().segment_of(handle).unwrap().range(handle.slot()).start();
    other.fabric().write_line(line, &[0; 8]);
    rig.kill(&other);
    forget(cache);
    a.reap(&clock);
    assert!(c.take_ward(&clock, WARD));
    c.leave_ward(&clock);
    let lost = rig.join(1);
    let b = Cache::attach(&lost, &clock).unwrap();
    assert_eq!(b.heap_use(&clock).blocks, 3, "what it wrote has arrived");
    assert_eq!(there(&c, 20..24), [20, 22, 23]);
    publish(&b, &clock, 21);
    forget(b);
    rig.kill(&lost);
    bury(&rig, &clock, &wall, WARD, Off, is_recovered);
    // All of it is seen by a guardian that has seen the slots before.
    assert!(a.empty_a_ward(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!(blocks_of_ward(&c), []);
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (M1)");
}

#[test]
fn a_ward_has_one_guardian_at_a_time_and_then_itself() {
    guardians_and_homecomings(SimulatedRack::sticky(3, REGION_BYTES));
}

#[test]
fn who_lives_uses_the_room_of_the_dead() {
    let rig = Rig::new(3, 64, 64);
    let wall = rig.rack.clock(0);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    let chunks = first.layout().chunks();
    {
        let clock = rig.serve(&[&first, &second, &third]);
        let b = Cache::attach(&second, &clock).unwrap();
        for number in 0..24 {
            publish(&b, &clock, number);
        }
        forget(reserve(&b, &clock, 24));
        // The rest of the region is taken.
        while third.allocate_chunk(&clock, CHUNK_TIMEOUT_MS, 5).is_ok() {}
        assert_eq!(third.owned_chunks().len() + second.owned_chunks().len(), chunks as usize);
    }
    rig.kill(&second);
    let clock = rig.serve(&[&first, &third]);
    bury(&rig, &clock, &wall, WARD, Off, is_recovered);
    let [a, c] = [&first, &third].map(|it| Cache::attach(it, &clock).unwrap());
    let held = hold(&c, &clock, 3).unwrap();
    assert_eq!(there(&c, 0..24).len(), 24);
    // A publish that finds no room makes it there; what is in use in the background follows.
    for number in 100..150 {
        publish(&a, &clock, number);
        a.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        assert!(find_and_fetch(&c, number) && find_and_fetch(&c, 3), "block {number}");
    }
    let metrics = a.local().metrics();
    assert_eq!((metrics.refused, metrics.inherited_chunks), (0, 3));
    assert_eq!((first.owned_chunks().len(), first.chunks_of(WARD).len()), (3, 1));
    let left = blocks_of_ward(&c);
    assert_eq!(left.len(), 8, "those beside the one that is held");
    assert!(left.iter().all(|block| block.state == BlockState::Ready));
    c.release(&clock, vec![held]);
    rig.rack.advance_ms(AGAIN_MS);
    assert!(a.empty_a_ward(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!((blocks_of_ward(&c).len(), first.chunks_of(WARD).len()), (0, 0));

    // The host comes back to nothing, and works.
    let again = rig.join(1);
    let b = Cache::attach(&again, &clock).unwrap();
    assert_eq!(b.heap_use(&clock).blocks, 0);
    publish(&b, &clock, 1);
    assert!(find_and_fetch(&c, 1));
    assert_eq!(rig.rack.conflicts(), []);
}

#[test]
fn a_next_life_says_who_is_in_its_way_until_that_is_fenced() {
    let rig = Rig::new(3, 32, 16);
    let wall = rig.rack.clock(2);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    {
        let clock = rig.serve(&[&third, &second, &first]);
        publish(&Cache::attach(&second, &clock).unwrap(), &clock, 1);
    }
    rig.kill(&second);
    {
        let clock = rig.serve(&[&third, &first]);
        bury(&rig, &clock, &wall, WARD, Off, is_recovered);
        let a = Cache::attach(&first, &clock).unwrap();
        assert!(a.take_ward(&clock, WARD));
    }
    // It is declared dead, and may write on.
    rig.kill(&first);
    let again = rig.join(1);
    let clock = rig.serve(&[&third, &again]);
    bury(&rig, &clock, &wall, first.node(), cxl_shm::member::NoFence, |_| true);
    let c = Cache::attach(&third, &clock).unwrap();
    let error = Cache::attach(&again, &clock).unwrap_err();
    assert!(
        matches!(error, AttachError::BeingEmptied(it) if it.guardian == first.node()),
        "{error}"
    );
    assert_eq!(crate::reclaim_dead_processes(&again, &clock), 0);
    assert!(find_and_fetch(&c, 1), "nothing of it was touched");
    bury(&rig, &clock, &wall, first.node(), Off, is_recovered);
    let state = again.layout().node_line(first.node()).fresh(again.fabric()).unwrap().state();
    assert_eq!(state, Some(NodeState::Dead));
    let b = Cache::attach(&again, &clock).unwrap();
    assert_eq!(b.heap_use(&clock).blocks, 1);
    // The guardian lives again, without a ward.
    let first = rig.join(0);
    let a = Cache::attach(&first, &clock).unwrap();
    assert!(!a.take_ward(&clock, WARD), "it lives");
    assert_eq!(rig.rack.conflicts(), []);
}
