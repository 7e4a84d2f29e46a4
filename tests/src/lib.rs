//! Suites that cross crates: simulated racks, process kills, the rules of the house.
