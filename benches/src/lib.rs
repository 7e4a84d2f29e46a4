//! What the benchmarks share: a pool that no cache can hold, the ceilings that their figures are
//! measured against, and tables of ratios.
//!
//! Absolute figures of a shared machine change by the hour. What is reported is the ratio to a
//! ceiling that ran in the same round of the same run.

mod bed;
mod ceiling;
mod floor;
mod lock_bed;
mod ratios;
mod ring;

pub use bed::{Batch, Bed};
pub use ceiling::{memcpy_in, memcpy_out, stream_in, stream_out};
pub use floor::Floor;
pub use lock_bed::{Duel, LOCK, LockBed, acquire, arbitrate, serve};
pub use ratios::{Contender, median, print_ratios};
pub use ring::{RingLoop, processor_seconds};
