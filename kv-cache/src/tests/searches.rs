//! Searches in vain: how long they are, at any load, after many turnovers.

use super::*;
use crate::format::DescriptorLine;
use crate::heap::{LinesOf, SearchedSlots, SlotWord, end_searches_at};
use crate::identity::IndexKey;
use crate::upkeep::Watermarks;
use cxl_shm::fabric::PublishBatch;

const SLOTS: u32 = 2048;
const REGION: u64 = 16 << 20;
/// Blocks that are replaced between two turns of upkeep.
const BATCH: u32 = 64;
const TURNOVERS: u32 = 6;

fn far(number: u32) -> BlockSpec {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    let key = KeySpace::new(MODEL, Namespace::default(), BLOCK_BYTES).key(&BlockHash::new(hash));
    BlockSpec { key, bytes: 64, depth: 0 }
}

fn publish_many(cache: &TestCache<'_>, clock: &impl Clock, numbers: &[u32]) -> Vec<Handle> {
    let specs: Vec<_> = numbers.iter().copied().map(far).collect();
    let blocks = cache.reserve(clock, &specs, CHUNK_TIMEOUT_MS).into_iter().map(|reserved| {
        let Reservation::Writing(block) = reserved else { panic!("{reserved:?}") };
        (block, 0)
    });
    let blocks = blocks.collect();
    cache.commit(clock, blocks).into_iter().map(|ready| ready.unwrap().handle).collect()
}

/// The mean length of a search for a key that is not there, over all homes.
fn mean_in_vain(cache: &TestCache<'_>, clock: &impl Clock) -> u32 {
    let lengths = cache.locked(clock, |heap| {
        let length = |home: u32| {
            let slots = (0..256).map(|step| heap.directory.slot((home + step) % SLOTS));
            u32::try_from(slots.take_while(|word| !word.ends_search()).count()).unwrap() + 1
        };
        (0..SLOTS).map(length).sum::<u32>()
    });
    lengths / SLOTS
}

/// A node of which so many thousandths of the slots hold blocks, all of them replaced many times.
/// The longest mean after a turnover.
fn longest_mean(load: u32) -> u32 {
    let rack = SimulatedRack::sticky(2, REGION);
    let rig = Rig::sized(rack, REGION, 2, SLOTS, 64);
    let (first, second) = (rig.join(0), rig.join(1));
    let clock = rig.serve(&[&first, &second]);
    let a = Cache::attach(&first, &clock).unwrap();
    let b = Cache::attach(&second, &clock).unwrap();
    let blocks = SLOTS * load / 1000;
    let mut live: Vec<(u32, Handle)> = Vec::new();
    let mut longest = 0;
    let mut next = 0;
    for turnover in 0..=TURNOVERS {
        let mut replaced = 0;
        while replaced < blocks {
            if turnover > 0 {
                // In no order that the slots have.
                let gone: Vec<_> = (0..BATCH)
                    .map(|number| {
                        let index = number.wrapping_mul(2_654_435_761).wrapping_add(next) as usize;
                        live.swap_remove(index % live.len()).1
                    })
                    .collect();
                assert_eq!(a.retire(&clock, &gone), u64::from(BATCH));
            }
            let numbers: Vec<_> = (next..next + BATCH).collect();
            let handles = publish_many(&a, &clock, &numbers);
            live.extend(numbers.into_iter().zip(handles));
            next += BATCH;
            replaced += BATCH;
            a.upkeep(&clock, Watermarks::new(100, 99).unwrap(), CHUNK_TIMEOUT_MS);
        }
        if turnover > 0 {
            longest = longest.max(mean_in_vain(&a, &clock));
        }
    }
    // Everything is found, in the segment as others see it.
    let segment = b.segment(first.node()).unwrap();
    for (number, handle) in &live {
        let found = segment.probe(second.fabric(), far(*number).key);
        assert_eq!(found.map(|block| block.handle), Some(*handle), "block {number}");
    }
    let ends = a.locked(&clock, |heap| {
        (0..SLOTS).filter(|slot| heap.directory.slot(*slot).ends_search()).count()
    });
    assert!(ends > 0, "searches end nowhere");
    longest
}

#[test]
fn searches_in_vain_stay_short_over_many_turnovers() {
    // Twice its steady length when tombstones are looked at at once: blocks stay where they are
    // (INDEX-S4), so these are longer than those of a table that moves them. Nothing else ends them
    // before 256 slots. The last load is nearly the highest that there is (INDEX-S3).
    for (load, most) in [(500, 10), (675, 48), (700, 60), (718, 80)] {
        let mean = longest_mean(load);
        assert!(mean <= most, "{mean} slots at a load of {load} thousandths");
    }
}

#[test]
fn what_is_cleaned_up_at_once_is_bounded_however_many_tombstones_there_are() {
    let rig = Rig::new(2, SLOTS, 64);
    on_two_hosts(&rig, |a, _, clock| {
        a.locked(clock, |heap| {
            let (fabric, segment) = (heap.fabric(), heap.segment);
            let mut batch = PublishBatch::new(fabric);
            // All but the last slot, which is blank.
            for slot in 0..SLOTS - 1 {
                let line = DescriptorLine::free(heap.node(), 1, false);
                batch.line(segment.line(slot), &line);
            }
            batch.publish();
            let slots = LinesOf { fabric, segment, tables: a.geometry().tables() };
            let ending = || (0..SLOTS - 1).filter(|slot| slots.ends_search(*slot)).count();
            end_searches_at(fabric, &segment, &slots, [SLOTS - 2].into_iter());
            assert_eq!(ending(), 1024, "a reclaimer looks for the next life in between");
        });
    });
}

#[test]
fn no_search_ends_before_a_block() {
    // Keys of few homes, in a segment that is smaller than a search is long.
    for slots in [8, 64, 512] {
        let rig = Rig::new(2, slots, 64);
        on_two_hosts(&rig, |a, b, clock| {
            let mut live: Vec<(BlockSpec, Handle)> = Vec::new();
            let most = (slots as usize * 3 / 4).min(100);
            for round in 0u32..400 {
                let number = round.wrapping_mul(2_654_435_761);
                if live.len() == most || (round % 3 == 0 && !live.is_empty()) {
                    let (_, handle) = live.swap_remove(number as usize % live.len());
                    assert_eq!(a.retire(clock, &[handle]), 1);
                }
                let home = u64::from(number % 5 * slots / 5);
                let key = crate::BlockKey::new(
                    IndexKey::from_words([home, u64::from(round) << 32 | home]),
                    0,
                );
                let spec = BlockSpec { key, ..far(round) };
                let Reservation::Writing(block) = a.reserve(clock, &[spec], 1000).remove(0) else {
                    continue;
                };
                let handle = a.commit(clock, vec![(block, 0)]).remove(0).unwrap().handle;
                live.push((spec, handle));
                a.locked(clock, |heap| heap.end_searches());
                let segment = b.segment(a.member().node()).unwrap();
                for (spec, handle) in &live {
                    let found = segment.probe(b.member().fabric(), spec.key);
                    assert_eq!(found.map(|block| block.handle), Some(*handle), "round {round}");
                }
            }
            let ends = |slot| {
                let word = a.locked(clock, |heap| heap.directory.slot(slot));
                matches!(word, SlotWord::Free { ends: true, .. })
            };
            let metrics = a.process_state().metrics();
            assert!(slots == 8 || (0..slots).any(ends), "searches end nowhere");
            assert_eq!(metrics.sweeps, 1, "the directory was never in doubt");
        });
    }
}
