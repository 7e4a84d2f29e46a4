//! The conformance suite over the memories that one process can have: the simulated rack in all
//! its modes, and two mappings of one file. `tests/virtual-hosts` runs it on a real device.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use cxl_shm::fabric::simulated::{Settings, SimulatedRack};
use cxl_shm::fabric::{HostMemory, MappedFabric, MappedHostMemory, Mapping};
use rackline_tests::fabric_conformance::{
    HOST_WORDS, LINES_USED, host_memory, one_thread, two_threads,
};

const BYTES: u64 = 64 * 1024;
const _: () = assert!(LINES_USED * 64 < BYTES);

/// The simulated racks of one seed.
fn racks(seed: u64) -> [SimulatedRack; 4] {
    let settings = [Settings::sticky(2, BYTES), Settings::adversarial(2, BYTES, seed)];
    let posted = settings.clone().map(SimulatedRack::with);
    let direct =
        settings.map(|settings| SimulatedRack::with(Settings { posted_writes: false, ..settings }));
    let ([a, b], [c, d]) = (posted, direct);
    [a, b, c, d]
}

/// Two mappings of one file of `bytes` bytes.
fn mappings(bytes: u64) -> [Mapping; 2] {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    [(); 2].map(|()| Mapping::shared(&file, bytes).unwrap())
}

#[test]
fn the_simulated_rack_conforms() {
    for rack in (0..30).flat_map(racks) {
        one_thread(&rack.host(0), &rack.host(1));
        assert_eq!(rack.conflicts(), []);
    }
}

#[test]
fn the_simulated_rack_conforms_under_threads() {
    for rack in (0..3).flat_map(racks) {
        two_threads(rack.host(0), rack.host(1));
    }
}

#[test]
fn mapped_memory_conforms() {
    let [a, b] = mappings(BYTES).map(|mapping| MappedFabric::new(mapping).unwrap());
    one_thread(&a, &b);
    two_threads(a, b);
}

#[test]
fn simulated_host_memory_conforms() {
    let rack = SimulatedRack::sticky(2, BYTES);
    host_memory(&rack.host_memory(0, HOST_WORDS), &rack.host_memory(0, HOST_WORDS));
    assert_eq!(rack.host_memory(1, HOST_WORDS).load(3), 0, "another host's words are others");
}

#[test]
fn mapped_host_memory_conforms() {
    let [a, b] = mappings(HOST_WORDS as u64 * 8).map(MappedHostMemory::new);
    host_memory(&a, &b);
}
