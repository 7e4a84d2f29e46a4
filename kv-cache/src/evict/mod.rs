//! Eviction: which blocks make room for others.

pub mod policy;
