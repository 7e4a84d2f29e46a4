//! Whether restored blocks were worth it: which of them somebody has used since.

use std::collections::BTreeMap;

use kv_cache::OwnUse;

/// Restored blocks that are watched at once. Those beyond are not counted as useful.
const WATCHED_MAX: usize = 1 << 16;
/// Blocks that are looked at in one turn.
const LOOKED_AT: usize = 256;
/// How long after its restore a block is looked at first. Each wait is twice the one before.
const FIRST_WAIT_MS: u64 = 500;
const WAIT_MS_MAX: u64 = 64_000;

#[derive(Clone, Copy, Debug)]
struct Watched<H> {
    handle: H,
    /// A use at a later position of the node's log is one of this block.
    restored_at: u64,
    wait_ms: u64,
}

/// Restored blocks that nobody has used yet, in the order of their next look. `H` names a block.
#[derive(Debug)]
pub(super) struct RestoredBlocks<H> {
    watched: BTreeMap<(u64, u64), Watched<H>>,
    next_number: u64,
}

impl<H> Default for RestoredBlocks<H> {
    fn default() -> Self {
        Self { watched: BTreeMap::new(), next_number: 0 }
    }
}

impl<H: Copy> RestoredBlocks<H> {
    /// A block was restored: the node's log had the position `restored_at` before.
    pub(super) fn restored(&mut self, handle: H, restored_at: u64, now_ms: u64) {
        self.watch(Watched { handle, restored_at, wait_ms: FIRST_WAIT_MS }, now_ms);
    }

    fn watch(&mut self, watched: Watched<H>, now_ms: u64) {
        if self.watched.len() < WATCHED_MAX {
            self.next_number += 1;
            let due_ms = now_ms.saturating_add(watched.wait_ms);
            self.watched.insert((due_ms, self.next_number), watched);
        }
    }

    /// Looks at the blocks whose time it is, and says how many of them were used. They are watched no
    /// more, nor are those that have left the pool.
    pub(super) fn look(&mut self, now_ms: u64, uses: impl FnOnce(&[H]) -> Vec<OwnUse>) -> u64 {
        let mut due = Vec::new();
        while due.len() < LOOKED_AT
            && let Some(next) = self.watched.first_entry()
            && next.key().0 <= now_ms
        {
            due.push(next.remove());
        }
        if due.is_empty() {
            return 0;
        }
        let handles: Vec<_> = due.iter().map(|it| it.handle).collect();
        let mut used = 0;
        for (block, found) in due.into_iter().zip(uses(&handles)) {
            match found {
                OwnUse::At(position) if position > block.restored_at => used += 1,
                OwnUse::At(_) | OwnUse::Never => {
                    let wait_ms = (block.wait_ms * 2).min(WAIT_MS_MAX);
                    self.watch(Watched { wait_ms, ..block }, now_ms);
                }
                OwnUse::Gone => {}
            }
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_block_is_useful_once_and_looked_at_ever_more_seldom() {
        let mut blocks = RestoredBlocks::default();
        (1..=3).for_each(|handle| blocks.restored(handle, 10, 0));
        assert_eq!(blocks.look(FIRST_WAIT_MS - 1, |_| unreachable!("none is due")), 0);
        let looked = |handles: &[u32]| {
            let found = |handle: &u32| match handle {
                1 => OwnUse::At(11),
                2 => OwnUse::At(10),
                _ => OwnUse::Gone,
            };
            handles.iter().map(found).collect()
        };
        assert_eq!(blocks.look(FIRST_WAIT_MS, looked), 1);
        assert_eq!(blocks.look(3 * FIRST_WAIT_MS - 1, looked), 0);
        let mut left = Vec::new();
        let last = blocks.look(3 * FIRST_WAIT_MS, |handles| {
            left = handles.to_vec();
            vec![OwnUse::At(12)]
        });
        assert_eq!((last, left), (1, vec![2]));
        assert_eq!(blocks.look(u64::MAX, |_| unreachable!("none is left")), 0);
    }
}
