//! Memory that programs in other languages lend to transfers: known by addresses, and lent to one
//! transfer that writes it, or to several that read it.
//!
//! For the C and Python packages: no semver.

mod lending;
mod lent;
#[cfg(feature = "cuda")]
mod session;
mod strided;

pub use lending::{Access, LendError, Lending, Loan, Span};
pub use lent::{
    LentBlocks, LentDestination, LentEngine, LentPart, LentParts, LentSource, MemoryOf,
};
#[cfg(feature = "cuda")]
pub use session::{LayerError, LentPublish, LentSession, Place};
pub use strided::{Shape, StridedBlocks, StridedError, StridedPart};
