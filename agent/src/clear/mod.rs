//! Clear: blocks of a namespace leave the drives because some node asks for it.
//!
//! ```text
//! look      what nodes asked for since the folder was told last; its manifest says when that was
//! stop      no restore of such a block begins, and those under way end
//! drain     no backup begins, and what was written is committed
//! sweep     complete blocks of this node leave the pool: some were restored a moment ago
//! remove    withdrawn from the directory, then removed from the folder, part by part
//! commit    removals and the numbers of the requests, by one rename of the manifest
//! answer    one word for each node that asked
//! ```
//!
//! - **AGENT-C1** The steps of a clear have this order. A block that the agent had when it saw the
//!   request is in no directory, queue, folder or pool slot of this node when it answers. An agent that
//!   died in between begins again: only the commit is remembered, and it is one step.
//! - **AGENT-C2** Each folder remembers for itself. A folder that was away, and one that an agent opens,
//!   is looked at before a block of it is announced or restored. What it missed is removed from it.
//!   What nodes ask for while a clear is carried out is stopped at once, and carried out behind it.
//! - **AGENT-C3** A folder that missed a clear whose line is lost loses all its blocks (CLEAR-D9). So it
//!   does not matter how long an agent was down.
//! - **AGENT-C4** A request is answered when all folders have carried it out. A folder whose device
//!   does not answer, whose tables cannot be read or whose commit fails owes the request. What is
//!   known of the folder is withdrawn, no block of it that is cleared is announced or restored, and
//!   the agent says in the region which of its drives owe.

mod gate;
mod steps;

pub(crate) use gate::{Gate, Stopped};
pub(crate) use steps::{Clears, Due};
