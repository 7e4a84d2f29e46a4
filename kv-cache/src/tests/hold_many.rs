//! More blocks are held than are looked at in one go.

use super::*;
use crate::BlockKey;
use crate::evict::{BATCH, LOOKED_AT_MAX};

const REGION: u64 = 8 << 20;
const SLOTS: u32 = 8192;
const HELD: u32 = 600;
const OTHERS: u32 = 90;

fn many(number: u32) -> BlockKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    KeySpace::new(MODEL, Namespace::default(), BLOCK_BYTES).key(&BlockHash::new(hash))
}

fn publish_many(cache: &TestCache<'_>, clock: &impl Clock, count: u32) -> Vec<Wanted> {
    let specs: Vec<_> =
        (0..count).map(|number| BlockSpec { key: many(number), bytes: 4096, depth: 0 }).collect();
    let reserved = cache.reserve(clock, &specs, CHUNK_TIMEOUT_MS);
    let written = reserved.into_iter().map(|reservation| match reservation {
        Reservation::Writing(block) => (block, 0),
        other => panic!("{other:?}"),
    });
    let ready = cache.commit(clock, written.collect());
    let wanted = ready.into_iter().map(|ready| {
        let ready = ready.unwrap();
        Wanted { handle: ready.handle, key: ready.key, bytes: 4096 }
    });
    wanted.collect()
}

/// Reader words of `reader` that say that somebody holds something of `owner`'s.
fn held_words(reader: &TestCache<'_>, owner: &TestCache<'_>) -> usize {
    let reader_words = reader.areas().own_reader_words(reader.member().area());
    let held =
        |slot: &u32| reader_words.own(reader.member().fabric(), owner.member().node(), *slot).held;
    (0..SLOTS).filter(held).count()
}

fn evict_all(owner: &TestCache<'_>, clock: &impl Clock) -> u64 {
    std::iter::from_fn(|| Some(owner.evict(clock, None, BATCH))).take_while(|it| *it > 0).sum()
}

#[test]
fn what_is_held_stays_and_the_rest_goes_however_much_is_held() {
    assert!(HELD as usize > LOOKED_AT_MAX && OTHERS as usize > BATCH);
    let rack = SimulatedRack::sticky(2, REGION);
    let rig = Rig::sized(rack, REGION, 2, SLOTS, 1024);
    let (first, second) = (rig.join(0), rig.join(1));
    {
        let clock = rig.serve(&[&first, &second]);
        let a = Cache::attach(&first, &clock).unwrap();
        let b = Cache::attach(&second, &clock).unwrap();
        let blocks = publish_many(&a, &clock, HELD + OTHERS);
        let held: Result<Vec<HeldBlock>, HoldError> =
            b.hold(&clock, &blocks[..HELD as usize], HOLD_MS).into_iter().collect();
        let held = held.unwrap();
        assert_eq!(held_words(&b, &a), HELD as usize);
        assert_eq!(evict_all(&a, &clock), u64::from(OTHERS));
        assert_eq!(a.heap_use(&clock).blocks, u64::from(HELD));
        assert!(b.open(&blocks[..HELD as usize]).iter().all(Result::is_ok));
        std::mem::forget(held);
    }
    // The host comes back, and nobody waits for its heap until all it held is released.
    rig.kill(&second);
    drop(second);
    let again = rig.join(1);
    let clock = rig.serve(&[&first, &again]);
    let a = Cache::attach(&first, &clock).unwrap();
    let b = Cache::attach(&again, &clock).unwrap();
    let left = held_words(&b, &a);
    assert!((1..HELD as usize).contains(&left), "{left} in one go");
    b.release(&clock, Vec::new());
    assert_eq!(held_words(&b, &a), 0);
    assert_eq!(evict_all(&a, &clock), u64::from(HELD));
    assert_eq!(rig.rack.conflicts(), []);
}
