//! Uses in the pool of blocks that a drive has, too: such a block is not to leave its drive first
//! (DRIVE-P2).

use std::collections::{HashMap, VecDeque};

use kv_cache::{BlockKey, Handle, OwnUse};

use super::known::before;

/// How often each block is looked at, in milliseconds.
const LOOK_MS: u64 = 30_000;
/// Blocks that are looked at in one turn.
const LOOKED_AT: usize = 256;
/// Blocks that are watched at once. Of further ones only what reaches the drive counts as a use.
const WATCHED_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct Watched {
    handle: Handle,
    /// The position in the node's log of the last use that was seen.
    used: u64,
}

/// Blocks that are in the pool and on a drive.
#[derive(Debug, Default)]
pub(super) struct PoolUses {
    blocks: HashMap<BlockKey, Watched>,
    /// In the order of their next look.
    looks: VecDeque<(u64, BlockKey)>,
    /// Seen in this round: they count as used in one moment, so that a prefix does not count as used
    /// before what builds on it.
    used: Vec<BlockKey>,
    round_ends_ms: u64,
}

impl PoolUses {
    /// A block is in the pool and on a drive. `position` is that of the node's log now.
    pub(super) fn watch(&mut self, key: BlockKey, handle: Handle, position: u64, now_ms: u64) {
        if self.blocks.len() >= WATCHED_MAX && !self.blocks.contains_key(&key) {
            return;
        }
        let watched = Watched { handle, used: before(position) };
        if self.blocks.insert(key, watched).is_none() {
            self.looks.push_back((now_ms + LOOK_MS, key));
        }
    }

    /// Looks at the blocks whose time it is. Returns those that were used since their last look, of a
    /// whole round.
    pub(super) fn look(
        &mut self,
        now_ms: u64,
        uses: impl FnOnce(&[Handle]) -> Vec<OwnUse>,
    ) -> Vec<BlockKey> {
        let mut due = Vec::new();
        while due.len() < LOOKED_AT
            && let Some((_, key)) = self.looks.pop_front_if(|(at_ms, _)| *at_ms <= now_ms)
        {
            due.extend(self.blocks.get(&key).map(|watched| (key, watched.handle)));
        }
        let is_behind = due.len() == LOOKED_AT;
        if !due.is_empty() {
            let handles: Vec<_> = due.iter().map(|(_, handle)| *handle).collect();
            for ((key, _), found) in due.into_iter().zip(uses(&handles)) {
                self.looked(key, found, now_ms);
            }
        }
        // A round that is behind all the time is told in parts: late is better than never.
        let is_late = now_ms >= self.round_ends_ms + LOOK_MS;
        if now_ms < self.round_ends_ms || (is_behind && !is_late) {
            return Vec::new();
        }
        self.round_ends_ms = now_ms + LOOK_MS;
        std::mem::take(&mut self.used)
    }

    fn looked(&mut self, key: BlockKey, found: OwnUse, now_ms: u64) {
        let Some(watched) = self.blocks.get_mut(&key) else { return };
        match found {
            OwnUse::Gone => {
                self.blocks.remove(&key);
                return;
            }
            OwnUse::At(position) if position > watched.used => {
                watched.used = position;
                self.used.push(key);
            }
            OwnUse::At(_) | OwnUse::Never => {}
        }
        self.looks.push_back((now_ms + LOOK_MS, key));
    }
}

#[cfg(test)]
mod tests {
    use super::super::backlog::tests::block;
    use super::*;

    #[test]
    fn uses_in_the_pool_count_together_and_blocks_that_left_it_are_forgotten() {
        let mut uses = PoolUses::default();
        assert_eq!(uses.look(0, |_| unreachable!()), []);
        let blocks = [1, 2, 3].map(|number| block(number, 0, 10));
        for block in blocks {
            uses.watch(block.key, block.handle, 10, 0);
            uses.watch(block.key, block.handle, 10, 0);
        }
        assert_eq!(uses.look(LOOK_MS - 1, |_| unreachable!("none is due")), []);
        let found = |handles: &[Handle]| {
            assert_eq!(handles.len(), 3);
            vec![OwnUse::At(10), OwnUse::At(9), OwnUse::Gone]
        };
        assert_eq!(uses.look(LOOK_MS, found), [blocks[0].key]);
        let found = |handles: &[Handle]| {
            assert_eq!(handles.len(), 2);
            vec![OwnUse::At(10), OwnUse::At(12)]
        };
        assert_eq!(uses.look(2 * LOOK_MS, found), [blocks[1].key]);
    }

    #[test]
    fn uses_are_told_also_where_looks_never_catch_up() {
        let mut uses = PoolUses::default();
        assert_eq!(uses.look(0, |_| unreachable!()), []);
        // More than a look each 100 ms comes round to.
        for (number, bytes) in
            (0..=u8::MAX).flat_map(|number| (0..320).map(move |bytes| (number, bytes)))
        {
            let block = block(number, 0, bytes);
            uses.watch(block.key, block.handle, 0, 0);
        }
        let mut told = 0;
        let mut now_ms = LOOK_MS;
        while told == 0 {
            assert!(now_ms <= 3 * LOOK_MS, "no use is ever told");
            told = uses.look(now_ms, |handles| vec![OwnUse::At(now_ms); handles.len()]).len();
            now_ms += 100;
        }
        assert!(told > LOOKED_AT);
    }

    #[test]
    fn a_round_is_told_as_one_moment() {
        let mut uses = PoolUses::default();
        assert_eq!(uses.look(0, |_| unreachable!()), []);
        for (number, bytes) in (0..=u8::MAX).flat_map(|number| [(number, 10), (number, 11)]) {
            let block = block(number, 0, bytes);
            uses.watch(block.key, block.handle, 0, 1);
        }
        let found = |handles: &[Handle]| vec![OwnUse::At(9); handles.len()];
        assert_eq!(uses.look(LOOK_MS + 1, found), [], "there are more");
        assert_eq!(uses.look(LOOK_MS + 1, found), [], "there may be more");
        assert_eq!(uses.look(LOOK_MS + 1, |_| unreachable!()).len(), 2 * LOOKED_AT);
    }
}
