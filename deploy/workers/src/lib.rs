//! Worker processes of a program: the parent gives tasks on the standard input of a worker, and the
//! worker answers on its standard output, one JSON object a line.
//!
//! - A worker ends when its standard input ends, so it ends with its parent, however that ends.
//! - What a worker wrote stays in the pipe when it dies: the parent hears all of it, then the end.
//! - A parent that drops a [`Process`] waits for its end: none stays behind as a zombie.

mod conversation;
mod process;
mod tasks;

pub use conversation::Conversation;
pub use process::Process;
pub use tasks::{tasks, tell};
