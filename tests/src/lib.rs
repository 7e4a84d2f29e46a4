//! Suites that cross crates: simulated racks, process kills, the rules of the house.

pub mod house;
pub mod rack;
