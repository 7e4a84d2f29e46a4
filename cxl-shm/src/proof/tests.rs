//! Scenarios hold, and mutants of the protocols are noticed.
