//! Blocks leave.

use kv_cache::BlockKey;

use super::Volume;

impl Volume {
    /// Removes a block: it is not found any more. Its room comes back with the next commit. Says
    /// whether the block was there.
    pub fn remove(&self, key: &BlockKey) -> bool {
        let mut state = self.state();
        match state.index.remove(key) {
            Some(at) => {
                state.leave(&at);
                true
            }
            None => false,
        }
    }

    /// Removes blocks that were not used for longest, in rounds, until the segments have room for
    /// `bytes` more than now. Says how many were removed. A commit and a collection bring the room.
    pub fn evict(&self, bytes: u64) -> usize {
        let mut state = self.state();
        let (mut pages, mut blocks) = (0, 0);
        while super::offset_of(pages) < bytes {
            let Some((key, at)) = state.index.next_unused() else { break };
            state.index.remove(&key);
            state.leave(&at);
            pages += at.extent_pages();
            blocks += 1;
        }
        blocks
    }
}
