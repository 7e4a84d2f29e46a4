//! The page of a rack, which an agent or a lock manager serves beside its metrics.
//!
//! ```text
//! server    looks at the rack, and answers for the page
//! json      what the page asks for: /rack.json
//! findings  what is wrong with the program itself
//! docs      the operator's pages
//! page.*    the page: one document with its style and its program
//! ```

mod docs;
mod findings;
mod json;
mod server;

pub(crate) use server::{RackPage, Whose};
