//! Chunks that are returned: their owner, whichever process dies or is faster meanwhile.

use cxl_shm::chunk::AllocateError;
use cxl_shm::layout::LockProtocol;
use cxl_shm::units::ChunkId;
use cxl_shm::verify::simulated::{Faults, Schedule};

use super::*;
use crate::Refusal;
use crate::heap::Quota;
use crate::heap::{ChunkUse, SlotSize};
use crate::process::ChunkWait;
use crate::reclaim_dead_processes;
use crate::upkeep::{GivenBack, Watermarks};

/// Blocks that are published after a death.
const AFTER: [u8; 4] = [2, 3, 4, 5];

fn wait() -> ChunkWait {
    ChunkWait::new(CHUNK_TIMEOUT_MS)
}

fn size(bytes: u64) -> SlotSize {
    SlotSize::for_block(bytes, CHUNK_BYTES).unwrap()
}

fn uses(cache: &TestCache<'_>, clock: &impl Clock) -> Vec<ChunkUse> {
    cache.locked(clock, |heap| heap.directory.chunk_uses())
}

/// Takes chunks of the region until it has `chunk`.
fn take(member: &TestMember, clock: &impl Clock, chunk: ChunkId, size: SlotSize) {
    while member.allocate_chunk(clock, CHUNK_TIMEOUT_MS, size.purpose()).unwrap() != chunk {}
}

/// A rack whose hosts need no lock manager.
pub(super) fn without_manager(nodes: u16) -> Rig {
    let mut rig = Rig::new(nodes, 32, 16);
    rig.rack = SimulatedRack::sticky(usize::from(nodes), REGION_BYTES);
    let cache = CacheGeometry::new(32, 16).unwrap();
    let superblock = Superblock {
        lock_protocol: LockProtocol::Bakery,
        ..Superblock::new([1, 2], rig.geometry, cache.encode())
    };
    format_superblock(&rig.rack.host(0), &superblock, |_, _| ()).unwrap();
    rig
}

/// A process of host 0 gives its host's only chunk back and dies before operation `step` of that,
/// if one is given. Returns how many operations it had.
fn give_back_until(step: Option<u64>) -> u64 {
    let rig = without_manager(1);
    let clock = rig.rack.clock(0);
    let (survivor, giver) = (rig.join(0), rig.join(0));
    let identity = {
        let mut all = giver.processes().into_iter();
        all.find(|(slot, _)| *slot == giver.process()).unwrap().1
    };
    let a = Cache::attach(&survivor, &clock).unwrap();
    let handle = publish(&a, &clock, 1);
    a.retire(&clock, &[handle]);
    let (chunk, _) = survivor.owned_chunks()[0];

    let lent = Arc::new(Mutex::new(Some(giver)));
    let (deaths, task) = (rig.deaths.clone(), {
        let (lent, clock) = (Arc::clone(&lent), rig.rack.clock(0));
        move || {
            let member = lent.lock().unwrap().take().unwrap();
            let cache = Cache::attach(&member, &clock).unwrap();
            cache.give_back(&clock, chunk, &mut wait());
            drop(cache);
            *lent.lock().unwrap() = Some(member);
        }
    });
    let mut schedule = Schedule::builder(&rig.rack, 1)
        .faults(Faults::NONE)
        .task(0, "giver", task)
        .on_crash(move |_| deaths.0.lock().unwrap().extend([identity]));
    if let Some(step) = step {
        schedule = schedule.crash_process_at("giver", step);
    }
    let report = schedule.run();

    // Before anybody else has looked after the dead.
    a.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
    for number in AFTER {
        publish(&a, &clock, number);
    }
    survivor.beat();
    reclaim_dead_processes(&survivor, &clock);
    let owned = survivor.owned_chunks();
    a.segment(survivor.node()).unwrap().scan(survivor.fabric(), |slot, content| {
        if let Ok(SlotContent::Block(block)) = content {
            let chunk = survivor.layout().chunk_of(block.payload).unwrap();
            let ours = owned.iter().any(|(owned, _)| *owned == chunk);
            assert!(ours, "step {step:?}: slot {slot} names {chunk}, which is not this node's");
        }
    });
    assert!(AFTER.iter().all(|number| find_and_fetch(&a, *number)), "step {step:?}");
    assert_eq!(uses(&a, &clock).len(), owned.len(), "step {step:?}");
    report.task("giver").unwrap().steps
}

#[test]
fn who_dies_giving_a_chunk_back_leaves_it_this_nodes_or_nobodys() {
    let steps = give_back_until(None);
    // The end of it: the chunk table, and the directory after it.
    for step in steps.saturating_sub(80)..=steps {
        give_back_until(Some(step));
    }
}

