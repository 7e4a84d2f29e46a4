//! Allocation in two tiers: chunks of the region between hosts, objects within a host's chunks.

mod chunk;
mod demand;
pub mod heap;
mod member;

pub use chunk::{AllocateError, ChunkError, ReturnError};
pub(crate) use chunk::{allocate, free, owned};
pub(crate) use demand::{end_abandoned_request, end_request_of_dead};
pub use heap::{
    FreeError, HEAP_PURPOSE, HeapBusy, HeapUsage, Object, ObjectError, PeerObject, SharedOffset,
    SweepError, SweepReport, TakeOverError,
};
pub(crate) use heap::{HEAP_WORDS, HeapWords};
pub use member::ATTEND_BEATS;
