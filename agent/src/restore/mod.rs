//! Restore: a block comes back from a drive into the pool, because some host asks for it.
//!
//! ```text
//! asked    in the pool already, or unknown: answered at once
//! queue    by deadline, of the device that has the block; refused before it waits in vain
//! reserve  a payload slot and a descriptor WRITING, as every publish does
//! read     from the drive into memory of the agent; the checksum is that of the publication
//! commit   stored in the slot, READY, found by every host
//! answer   one word for the asker
//! ```
//!
//! - **AGENT-R1** A restore is a publish: the slot is reserved before, and the block is committed
//!   after its bytes have arrived and were checked. A reader needs no other rule than for any block.
//! - **AGENT-R2** Every request gets one answer. One that was asked for while the same block is being
//!   read gets the answer of that read.

mod mover;
mod queue;
mod speed;
mod used;

pub(crate) use mover::{RestoreParts, Restorer};
pub(crate) use queue::{Next, NotQueued, Queued, RestoreQueue};
pub(crate) use speed::Speed;
