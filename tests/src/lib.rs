//! Suites that cross crates: simulated racks, process kills, the rules of the house.

pub mod cache_scenarios;
pub mod fabric_conformance;
pub mod house;
pub mod lock_scenarios;
pub mod mutation;
pub mod rack;
