//! No bytes of a region, of a host's memory or of a folder make us panic, hang, read outside, or accept
//! a wrong byte: the kept inputs, and inputs of a generator.
//!
//! A failing run prints its seed. `RACKLINE_SEED=<seed>` runs that seed alone.

use std::fs;
use std::path::Path;

use cxl_shm::verify::simulated::Random;
use rackline_tests::hostile::{TARGETS, Target};
use rackline_tests::rack::for_seeds;

fn target(name: &str) -> Target {
    let found = TARGETS.into_iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("there is no target {name}"))
}

/// Bytes of seed `seed`: few in most cases, so that most damage is small.
fn input(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = 1 + random.below(1 + seed % 60);
    (0..words).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

#[test]
fn kept_inputs_are_survived() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for target in TARGETS {
        let inputs = fs::read_dir(folder.join(target.name)).unwrap();
        let inputs: Vec<_> = inputs.map(|input| input.unwrap().path()).collect();
        assert!(inputs.len() > 10, "{}: {} inputs", target.name, inputs.len());
        for input in inputs {
            println!("{}", input.display());
            (target.run)(&fs::read(input).unwrap());
        }
    }
}

#[test]
fn a_damaged_region_is_survived() {
    for_seeds(0..150, |seed| (target("region").run)(&input(seed)));
}

#[test]
fn a_damaged_superblock_is_survived() {
    for_seeds(0..400, |seed| (target("superblock").run)(&input(seed)));
}

#[test]
fn a_damaged_folder_is_survived() {
    for_seeds(0..400, |seed| (target("folder").run)(&input(seed)));
}
