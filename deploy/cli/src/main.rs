//! The rackline command.
fn main() {}
