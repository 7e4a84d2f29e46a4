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
            index.insert(key, &located(step));
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
        index.insert(key(number.into()), &located(number));
        if number % 50_000 == 49_999 {
            let bytes = index.memory_bytes() / index.len();
            assert!(bytes < 48, "{bytes} bytes a block at {number}");
        }
    }
}

#[test]
fn used_blocks_have_another_turn() {
    let mut index = Index::default();
    assert_eq!(index.next_unused(), None);
    (0..4).for_each(|number| index.insert(key(number), &located(0)));
    index.touch(&key(0)).unwrap();
    index.touch(&key(1)).unwrap();
    let mut turns = Vec::new();
    for _ in 0..4 {
        let (unused, _) = index.next_unused().unwrap();
        index.remove(&unused).unwrap();
        turns.push(unused);
    }
    assert_eq!(turns, [2, 3, 0, 1].map(key));
    assert_eq!(index.next_unused(), None);
}
