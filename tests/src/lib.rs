//! Suites that cross crates: simulated racks and process kills.

pub mod cache_scenarios;
pub mod drive_scenarios;
pub mod drive_torture;
pub mod exploration;
pub mod fabric_conformance;
pub mod failing_lines;
pub mod flush_sites;
pub mod heap_scenarios;
pub mod hostile;
pub mod lock_fairness;
mod lock_gate;
pub mod lock_scenarios;
pub mod lock_table_scenarios;
pub mod member_scenarios;
pub mod metadata_scenarios;
pub mod mutation;
pub mod orphan_scenarios;
pub mod parallel;
pub mod poison_scenarios;
pub mod pressure_scenarios;
pub mod rack;
pub mod scenario;
pub mod simulation;
pub mod step_tests;
pub mod stepped;
pub mod survivors;
pub mod torture;
