//! What one rank has of a prompt of 131,072 tokens, in blocks of 16, is held. The connector's
//! `tests/long_prompt.rs` holds all of 8 ranks.

use super::*;
use crate::BlockKey;
use crate::upkeep::Watermarks;

const BLOCKS_A_RANK: u32 = 131_072 / 16;

fn key_of(number: u32) -> BlockKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    KeySpace::new(MODEL, Namespace::default(), 4096).key(&BlockHash::new(hash))
}

/// Publishes what one rank has of the prompt, with payloads that nobody reads.
fn publish_rank(cache: &TestCache<'_>, clock: &impl Clock) {
    let spec = |number| BlockSpec { key: key_of(number), bytes: 4096, depth: number };
    let specs: Vec<_> = (0..BLOCKS_A_RANK).map(spec).collect();
    for part in specs.chunks(512) {
        let reserved = cache.reserve(clock, part, CHUNK_TIMEOUT_MS);
        let written = reserved.into_iter().map(|reservation| match reservation {
            Reservation::Writing(block) => (block, 0),
            other => panic!("{other:?}"),
        });
        assert!(cache.commit(clock, written.collect()).iter().all(Result::is_ok));
    }
}

/// Finds and holds what one rank has of the prompt.
fn hold_rank(cache: &TestCache<'_>, clock: &impl Clock) -> (Vec<Wanted>, Vec<HeldBlock>) {
    let keys: Vec<_> = (0..BLOCKS_A_RANK).map(key_of).collect();
    let found = cache.lookup(&keys);
    let wanted =
        |block: &crate::MatchedBlock| Wanted { handle: block.handle, key: block.key, bytes: 4096 };
    let wanted: Vec<_> = found.blocks().iter().map(wanted).collect();
    assert_eq!(wanted.len(), keys.len(), "all of it is in the pool");
    let held: Result<Vec<_>, _> = cache.hold(clock, &wanted, HOLD_MS).into_iter().collect();
    (wanted, held.unwrap())
}

#[test]
fn the_heap_lock_is_given_up_between_parts_of_a_long_hold() {
    let rig = Rig::sized(SimulatedRack::sticky(2, 64 << 20), 64 << 20, 2, 1 << 14, 1 << 14);
    on_two_hosts(&rig, |a, b, clock| {
        publish_rank(a, clock);
        let (_, held) = hold_rank(b, clock);
        assert!(held.len() > 2 * crate::heap::HOLDS_AT_ONCE);
        // What is dropped is released in parts, by those who take the lock.
        let released = || b.process_state().metrics().released_blocks;
        drop(held);
        b.locked(clock, |_| ());
        assert_eq!(released(), crate::heap::HOLDS_AT_ONCE as u64);
        b.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        assert_eq!(released(), u64::from(BLOCKS_A_RANK));
        // And what a dead process held.
        let other = rig.join(1);
        {
            let beside = Cache::attach(&other, clock).unwrap();
            std::mem::forget(hold_rank(&beside, clock));
        }
        rig.kill(&other);
        let is_gone = |process| process == other.process();
        let dropped = b.locked(clock, |heap| heap.drop_holds_of(is_gone));
        assert_eq!(dropped, crate::heap::HOLDS_AT_ONCE as u64);
        crate::reclaim_dead_processes(b.member(), clock);
        assert!(b.locked(clock, |heap| heap.holds.is_empty()));
    });
}
