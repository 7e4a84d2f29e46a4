//! The index equals a plain map, and keeps to its memory.

use std::collections::HashMap;

use kv_cache::{BlockKey, NamespaceTag};

use super::*;

fn key(number: u64) -> BlockKey {
    // Mixed as real keys are; some share a home.
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number >> 7;
    let words = [mixed, number, number ^ 5];
    bytemuck::cast(words)
}

fn located(number: u32) -> Located {
    Located {
        slot: number % SEGMENTS_MAX,
        first_page: number.wrapping_mul(77) % SEGMENT_PAGES_MAX,
        bytes: number.wrapping_mul(131) % BLOCK_BYTES_MAX + 1,
        crc: number,
        depth: 7,
        tag: NamespaceTag::from_bits(9),
        directory_pages: number % 4,
    }
}

#[test]
fn it_equals_a_plain_map() {
    let mut index = Index::default();
    let mut plain = HashMap::new();
    let mut random = 1_u64;
    for step in 0..60_000_u32 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = key(random >> 33 & 0xfff);
        if random >> 62 == 0 {
            assert_eq!(index.remove(&key), plain.remove(&key));
        } else {
            index.insert(key, &located(step), true);
            plain.insert(key, located(step));
        }
        assert_eq!(index.len(), plain.len());
        assert_eq!(index.find(&key), plain.get(&key).copied());
    }
    assert!(plain.len() > 1000);
    assert!((0..0xfff).all(|number| index.find(&key(number)) == plain.get(&key(number)).copied()));
    assert_eq!(index.iter().collect::<HashMap<_, _>>(), plain);
}

#[test]
fn a_block_takes_at_most_48_bytes() {
    let mut index = Index::default();
    for number in 0..500_000_u32 {
        index.insert(key(number.into()), &located(number), true);
        if number % 50_000 == 49_999 {
            let bytes = index.memory_bytes() / index.len();
            assert!(bytes < 48, "{bytes} bytes a block at {number}");
        }
    }
}

/// The first `want` blocks to leave, of those of a namespace.
fn oldest(index: &Index, want: usize, tag: u16) -> Vec<BlockKey> {
    let mut oldest = Oldest::new(want);
    let may_leave = |_: &BlockKey, its: NamespaceTag| its.get() == tag;
    (0..).take_while(|part| index.count(&mut oldest, *part, may_leave)).for_each(drop);
    (0..).take_while(|part| index.collect(&mut oldest, *part, may_leave)).for_each(drop);
    let numbers = oldest.numbers();
    numbers.into_iter().map(|number| index.numbered(number).unwrap().0).collect()
}

#[test]
fn blocks_leave_by_their_last_use_and_the_deeper_ones_first() {
    let mut index = Index::default();
    assert_eq!(oldest(&index, 9, 9), []);
    let deep = |depth| Located { depth, ..located(1) };
    (0..4).for_each(|number| {
        index.insert(key(number), &deep(u16::try_from(number).unwrap()), number != 3);
    });
    index.insert(key(4), &Located { tag: NamespaceTag::from_bits(8), ..deep(9) }, true);
    assert_eq!(oldest(&index, 9, 9), [3, 2, 1, 0].map(key));
    index.used(&[key(3), key(99), key(2)]);
    assert_eq!(oldest(&index, 9, 9), [1, 0, 3, 2].map(key));
    // A block that moves keeps its place in the order.
    index.insert(key(0), &Located { slot: 5, ..deep(0) }, true);
    assert_eq!(oldest(&index, 2, 9), [1, 0].map(key));
    index.remove(&key(1)).unwrap();
    assert_eq!(oldest(&index, 9, 9), [0, 3, 2].map(key));
    assert_eq!(oldest(&index, 9, 8), [key(4)]);
}

#[test]
fn pages_are_counted_by_namespace() {
    let mut index = Index::default();
    let tag = NamespaceTag::from_bits;
    let of = |bits, bytes| Located { bytes, tag: tag(bits), directory_pages: 1, ..located(0) };
    index.insert(key(1), &of(1, 4096), true);
    index.insert(key(2), &of(1, 4097), true);
    index.insert(key(3), &of(2, 1), true);
    assert_eq!([1, 2, 3].map(|bits| index.pages_of(tag(bits))), [5, 2, 0]);
    index.insert(key(2), &of(2, 4096), true);
    index.remove(&key(3)).unwrap();
    assert_eq!([1, 2, 3].map(|bits| index.pages_of(tag(bits))), [2, 2, 0]);
}
