//! Worker processes of a program. The parent writes tasks to the standard input of a worker. The
//! worker answers on its standard output, with one JSON object a line.
//!
//! - A worker ends when its standard input ends. So it ends with its parent, however the parent
//!   ends.
//! - When a worker dies, its last answers stay in the pipe. The parent reads them, then the end.
//! - A parent that drops a [`Process`] waits for the end of the worker, so no zombie stays.

mod conversation;
mod process;
mod tasks;

pub use conversation::Conversation;
pub use process::Process;
pub use tasks::{tasks, tell};
