//! Lookup with drives: behind the end of the pool's prefix, the host's table of blocks on drives.

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use crate::identity::BlockKey;
use crate::process::Cache;
use crate::read::MatchedBlock;

/// Where a block was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// In the pool.
    InPool(MatchedBlock),
    /// On a drive: a node whose agent can restore the block.
    OnDrive {
        /// Under which it was found.
        key: BlockKey,
        /// The node to ask.
        node: NodeId,
    },
}

/// The longest prefix that was found in the pool and on drives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TieredMatch {
    /// The longest prefix that is in the pool.
    pub pool: Vec<MatchedBlock>,
    /// The blocks behind `pool`, of which each is in the pool or on a drive. The first is on a drive.
    pub behind: Vec<Found>,
}

impl<B: Backend> Cache<'_, B> {
    /// As [`find`](Self::find), and which blocks behind the end of the prefix are on drives of hosts
    /// whose agents live: of this host first, then of the lowest node. What is found is a hint.
    /// Nothing is behind the prefix while no agent of this host lives.
    #[must_use]
    pub fn find_with_drives(&self, clock: &impl Clock, keys: &[BlockKey]) -> TieredMatch {
        let replica = self.synced_replica();
        let in_pool =
            |key: &BlockKey| replica.find(*key).map(|handle| MatchedBlock { key: *key, handle });
        let pool: Vec<_> = keys.iter().map_while(in_pool).collect();
        let mut behind = Vec::new();
        let rest = &keys[pool.len()..];
        if rest.is_empty() {
            return TieredMatch { pool, behind };
        }
        let Ok(drives) = self.drives() else { return TieredMatch { pool, behind } };
        let table = self.drive_table(drives);
        if !self.process_state().is_agent_alive(table.beat(), clock.now_ms()) {
            return TieredMatch { pool, behind };
        }
        let alive = table.alive();
        for key in rest {
            let found = match table.find(key.index()) & alive {
                // The first of them is not in the pool.
                0 if behind.is_empty() => None,
                0 => in_pool(key).map(Found::InPool),
                // READY in the pool before a drive.
                nodes => match in_pool(key).filter(|_| !behind.is_empty()) {
                    Some(block) => Some(Found::InPool(block)),
                    None => Some(Found::OnDrive { key: *key, node: self.nearest(nodes) }),
                },
            };
            match found {
                Some(found) => behind.push(found),
                None => break,
            }
        }
        TieredMatch { pool, behind }
    }

    /// Which of `keys` are in the pool, or on drives of hosts whose agents live: each one for itself,
    /// as far as was announced before the call. What is on drives is a hint. No lookup is counted:
    /// the caller chooses blocks by the answer, and looks these up.
    #[must_use]
    pub fn present_with_drives(&self, clock: &impl Clock, keys: &[BlockKey]) -> Vec<bool> {
        let mut present = self.present(keys);
        if present.iter().all(|is_present| *is_present) {
            return present;
        }
        let Ok(drives) = self.drives() else { return present };
        let table = self.drive_table(drives);
        if !self.process_state().is_agent_alive(table.beat(), clock.now_ms()) {
            return present;
        }
        let alive = table.alive();
        for (is_present, key) in present.iter_mut().zip(keys) {
            *is_present = *is_present || table.find(key.index()) & alive != 0;
        }
        present
    }

    /// Of nodes that have a block, one bit each and at least one, the node to ask.
    fn nearest(&self, nodes: u64) -> NodeId {
        let own = self.member().node();
        match nodes >> own.index() & 1 {
            1 => own,
            _ => NodeId(u16::try_from(nodes.trailing_zeros()).unwrap_or(own.0)),
        }
    }

    /// Whether the agent of `node` lives, as the agent of this host sees it. While no agent of this
    /// host lives, no agent is seen to.
    #[must_use]
    pub fn is_drive_agent_alive(&self, clock: &impl Clock, node: NodeId) -> bool {
        let Ok(drives) = self.drives() else { return false };
        let table = self.drive_table(drives);
        self.process_state().is_agent_alive(table.beat(), clock.now_ms())
            && table.alive() >> node.index() & 1 == 1
    }
}
