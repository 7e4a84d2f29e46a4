//! The right to a block that stays.

use std::sync::{Arc, PoisonError};

use cxl_shm::lock::HolderToken;

use crate::descriptor::Handle;
use crate::key::BlockKey;
use crate::local::Local;
use crate::lookup::MatchedBlock;

/// A hold that somebody gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    pub(crate) holder: HolderToken,
    pub(crate) handle: Handle,
}

/// A block that its owner does not evict while this lives, for at most as long as it was held for.
///
/// Dropped, it is released by the next operation of this process that takes the heap lock;
/// [`Cache::release`](crate::Cache::release) does so at once. When the process dies the hold dies
/// with it.
#[derive(Debug)]
#[must_use = "a block that is not kept in a variable is released again"]
pub struct HeldBlock {
    block: MatchedBlock,
    holder: HolderToken,
    /// Where it goes when it is dropped.
    local: Arc<Local>,
}

impl HeldBlock {
    pub(crate) fn new(block: MatchedBlock, holder: HolderToken, local: Arc<Local>) -> Self {
        Self { block, holder, local }
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
        let mut list = self.local.released.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(release);
    }
}
