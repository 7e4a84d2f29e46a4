//! Hosts with private caches, simulated.
