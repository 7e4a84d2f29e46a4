//! No pattern of bytes in a region makes us panic, hang, read outside, or accept a wrong byte.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use rackline_tests::hostile_scenarios::nonsense_in_the_metadata;
use rackline_tests::rack::{Mutant, for_seeds};

#[test]
fn nonsense_in_the_metadata_is_survived() {
    for_seeds(0..150, |seed| nonsense_in_the_metadata(Mutant::NONE, seed));
}
