//! KV blocks on drives: a folder that keeps what the pool has no room for.
//!
//! The crate knows the keys of blocks, and nothing of engines or of pools. A program puts the bytes
//! of a block there, and gets the same bytes or a miss.
//!
//! The folders are floors: each imports from those below it.
//!
//! ```text
//! io         a folder of the operating system: io_uring, posix threads, and drives that fail
//! ```

pub mod io;
