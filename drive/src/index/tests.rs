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
    let bytes = number.wrapping_mul(131) % BLOCK_BYTES_MAX + 1;
    Located {
        slot: number % SEGMENTS_MAX,
        first_page: number.wrapping_mul(77) % SEGMENT_PAGES_MAX,
        bytes,
        encoding: Encoding::Raw,
        stored_pages: bytes.div_ceil(PAGE_BYTES),
        crc: number,
        depth: 7,
        tag: NamespaceTag::from_bits(9),
        directory_pages: number % 4,
    }
}

/// Some blocks are encoded, of the longest and the shortest length among others.
fn encoded(number: u32) -> Located {
    let encoding = [Encoding::Raw, Encoding::Lz4, Encoding::Unknown(77)][number as usize % 3];
    if encoding == Encoding::Raw {
        return located(number);
    }
    let (bytes, stored_pages) =
        [(BLOCK_BYTES_MAX, 1), (BLOCK_BYTES_MAX, 16_383), (PAGE_BYTES + 1, 1), (3 * PAGE_BYTES, 2)]
            [number as usize / 3 % 4];
    // Place 0 of segment 0 too: no bit may be taken for a free entry.
    let slot = number / 16 % 2;
    Located {
        bytes,
        encoding,
        stored_pages,
        slot,
        first_page: 0,
        directory_pages: 0,
        ..located(number)
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
            assert!(index.insert(key, &encoded(step), true));
            plain.insert(key, encoded(step));
        }
        assert_eq!(index.len(), plain.len());
        assert_eq!(index.find(&key), plain.get(&key).copied());
    }
    assert!(plain.len() > 1000);
    assert!((0..0xfff).all(|number| index.find(&key(number)) == plain.get(&key(number)).copied()));
    assert_eq!(index.iter().collect::<HashMap<_, _>>(), plain);
    let is_encoded = |at: &&Located| at.encoding != Encoding::Raw;
    let mut expected = EncodedBlocks::default();
    plain.values().filter(is_encoded).for_each(|at| expected.add(at));
    assert!(expected.blocks > 100 && expected.bytes < expected.raw_bytes);
    assert_eq!(index.encoded(), expected);
    assert!(plain.keys().all(|key| index.remove(key).is_some()));
    assert_eq!(index.encoded(), EncodedBlocks::default());
}

#[test]
fn encoded_blocks_have_4096_lengths_at_most() {
    let mut index = Index::default();
    let of = |bytes| Located { bytes, encoding: Encoding::Lz4, stored_pages: 1, ..located(0) };
    for bytes in 0..4096 {
        assert!(index.takes(Encoding::Lz4, PAGE_BYTES + bytes));
    }
    assert!(!index.takes(Encoding::Lz4Planes, PAGE_BYTES) && index.takes(Encoding::Raw, 5));
    assert!(index.insert(key(1), &of(PAGE_BYTES + 4095), true));
    assert!(!index.insert(key(2), &of(PAGE_BYTES - 1), true));
    assert_eq!((index.len(), index.encoded().blocks), (1, 1));
}

#[test]
fn a_block_takes_at_most_48_bytes() {
    let mut index = Index::default();
    for number in 0..500_000_u32 {
        assert!(index.insert(key(number.into()), &encoded(number), true));
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
        assert!(index.insert(key(number), &deep(u16::try_from(number).unwrap()), number != 3));
    });
    assert!(index.insert(key(4), &Located { tag: NamespaceTag::from_bits(8), ..deep(9) }, true));
    assert_eq!(oldest(&index, 9, 9), [3, 2, 1, 0].map(key));
    index.used(&[key(3), key(99), key(2)]);
    assert_eq!(oldest(&index, 9, 9), [1, 0, 3, 2].map(key));
    // A block that moves keeps its place in the order.
    assert!(index.insert(key(0), &Located { slot: 5, ..deep(0) }, true));
    assert_eq!(oldest(&index, 2, 9), [1, 0].map(key));
    index.remove(&key(1)).unwrap();
    assert_eq!(oldest(&index, 9, 9), [0, 3, 2].map(key));
    assert_eq!(oldest(&index, 9, 8), [key(4)]);
}

#[test]
fn pages_are_counted_by_namespace() {
    let mut index = Index::default();
    let tag = NamespaceTag::from_bits;
    let of = |bits, bytes: u32| {
        let stored_pages = bytes.div_ceil(PAGE_BYTES);
        Located { bytes, stored_pages, tag: tag(bits), directory_pages: 1, ..located(0) }
    };
    for (number, at) in [(1, of(1, 4096)), (2, of(1, 4097)), (3, of(2, 1))] {
        assert!(index.insert(key(number), &at, true));
    }
    assert_eq!([1, 2, 3].map(|bits| index.pages_of(tag(bits))), [5, 2, 0]);
    assert!(index.insert(key(2), &of(2, 4096), true));
    index.remove(&key(3)).unwrap();
    assert_eq!([1, 2, 3].map(|bits| index.pages_of(tag(bits))), [2, 2, 0]);
}
