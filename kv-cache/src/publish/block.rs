//! Blocks on their way into the pool: the state of a descriptor as a type.
//!
//! `reserve` gives a [`WritingBlock`], `commit` turns it into a [`ReadyBlock`] or gives it back
//! inside the error. A writing block that is dropped is freed by the next operation of this
//! process that takes the heap lock, or when the process is found dead.

use std::sync::Arc;

use cxl_shm::units::Extent;

use crate::format::{Descriptor, Handle};
use crate::heap::Claim;
use crate::identity::BlockKey;
use crate::process::ProcessState;

/// A block to be published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSpec {
    /// Under which it is to be found.
    pub key: BlockKey,
    /// Length of its payload in bytes.
    pub bytes: u64,
    /// Blocks before it in its prefix; more than 65,535 count as that many.
    pub depth: u32,
}

/// A block whose descriptor says WRITING: its payload belongs to this process.
#[derive(Debug)]
#[must_use = "a block that is not committed is freed again"]
pub struct WritingBlock {
    pub(crate) descriptor: Descriptor,
    /// Where it goes when it is dropped; `None` once it was committed.
    process_state: Option<Arc<ProcessState>>,
}

impl WritingBlock {
    pub(crate) fn new(descriptor: Descriptor, process_state: Arc<ProcessState>) -> Self {
        Self { descriptor, process_state: Some(process_state) }
    }

    /// Under which it will be found.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.descriptor.key
    }

    /// Where its bytes go. Nobody reads them before the commit.
    #[must_use]
    pub fn payload(&self) -> Extent {
        self.descriptor.payload
    }

    pub(crate) fn claim(&self) -> Claim {
        let Descriptor { handle, incarnation, payload, .. } = self.descriptor;
        let (slot, generation) = (handle.slot(), handle.generation());
        Claim { slot, generation, incarnation, payload }
    }

    /// Leaves the block reserved, and unpublished, for as long as this process is a member of the pool: a
    /// device that cannot be waited for may still write its bytes.
    pub fn leave_reserved(mut self) {
        self.process_state = None;
    }

    /// The block is complete: dropping it frees nothing any more.
    pub(crate) fn into_ready(mut self) -> ReadyBlock {
        self.process_state = None;
        ReadyBlock { handle: self.descriptor.handle, key: self.descriptor.key }
    }
}

impl Drop for WritingBlock {
    fn drop(&mut self) {
        // No host lock is taken here, because that may wait: the next process that takes it frees
        // the slot.
        if let Some(process_state) = self.process_state.take() {
            process_state.put_off_free(self.claim());
        }
    }
}

/// A block that every host can find and read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyBlock {
    /// Names this life of the block.
    pub handle: Handle,
    /// Under which it is found.
    pub key: BlockKey,
}
