//! DMA engines of simulated hosts: where payload is right after a transfer (MEM-M9).
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};

use cxl_shm::fabric::Fabric;
use cxl_shm::units::{Extent, LineOffset, LineRange, WordOffset};
use cxl_shm::verify::simulated::{
    DmaCache, EventKind, Schedule, Settings, SimulatedHost, SimulatedRack,
};

const BYTES: u64 = 64 * 1024;

fn line(number: u64) -> LineOffset {
    LineOffset::new(number * 64).unwrap()
}

/// A sticky rack of two hosts whose fence waits for the device.
fn plain() -> (SimulatedRack, SimulatedHost, SimulatedHost) {
    let rack = SimulatedRack::with(Settings { posted_writes: false, ..Settings::sticky(2, BYTES) });
    let (a, b) = (rack.host(0), rack.host(1));
    (rack, a, b)
}

/// A transfer of 200 bytes that begins and ends inside lines.
fn payload() -> (Extent, Vec<u8>) {
    (Extent::new(4096 + 30, 200).unwrap(), (1..=200).collect())
}

#[test]
fn dma_past_the_caches_is_seen_at_once_and_leaves_its_neighbours_alone() {
    let (rack, a, b) = plain();
    let (extent, bytes) = payload();
    a.store(WordOffset::new(4096).unwrap(), u64::MAX);
    a.dma_write(extent, &bytes, DmaCache::Bypass);
    let mut found = vec![0; 200];
    b.dma_read(extent, &mut found, DmaCache::Bypass);
    assert_eq!(found, bytes);
    assert_eq!(rack.device_bytes(extent), bytes);
    let before = rack.device_bytes(Extent::new(4096, 30).unwrap());
    assert_eq!(before[..8], [0xff; 8], "the dirty neighbour was snooped, not lost");
    assert_eq!(before[8..], [0; 22]);
    assert_eq!(rack.device_bytes(Extent::new(extent.end(), 26).unwrap()), [0; 26]);
}

#[test]
fn dma_into_the_writers_cache_needs_the_writers_flush() {
    let (_, a, b) = plain();
    let (extent, bytes) = payload();
    let mut found = vec![0; 200];
    a.dma_write(extent, &bytes, DmaCache::Allocate);
    b.dma_read(extent, &mut found, DmaCache::Bypass);
    assert_eq!(found, [0; 200], "MEM-M9: the payload is still in the writer's cache");
    a.publish(LineRange::covering(extent));
    b.dma_read(extent, &mut found, DmaCache::Bypass);
    assert_eq!(found, bytes);
}

#[test]
fn dma_through_the_readers_cache_needs_the_readers_refresh() {
    let (_, a, b) = plain();
    let (extent, bytes) = payload();
    let mut found = vec![0; 200];
    LineRange::covering(extent).iter().for_each(|at| assert_eq!(b.read_line(at), [0; 8]));
    a.dma_write(extent, &bytes, DmaCache::Bypass);
    b.dma_read(extent, &mut found, DmaCache::Allocate);
    assert_eq!(found, [0; 200], "MEM-M9: the reader's cache answered");
    b.refresh(LineRange::covering(extent));
    b.dma_read(extent, &mut found, DmaCache::Allocate);
    assert_eq!(found, bytes);
}

#[test]
fn dma_is_coherent_within_its_host() {
    for cache in [DmaCache::Bypass, DmaCache::Allocate] {
        let rack = SimulatedRack::sticky(1, BYTES);
        let a = rack.host(0);
        let extent = Extent::new(64, 64).unwrap();
        let mut found = [0; 64];
        a.write_line(line(1), &[0x0101_0101_0101_0101; 8]);
        a.dma_read(extent, &mut found, cache);
        assert_eq!(found, [1; 64], "{cache:?} sees the processor's stores");
        a.dma_write(extent, &[2; 64], cache);
        assert_eq!(a.read_line(line(1)), [0x0202_0202_0202_0202; 8], "and they see {cache:?}");
    }
}

/// The lines of a transfer of four lines that a reader sees while it runs, as masks.
fn seen_during_a_transfer(rack: &SimulatedRack, seed: u64) -> Vec<u64> {
    let (a, b) = (rack.host(0), rack.host(1));
    let extent = Extent::new(4096, 4 * 64).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let masks = Arc::clone(&seen);
    Schedule::builder(rack, seed)
        .task(0, "writer", move || a.dma_write(extent, &[1; 256], DmaCache::Bypass))
        .task(1, "reader", move || {
            for _ in 0..5 {
                let mut found = [0; 256];
                b.dma_read(extent, &mut found, DmaCache::Bypass);
                let lines = found.chunks(64).enumerate();
                masks.lock().unwrap().push(lines.map(|(line, it)| u64::from(it[0]) << line).sum());
            }
        })
        .run();
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[test]
fn a_transfer_is_torn_between_its_lines() {
    let seen = |seed| seen_during_a_transfer(&SimulatedRack::sticky(2, BYTES), seed);
    assert!((0..50).flat_map(seen).any(|mask| mask != 0 && mask != 0b1111));
}

#[test]
fn an_adversarial_engine_keeps_no_order_of_lines() {
    let ascending = |rack: &SimulatedRack| {
        seen_during_a_transfer(rack, 0);
        let events = rack.history().into_iter();
        let writes = events.filter(|event| event.kind == EventKind::DmaWrite);
        writes.map(|event| event.at).is_sorted()
    };
    assert!(ascending(&SimulatedRack::sticky(2, BYTES)));
    assert!((0..10).any(|seed| !ascending(&SimulatedRack::adversarial(2, BYTES, seed))));
}
