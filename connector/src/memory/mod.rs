//! Memory that programs in other languages lend to transfers: known by addresses, and lent to one
//! transfer that writes it, or to several that read it.
//!
//! For the C and Python packages: no semver.

mod lending;
mod lent;
mod strided;

pub use lending::{Access, LendError, Lending, Loan, Span};
pub use lent::{LentBlocks, LentDestination, LentPart, LentParts, LentSource, MemoryOf};
pub use strided::{Shape, StridedBlocks, StridedError, StridedPart};