#[test]
fn a_chunk_that_was_given_back_before_its_allocator_could_say_so_is_not_added() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let other = rig.join(0);
        let cache = Cache::attach(&other, clock).unwrap();
        let slots = size(BLOCK_BYTES);
        let chunk = other.allocate_chunk(clock, CHUNK_TIMEOUT_MS, slots.purpose()).unwrap();
        // Another process of the host finds it, and has no use for it.
        a.reap(clock);
        assert_eq!(uses(a, clock).len(), 1);
        a.give_back(clock, chunk, &mut wait());
        assert_eq!(uses(a, clock), []);
        take(b.member(), clock, chunk, slots);
        cache.locked(clock, |heap| heap.add_chunk(chunk));
        assert_eq!(uses(a, clock), [], "it is the other node's");
        // One that is still ours is, as what it was allocated for.
        let chunk = other.allocate_chunk(clock, CHUNK_TIMEOUT_MS, size(1).purpose()).unwrap();
        cache.locked(clock, |heap| heap.add_chunk(chunk));
        let [found] = uses(a, clock)[..] else { panic!("{:?}", uses(a, clock)) };
        assert_eq!((found.chunk, found.size, found.taken()), (chunk, size(1), 0));
    });
}

#[test]
fn a_chunk_that_is_taken_again_before_it_is_forgotten_is_used_for_what_it_was_taken_for() {
    for dies in [false, true] {
        let rig = Rig::new(2, 32, 16);
        on_two_hosts(&rig, |a, b, clock| {
            let handle = publish(a, clock, 1);
            a.retire(clock, &[handle]);
            let (chunk, _) = a.member().owned_chunks()[0];
            let giver = rig.join(0);
            let cache = Cache::attach(&giver, clock).unwrap();
            cache.locked(clock, |heap| {
                heap.directory.set_closing(Some((chunk, giver.process())));
            });
            giver.free_chunk(clock, CHUNK_TIMEOUT_MS, chunk).unwrap();
            // For blocks of another size.
            take(a.member(), clock, chunk, size(1));
            a.locked(clock, |heap| heap.add_chunk(chunk));
            if dies {
                rig.kill(&giver);
                a.reap(clock);
            } else {
                cache.locked(clock, |heap| heap.reopen(chunk));
            }
            let found = uses(a, clock);
            assert!(found.iter().any(|it| it.chunk == chunk && it.size == size(1)), "{found:?}");
            assert_eq!(found.len(), a.member().owned_chunks().len(), "dies: {dies}");
            // And a directory that is built anew agrees.
            let reserved = a.reserve(clock, &[BlockSpec { bytes: 1, ..spec(2) }], CHUNK_TIMEOUT_MS);
            let Ok([Reservation::Writing(block)]) = <[_; 1]>::try_from(reserved) else {
                panic!("there is room")
            };
            assert_eq!(a.member().layout().chunk_of(block.payload()), Some(chunk));
            store(a, block.payload(), &[7]);
            assert!(a.commit(clock, vec![(block, checksum(&[7]))])[0].is_ok());
            let dead = rig.join(0);
            std::mem::forget(dead.lock_heap(clock));
            rig.kill(&dead);
            assert_eq!(a.heap_use(clock).blocks, 1, "dies: {dies}");
            assert!(find(b, 2).is_some());
        });
    }
}

#[test]
fn who_gets_the_place_of_a_dead_process_is_not_giving_its_chunk_back() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        publish(a, clock, 1);
        let (chunk, _) = a.member().owned_chunks()[0];
        let giver = rig.join(0);
        let place = giver.process();
        a.locked(clock, |heap| heap.directory.set_closing(Some((chunk, place))));
        rig.kill(&giver);
        reclaim_dead_processes(a.member(), clock);
        let next = rig.join(0);
        assert_eq!(next.process(), place);
        let block = reserve(a, clock, 2);
        assert_eq!(a.member().layout().chunk_of(block.payload()), Some(chunk), "it is used on");
        assert_eq!(a.member().owned_chunks().len(), 1);
    });
}

