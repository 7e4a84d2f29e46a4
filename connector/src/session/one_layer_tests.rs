//! Layers of blocks that are read alone, on a simulated rack of two hosts.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cxl_shm::fabric::Fabric as _;
use cxl_shm::units::{LINE_BYTES, LineOffset};
use cxl_shm::verify::simulated::Site;
use kv_cache::{MatchedBlock, Miss};

use super::tests::{
    BLOCK_BYTES, Pair, TestSession, content, fetch, handle, hashes, on_two_hosts, place, publish,
};
use super::{FetchReport, FetchStop};
use crate::dma::{Checksum, Layers};

/// Where layers begin, in bytes; the last one ends with the block.
const BEGINS: [usize; 4] = [0, 1024, 2560, BLOCK_BYTES];
const LAYERS: usize = BEGINS.len() - 1;

/// Layers of which each begins on a line.
fn layers() -> Layers {
    Layers::new((0..LAYERS).map(|layer| (BEGINS[layer + 1] - BEGINS[layer]) as u64))
}

fn layer_of(number: u8, layer: usize) -> Vec<u8> {
    content(number)[BEGINS[layer]..BEGINS[layer + 1]].to_vec()
}

/// Fetches a layer of blocks 1, 2 and so on. Checks that what is valid is right.
fn fetch_layer(
    session: &TestSession<'_, '_>,
    blocks: &[MatchedBlock],
    layer: usize,
) -> FetchReport {
    let numbers = || (1..).take(blocks.len());
    let checksums: Vec<_> =
        numbers().map(|number| Checksum::of(&[&layer_of(number, layer)])).collect();
    let mut buffers = vec![vec![0; BEGINS[layer + 1] - BEGINS[layer]]; blocks.len()];
    let destinations = buffers.iter_mut().map(|buffer| {
        let (first, second) = buffer.split_at_mut(700);
        vec![first, second]
    });
    let destinations = destinations.collect();
    let report = session.fetch_layer(blocks, (&layers(), layer), &checksums, destinations).unwrap();
    for (number, buffer) in numbers().zip(&buffers).take(report.valid_blocks()) {
        assert_eq!(*buffer, layer_of(number, layer), "layer {layer} of block {number}");
    }
    report
}

/// The owner publishes, removes and publishes again at the same places, while the other host reads
/// layers of all of it.
fn layers_of_places_that_are_used_again(pair: &Pair<'_, '_>) {
    let [a, b] = pair.sessions();
    assert_eq!(publish(&a, 9..=11).published(), 3);
    let places: BTreeSet<_> = (9..=11).map(|number| place(pair, number)).collect();
    assert_eq!(fetch(&b, 9..=11).valid_blocks(), 3);
    // The other host has the lines of the blocks before in its caches.
    let lines = |place: &u64| {
        (*place..place + BLOCK_BYTES as u64).filter(|at| at.is_multiple_of(LINE_BYTES))
    };
    for line in places.iter().flat_map(lines) {
        pair.rack.host(1).read_line(LineOffset::new(line).unwrap());
    }
    let before = b.lookup(&hashes(9..=11)).unwrap();
    let handles: Vec<_> = (9..=11).map(|number| handle(&a, number).unwrap()).collect();
    assert_eq!(pair.caches[0].retire(pair.clock, &handles), 3);
    assert_eq!(publish(&a, 1..=3).published(), 3);
    assert!((1..=3).any(|number| places.contains(&place(pair, number))), "other places");
    let found = b.lookup(&hashes(1..=3)).unwrap();
    for layer in 0..LAYERS {
        assert_eq!(fetch_layer(&b, found.blocks(), layer).valid_blocks(), 3);
        let report = fetch_layer(&b, before.blocks(), layer);
        assert_eq!(report.valid_blocks(), 0, "a block that is gone");
        assert!(matches!(report.stop(), Some(FetchStop::Miss(_))), "{report:?}");
    }
}

