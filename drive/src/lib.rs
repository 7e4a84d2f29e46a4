//! KV blocks on drives: a folder that keeps what the pool has no room for.
//!
//! The crate knows the keys of blocks, and nothing of engines or of pools. A program puts the bytes
//! of a block there, and gets the same bytes or a miss. Start reading at [`store::Store`] and
//! [`volume::Volume`]; [`guide`] draws the format.
//!
//! The folders are floors: each imports from those below it.
//!
//! ```text
//! store      blocks on one folder or several
//! volume     one folder: segments, journal, group commit, reopening, garbage
//! encoding   how the payload of a block is written where that takes fewer bytes
//! index      which block is where, in memory
//! format     what lies in a folder: sealed pages, records, the manifest
//! policy     which blocks are put here and which leave: decisions alone
//! ring       requests for blocks that a GPU makes itself
//! io         a folder of the operating system: io_uring, posix threads, and drives that fail
//! ```

pub mod encoding;
mod format;
mod index;
pub mod io;
pub mod policy;
pub mod ring;
pub mod store;
pub mod volume;

pub use format::{ALL_LAYERS, CarriedOut, Encoding, Page};

/// The format of a folder, drawn.
pub mod guide {
    #[doc = include_str!("../docs/format.md")]
    pub mod format {}
    #[doc = include_str!("../docs/encodings.md")]
    pub mod encodings {}
    #[doc = include_str!("../docs/policy.md")]
    pub mod policy {}
}
