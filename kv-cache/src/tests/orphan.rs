//! What vacant nodes published: still read, emptied by live hosts when room is short, and taken
//! over by their next life.

use std::mem::forget;

use cxl_shm::layout::{NodeState, RecoveryStep};
use cxl_shm::lifecycle::{Deaths as DeathWatch, Fence, FenceOrder, FenceState, NodeDeath};
use cxl_shm::units::NodeId;

use super::*;
use crate::AttachError;
use crate::reclaim::{AGAIN_MS, Orphan};
use crate::upkeep::Watermarks;

pub(super) const ORPHAN: NodeId = NodeId(1);

/// The power of the host is off.
pub(super) struct Off;

impl Fence for Off {
    fn poll(&mut self, _: &FenceOrder, _: u64) -> FenceState {
        FenceState::Fenced
    }
}

/// The host of `victim`'s node loses power; it is declared dead and, with a `fence`, recovered.
pub(super) fn declare_dead<'m>(
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

/// Blocks that node `ORPHAN` has according to the device, in whatever state.
pub(super) fn blocks_of_orphan(reader: &TestCache<'_>) -> Vec<Descriptor> {
    let mut blocks = Vec::new();
    reader.segment(ORPHAN).unwrap().scan(reader.member().fabric(), |_, content| {
        if let Ok(SlotContent::Block(block)) = content {
            blocks.push(block);
        }
    });
    blocks
}

pub(super) fn there(cache: &TestCache<'_>, numbers: impl IntoIterator<Item = u8>) -> Vec<u8> {
    numbers.into_iter().filter(|number| find_and_fetch(cache, *number)).collect()
}

/// Lets a reclaimer stop at its third pause.
struct Waiting<'c, 'm> {
    clock: &'c ServingClock<'m>,
    reclaimer: &'c TestCache<'m>,
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
            self.reclaimer.leave_orphan(self.clock);
        }
    }
}

