//! The right to a block that stays.

use std::sync::Arc;

use cxl_shm::host::HolderToken;

use crate::format::Handle;
use crate::heap::Release;
use crate::identity::BlockKey;
use crate::process::ProcessState;
use crate::read::MatchedBlock;

/// A block that its owner does not evict while this lives, for at most as long as it was held for.
///
/// Dropped, it is released by the next operations of this process that take the heap lock;
/// [`Cache::release`](crate::Cache::release) does so at once. When the process dies the hold dies
/// with it. A child made by `fork` that drops it leaves the hold to its parent, and waits for nothing.
#[derive(Debug)]
#[must_use = "a block that is not kept in a variable is released again"]
pub struct HeldBlock {
    block: MatchedBlock,
    holder: HolderToken,
    /// Where it goes when it is dropped.
    process_state: Arc<ProcessState>,
}

impl HeldBlock {
    pub(crate) fn new(
        block: MatchedBlock,
        holder: HolderToken,
        process_state: Arc<ProcessState>,
    ) -> Self {
        Self { block, holder, process_state }
    }

    /// The block, to be fetched.
    #[must_use]
    pub fn block(&self) -> MatchedBlock {
        self.block
    }

    /// Under which it was found.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.block.key
    }

    /// Names this life of the block.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.block.handle
    }
}

impl Drop for HeldBlock {
    fn drop(&mut self) {
        // No lock of the host here, which may be waited for.
        let release = Release { holder: self.holder, handle: self.block.handle };
        self.process_state.put_off_release(release);
    }
}