#[test]
fn a_publish_that_can_get_no_chunk_evicts_nothing_for_it_and_one_chunk_otherwise() {
    let rig = Rig::new(2, 256, 64);
    let (first, second) = (rig.join(0), rig.join(1));
    let large = || [BlockSpec { bytes: 40_000, ..spec(250) }];
    let (a, most);
    {
        let served = rig.serve(&[&first, &second]);
        a = Cache::attach(&first, &served).unwrap();
        most = u8::try_from(first.layout().chunks() * 8).unwrap();
        for number in 0..most {
            publish(&a, &served, number);
        }
    }
    // The manager has stopped.
    let clock = rig.rack.clock(0);
    for _ in 0..2 {
        let refused = a.reserve(&clock, &large(), CHUNK_TIMEOUT_MS);
        let lock =
            matches!(refused[0], Reservation::Refused(Refusal::NoChunk(AllocateError::Lock(_))));
        assert!(lock, "{refused:?}");
        assert_eq!(a.process_state().metrics().evicted_blocks, 0);
    }
    assert!((0..most).all(|number| find_and_fetch(&a, number)));
    // One that lives gets the coldest, and no more.
    let served = rig.serve(&[&first, &second]);
    let reserved = a.reserve(&served, &large(), CHUNK_TIMEOUT_MS);
    assert!(matches!(reserved[0], Reservation::Writing(_)), "{reserved:?}");
    assert_eq!(a.process_state().metrics().evicted_blocks, 8);
}

#[test]
fn the_next_chunk_goes_when_something_in_the_coldest_is_held() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        for number in 0..24 {
            publish(a, clock, number);
        }
        let chunks = a.coldest(clock, |_| true);
        let chunk_of = |number| {
            let payload = open(a, number, find(a, number).unwrap()).unwrap().payload();
            a.member().layout().chunk_of(payload).unwrap()
        };
        assert_eq!(chunks, [chunk_of(0), chunk_of(8), chunk_of(16)], "oldest first");
        let held = hold(b, clock, 0).unwrap();
        assert_eq!(a.give_one_back(clock, &chunks, &mut wait()), GivenBack::Yes);
        let left: Vec<_> = (0..24).filter(|number| find_and_fetch(b, *number)).collect();
        assert_eq!(left, (0..8).chain(16..24).collect::<Vec<_>>(), "of the first nothing is gone");
        // With holds everywhere nothing goes.
        let other = hold(b, clock, 16).unwrap();
        assert_eq!(a.give_one_back(clock, &chunks[..1], &mut wait()), GivenBack::Held);
        assert_eq!(a.process_state().metrics().evicted_blocks, 8);
        b.release(clock, vec![held, other]);
    });
}

#[test]
fn an_idle_chunk_that_a_publish_filled_meanwhile_is_not_given_back() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (0..16).map(|number| publish(a, clock, number)).collect();
        a.retire(clock, &handles);
        // Two idle chunks, one more than a node keeps for itself.
        let seen = uses(a, clock);
        assert_eq!(seen.iter().map(ChunkUse::taken).collect::<Vec<_>>(), [0, 0]);
        (16..32).for_each(|number| _ = publish(a, clock, number));
        assert_eq!(a.answer(clock, &seen, CHUNK_TIMEOUT_MS), 0, "by a look from before");
        assert_eq!(a.process_state().metrics().evicted_blocks, 0);
        assert!((16..32).all(|number| find_and_fetch(b, number)));
        // One that stayed empty goes.
        let filled: Vec<_> = (16..32).map(|number| find(a, number).unwrap()).collect();
        a.retire(clock, &filled);
        assert_eq!(a.answer(clock, &uses(a, clock), CHUNK_TIMEOUT_MS), 1);
    });
}

#[test]
fn chunks_of_who_is_within_a_quota_go_last() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, _, clock| {
        let modest = Namespace::new("modest", b"");
        let publish_for = |namespace: &Namespace, number| {
            let mut reserved = a.reserve_for(clock, namespace, &[spec(number)], CHUNK_TIMEOUT_MS);
            let Reservation::Writing(block) = reserved.remove(0) else { panic!("there is room") };
            let chunk = a.member().layout().chunk_of(block.payload()).unwrap();
            store(a, block.payload(), &content(number));
            assert!(a.commit(clock, vec![(block, checksum(&content(number)))])[0].is_ok());
            chunk
        };
        let old: Vec<_> = (0..8).map(|number| publish_for(&modest, number)).collect();
        let new: Vec<_> =
            (8..16).map(|number| publish_for(&Namespace::default(), number)).collect();
        assert_eq!(a.coldest(clock, |_| true), [old[0], new[0]]);
        a.set_quota(clock, &modest, Some(Quota::Bytes(8 * 8192))).unwrap();
        assert_eq!(a.coldest(clock, |_| true), [new[0], old[0]], "EVICT-V5");
        a.set_quota(clock, &modest, Some(Quota::Bytes(7 * 8192))).unwrap();
        assert_eq!(a.coldest(clock, |_| true), [old[0], new[0]], "over its quota");
    });
}