/// All that becomes of an orphan, step by step, with caches that hold everything as it was before;
/// also run with flushes and fences removed.
pub(super) fn reclaimers_and_rejoins(rack: SimulatedRack) {
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
        assert!(!a.take_orphan(&clock, ORPHAN), "it lives");
        assert!(!a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    }
    rig.kill(&second);
    let clock = rig.serve(&[&first, &third]);
    declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);
    let [a, c] = [&first, &third].map(|it| Cache::attach(it, &clock).unwrap());

    // The chunk with the fewest blocks goes first; the rest is read on.
    assert_eq!(there(&c, 1..=11), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    c.release(&clock, vec![hold(&c, &clock, 1).unwrap()]);
    // Also for a host whose caches know of the other one only.
    assert!(c.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    // What the dead was about to do with a block is undone, for everybody to see.
    assert!(blocks_of_orphan(&c).iter().all(|block| block.state == BlockState::Ready));
    let held = hold(&c, &clock, 1).unwrap();
    assert_eq!(blocks_of_orphan(&c).len(), 8);
    assert_eq!(third.chunks_of(ORPHAN).len(), 1);
    for cache in [&a, &c] {
        assert_eq!(there(cache, 1..=11), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
    // A reclaimer stops in the middle. The next, whose caches know of the time before, undoes that,
    // though what is held keeps the chunk.
    rig.rack.warm(0, metadata(&rig));
    assert!(c.take_orphan(&clock, ORPHAN));
    Orphan::of(&c, ORPHAN).announce(&blocks_of_orphan(&c));
    c.leave_orphan(&clock);
    assert!(!a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    assert!(blocks_of_orphan(&c).iter().all(|block| block.state == BlockState::Ready));
    assert!(a.take_orphan(&clock, ORPHAN));
    let blocks = blocks_of_orphan(&a);
    let orphan = Orphan::of(&a, ORPHAN);
    orphan.announce(&blocks);
    assert_eq!(hold(&c, &clock, 2).unwrap_err(), Miss::NotReady.into(), "it may be about to go");
    c.release(&clock, Vec::new());
    orphan.resolve(&blocks);
    c.release(&clock, vec![hold(&c, &clock, 2).unwrap()]);
    let decision = orphan.decide(orphan.announce(&blocks), &clock);
    assert_eq!((decision.stay.len(), decision.leave.len()), (1, 7));
    orphan.commit(&decision);
    // While there is a reclaimer only what says READY is held.
    let again = c.hold(&clock, &[wanted(1, held.handle())], HOLD_MS).remove(0).unwrap();
    a.leave_orphan(&clock);
    assert_eq!(there(&c, 1..=11), [1]);
    c.release(&clock, vec![held, again]);
    assert!(!a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS), "it was looked at a moment ago");
    rig.rack.advance_ms(AGAIN_MS);
    assert!(a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!((third.chunks_of(ORPHAN).len(), there(&c, 1..=11).len()), (0, 0));
    // INDEX-S2: searches of others end where the first of its blocks was.
    c.segment(ORPHAN).unwrap().scan(c.member().fabric(), |slot, content| {
        let ends =
            matches!(content, Ok(SlotContent::Blank | SlotContent::Free { ends_search: true, .. }));
        assert!(ends, "slot {slot}: {content:?}");
    });
    assert!(!a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS), "nothing is left");

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
    declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);
    (0..3).for_each(|host| rig.rack.warm(host, metadata(&rig)));
    assert!(a.take_orphan(&clock, ORPHAN));
    assert!(!c.take_orphan(&clock, ORPHAN), "one at a time");
    let lost = rig.join(1);
    rig.rack.warm(1, metadata(&rig));
    // The reclaimer is in the middle of a batch.
    let orphan = Orphan::of(&a, ORPHAN);
    let block: Vec<_> = blocks_of_orphan(&a).into_iter().filter(|it| it.key == key(20)).collect();
    orphan.commit(&orphan.decide(orphan.announce(&block), &clock));
    let waiting = Waiting { clock: &clock, reclaimer: &a, pauses: Cell::new(0) };
    {
        let b = Cache::attach(&lost, &waiting).unwrap();
        assert!(waiting.pauses.get() >= 3, "it waits for its reclaimer");
        assert_eq!(b.heap_use(&clock).blocks, 3);
        for cache in [&a, &b, &c] {
            assert_eq!(there(cache, 20..24), [21, 22, 23]);
        }
        assert!(!a.take_orphan(&clock, ORPHAN), "it lives again");
        publish(&b, &clock, 20);
    }
    rig.kill(&lost);
    declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);

    // A process dies as reclaimer, in the middle of a store.
    let other = rig.join(0);
    let cache = Cache::attach(&other, &clock).unwrap();
    assert!(cache.take_orphan(&clock, ORPHAN));
    assert!(!a.take_orphan(&clock, ORPHAN), "another process of the host is at it");
    let handle = find(&a, 21).unwrap();
    let line = a.areas().segment_of(handle).unwrap().range(handle.slot()).start();
    other.fabric().write_line(line, &[0; 8]);
    rig.kill(&other);
    forget(cache);
    a.reap(&clock);
    assert!(c.take_orphan(&clock, ORPHAN));
    c.leave_orphan(&clock);
    let lost = rig.join(1);
    let b = Cache::attach(&lost, &clock).unwrap();
    assert_eq!(b.heap_use(&clock).blocks, 3, "what it wrote has arrived");
    assert_eq!(there(&c, 20..24), [20, 22, 23]);
    publish(&b, &clock, 21);
    forget(b);
    rig.kill(&lost);
    declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);
    // All of it is seen by a reclaimer that has seen the slots before.
    assert!(a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!(blocks_of_orphan(&c), []);
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
}

#[test]
fn an_orphan_has_one_reclaimer_at_a_time_and_then_itself() {
    reclaimers_and_rejoins(SimulatedRack::sticky(3, REGION_BYTES));
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
    declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);
    let [a, c] = [&first, &third].map(|it| Cache::attach(it, &clock).unwrap());
    let held = hold(&c, &clock, 3).unwrap();
    assert_eq!(there(&c, 0..24).len(), 24);
    // A publish that finds no room makes it there; what is in use in the background follows.
    for number in 100..150 {
        publish(&a, &clock, number);
        a.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        assert!(find_and_fetch(&c, number) && find_and_fetch(&c, 3), "block {number}");
    }
    let metrics = a.process_state().metrics();
    assert_eq!((metrics.refused, metrics.inherited_chunks), (0, 3));
    assert_eq!((first.owned_chunks().len(), first.chunks_of(ORPHAN).len()), (3, 1));
    let left = blocks_of_orphan(&c);
    assert_eq!(left.len(), 8, "those beside the one that is held");
    assert!(left.iter().all(|block| block.state == BlockState::Ready));
    c.release(&clock, vec![held]);
    rig.rack.advance_ms(AGAIN_MS);
    assert!(a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!((blocks_of_orphan(&c).len(), first.chunks_of(ORPHAN).len()), (0, 0));

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
        declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);
        let a = Cache::attach(&first, &clock).unwrap();
        assert!(a.take_orphan(&clock, ORPHAN));
    }
    // It is declared dead, and may write on.
    rig.kill(&first);
    let again = rig.join(1);
    let clock = rig.serve(&[&third, &again]);
    declare_dead(&rig, &clock, &wall, first.node(), cxl_shm::lifecycle::NoFence, |_| true);
    let c = Cache::attach(&third, &clock).unwrap();
    let error = Cache::attach(&again, &clock).unwrap_err();
    assert!(
        matches!(error, AttachError::ReclaimInProgress(it) if it.reclaimer == first.node()),
        "{error}"
    );
    assert_eq!(crate::reclaim_dead_processes(&again, &clock), 0);
    assert!(find_and_fetch(&c, 1), "nothing of it was touched");
    declare_dead(&rig, &clock, &wall, first.node(), Off, is_recovered);
    let state = again.layout().node_line(first.node()).fresh(again.fabric()).unwrap().state();
    assert_eq!(state, Some(NodeState::Dead));
    let b = Cache::attach(&again, &clock).unwrap();
    assert_eq!(b.heap_use(&clock).blocks, 1);
    // The reclaimer lives again, without an orphan.
    let first = rig.join(0);
    let a = Cache::attach(&first, &clock).unwrap();
    assert!(!a.take_orphan(&clock, ORPHAN), "it lives");
    assert_eq!(rig.rack.conflicts(), []);
}
