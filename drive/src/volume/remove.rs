//! Blocks are used, and leave.

use kv_cache::{BlockKey, NamespaceTag};

use super::Volume;
use super::moves::Left;
use crate::format::CarriedOut;
use crate::io::PAGE_BYTES;
use crate::policy::Oldest;

/// Blocks that are removed or looked up under one hold of the lock.
const BATCH: usize = 1024;

impl Volume {
    /// Says that a request has used these blocks, on the drive or in the pool. They count as used in
    /// one moment (DRIVE-P2). Blocks that are not here are passed over.
    pub fn used(&self, keys: &[BlockKey]) {
        self.state().index.used(keys);
    }

    /// Removes a block: it is not found any more. Its room comes back with the next commit. Says
    /// whether the block was there.
    pub fn remove(&self, key: &BlockKey) -> bool {
        let mut state = self.state();
        match state.index.remove(key) {
            Some(at) => {
                state.leave(&at, Left::Removed);
                true
            }
            None => false,
        }
    }

    /// Removes blocks. Says how many were there. What else is done beside has the folder in between.
    pub fn remove_all(&self, keys: &[BlockKey]) -> usize {
        let mut removed = 0;
        for keys in keys.chunks(BATCH) {
            let mut state = self.state();
            for key in keys {
                if let Some(at) = state.index.remove(key) {
                    state.leave(&at, Left::Removed);
                    removed += 1;
                }
            }
        }
        removed
    }

    /// What the folder has carried out, durably, of the requests to clear namespaces.
    #[must_use]
    pub fn carried_out(&self) -> CarriedOut {
        self.state().in_force.carried_out
    }

    /// Says that the blocks are removed that some requests clear. The next commit makes that durable,
    /// with the removals (DRIVE-C1).
    pub fn carry_out(&self, carried_out: CarriedOut) {
        self.state().to_carry_out = Some(carried_out);
    }

    /// The blocks that leave next (DRIVE-P2), the first to leave first: until their extents have
    /// `bytes` together, or there are no more. Only blocks of `namespace`, if one is given, that
    /// `may_leave`. Nothing leaves by this.
    #[must_use]
    pub fn oldest(
        &self,
        bytes: u64,
        namespace: Option<NamespaceTag>,
        mut may_leave: impl FnMut(&BlockKey) -> bool,
    ) -> Vec<BlockKey> {
        let mut may_leave = |key: &BlockKey, tag: NamespaceTag| {
            namespace.is_none_or(|wanted| wanted == tag) && may_leave(key)
        };
        let needed = bytes.div_ceil(u64::from(PAGE_BYTES));
        let mut want = self.blocks_in(needed);
        loop {
            // The lock is given back after each part.
            let mut oldest = Oldest::new(want);
            let mut part = 0;
            while self.state().index.count(&mut oldest, part, &mut may_leave) {
                part += 1;
            }
            part = 0;
            while self.state().index.collect(&mut oldest, part, &mut may_leave) {
                part += 1;
            }
            let numbers = oldest.numbers();
            let (keys, pages) = self.first_of(&numbers, needed);
            if pages >= needed || numbers.len() < want {
                return keys;
            }
            want = want.saturating_mul(2);
        }
    }

    /// About how many blocks have so many pages.
    fn blocks_in(&self, pages: u64) -> usize {
        let state = self.state();
        let live: u64 = state.all().map(|(_, segment)| u64::from(segment.live)).sum();
        let blocks = u128::from(pages) * state.index.len() as u128 / u128::from(live.max(1));
        usize::try_from(blocks).unwrap_or(usize::MAX).saturating_add(1)
    }

    /// The first of these blocks, until they have `needed` pages, and how many pages they have.
    fn first_of(&self, numbers: &[u32], needed: u64) -> (Vec<BlockKey>, u64) {
        let (mut keys, mut pages) = (Vec::new(), 0);
        for numbers in numbers.chunks(BATCH) {
            let state = self.state();
            for (key, at) in numbers.iter().filter_map(|number| state.index.numbered(*number)) {
                if pages >= needed {
                    return (keys, pages);
                }
                pages += u64::from(at.extent_pages());
                keys.push(key);
            }
        }
        (keys, pages)
    }
}