#[test]
fn layers_of_another_host_are_right_or_misses() {
    on_two_hosts(|pair| {
        layers_of_places_that_are_used_again(pair);
        let metrics = pair.sessions()[1].metrics();
        assert_eq!(metrics.streamed_blocks, 3 * LAYERS as u64);
        assert_eq!(metrics.streamed_bytes, 3 * BLOCK_BYTES as u64);
        assert_eq!(metrics.stream_lost_blocks, LAYERS as u64, "each run ends with its first");
        assert_eq!(metrics.fetched_blocks, 3, "those that were fetched whole");
        assert_eq!(pair.rack.conflicts(), []);
    });
}

#[test]
fn every_flush_of_a_layer_is_needed() {
    let sites = std::cell::RefCell::new(BTreeSet::<Site>::new());
    on_two_hosts(|pair| {
        layers_of_places_that_are_used_again(pair);
        sites.borrow_mut().extend(pair.rack.sites());
    });
    let of_engine = |site: &Site| site.file.ends_with("connector/src/dma/simulated.rs");
    let sites: Vec<_> = sites.into_inner().into_iter().filter(of_engine).collect();
    assert!(sites.len() >= 4, "{sites:?}");
    let unnoticed = sites.iter().filter(|site| {
        let suppressed = |pair: &Pair<'_, '_>| {
            pair.rack.suppress(**site);
            layers_of_places_that_are_used_again(pair);
        };
        catch_unwind(AssertUnwindSafe(|| on_two_hosts(suppressed))).is_ok()
    });
    let unnoticed: Vec<_> = unnoticed.map(ToString::to_string).collect();
    assert_eq!(unnoticed, [""; 0], "nothing went wrong without these");
}

#[test]
fn a_layer_that_is_damaged_is_a_miss_and_its_block_is_removed_by_its_owner() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=4).published(), 4);
        let found = b.lookup(&hashes(1..=4)).unwrap();
        // In the second layer of the third block.
        pair.rack.flip_bit(place(pair, 3) + 1100, 6);
        for session in [&a, &b] {
            assert_eq!(fetch_layer(session, found.blocks(), 0).valid_blocks(), 4);
            assert_eq!(fetch_layer(session, found.blocks(), 2).valid_blocks(), 4);
        }
        let report = fetch_layer(&b, found.blocks(), 1);
        assert_eq!(report.valid_blocks(), 2);
        assert_eq!(report.stop(), Some(&FetchStop::Miss(Miss::Checksum)));
        let report = fetch_layer(&a, found.blocks(), 1);
        assert_eq!((report.valid_blocks(), a.metrics().stream_lost_blocks), (2, 1));
        assert_eq!(a.lookup(&hashes(1..=4)).unwrap().blocks().len(), 2);
        let report = fetch_layer(&b, found.blocks(), 0);
        assert_eq!(report.valid_blocks(), 2, "nothing of a block that was removed");
    });
}

#[test]
fn a_copy_that_fails_ends_the_run_of_layers() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=4).published(), 4);
        let found = b.lookup(&hashes(1..=4)).unwrap();
        pair.engines[1].fail_after(2);
        let report = fetch_layer(&b, found.blocks(), 1);
        assert_eq!(report.valid_blocks(), 2);
        assert!(matches!(report.stop(), Some(FetchStop::Failed(_))), "{report:?}");
        assert_eq!(b.metrics().stream_lost_blocks, 1);
        assert_eq!(fetch_layer(&b, found.blocks(), 1).valid_blocks(), 4, "it is tried again");
    });
}

/// Eviction beside a stream: blocks that are held stay where they are, with all their layers.
#[test]
fn layers_of_held_blocks_stay_while_others_are_evicted() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=3).published(), 3);
        let held = b.lookup_and_hold(&hashes(1..=3)).unwrap();
        // More blocks than the node has descriptors, for a few rounds.
        for first in (20..200).step_by(20) {
            let _ = publish(&a, first..first + 20);
            for layer in 0..LAYERS {
                assert_eq!(fetch_layer(&b, &held.blocks(), layer).valid_blocks(), 3);
            }
        }
        assert!(a.metrics().evicted_blocks > 100, "{:?}", a.metrics());
        let blocks = held.blocks();
        b.release(held);
        for first in (20..200).step_by(20) {
            let _ = publish(&a, first..first + 20);
        }
        assert_eq!(fetch_layer(&b, &blocks, 0).valid_blocks(), 0, "nothing held them");
    });
}
