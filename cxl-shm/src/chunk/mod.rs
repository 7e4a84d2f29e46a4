//! Chunks: large pieces of the region that one node owns at a time.

mod demand;
mod failed;
mod member;
mod table;

pub(crate) use demand::{end_abandoned_request, end_request_of_dead};
#[doc(hidden)]
pub use demand::{of_others, request};
pub(crate) use failed::failed_pages;
#[doc(hidden)]
pub use failed::note_failed;
#[doc(hidden)]
pub use table::set_free;
pub use table::{AllocateError, ChunkError};
