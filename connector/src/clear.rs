//! Clearing the blocks of a tenant in the whole pool.

use std::collections::BTreeSet;
use std::time::Duration;

use cxl_shm::clock::Clock;
use cxl_shm::units::NodeId;
use kv_cache::{Clearing, DirectiveError, Namespace};

use crate::pool::Pool;

/// Between two looks at who has answered.
pub(crate) const POLL_MS: u64 = 10;

/// What came of a clear.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a clear that is not complete says so here"]
pub struct Cleared {
    /// The nodes that may still have blocks, because they have not answered in time. They remove
    /// their blocks when they continue; when they are declared dead, clear again. Empty: all blocks
    /// are gone.
    pub unanswered: Vec<NodeId>,
    /// The nodes on whose drives blocks may be left, because their agents have not answered in time.
    /// An agent removes the blocks before any host finds one: now, or when it starts. Empty: no drive
    /// that an agent was given has any.
    pub drives_unanswered: Vec<NodeId>,
    /// Of those nodes whose agents work, the drives that still owe the clear, by their places in the
    /// settings of the agent, the first being 1: a device does not answer, or a table cannot be read.
    pub drives_owing: Vec<(NodeId, Vec<u32>)>,
    /// Blocks of dead and departed nodes that this process removed.
    pub orphaned_blocks: u64,
}

impl Cleared {
    /// The nodes that may still have blocks, in the pool or on drives, in order.
    #[must_use]
    pub fn nodes_left(&self) -> Vec<NodeId> {
        let all = self.unanswered.iter().chain(&self.drives_unanswered).copied();
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Pool {
    /// Removes the blocks of `namespace` from the pool and from drives, on all nodes; those of all
    /// namespaces when there is none. Waits until they are gone, for at most `timeout`.
    ///
    /// Every block is removed that was published before the call, held or not; a fetch that is under
    /// way becomes a miss. A block that is published meanwhile may stay. Other namespaces keep their
    /// blocks, unless their 16-bit tag is equal. What engines have in memory of their own stays.
    ///
    /// # Errors
    /// [`DirectiveError`]. When the membership is lost while this waits, the other nodes clear all the
    /// same.
    ///
    /// # Example
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rackline::{Namespace, Pool};
    ///
    /// let pool = Pool::attach("/dev/dax0.0", 3)?;
    /// let tenant = Namespace::new("tenant-a", b"");
    /// let cleared = pool.clear(Some(&tenant), Duration::from_secs(10))?;
    /// assert!(cleared.nodes_left().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(
        &self,
        namespace: Option<&Namespace>,
        timeout: Duration,
    ) -> Result<Cleared, DirectiveError> {
        let clearing = self.cache().clear(self.clock(), namespace)?;
        self.wait_until_cleared(clearing, timeout)
    }

    /// As [`clear`](Self::clear), and leaves the blocks on drives: they come back when engines ask for
    /// them.
    ///
    /// # Errors
    /// As of [`clear`](Self::clear).
    pub fn clear_pool(
        &self,
        namespace: Option<&Namespace>,
        timeout: Duration,
    ) -> Result<Cleared, DirectiveError> {
        let clearing = self.cache().clear_pool(self.clock(), namespace)?;
        self.wait_until_cleared(clearing, timeout)
    }

    fn wait_until_cleared(
        &self,
        mut clearing: Clearing,
        timeout: Duration,
    ) -> Result<Cleared, DirectiveError> {
        let (cache, clock) = (self.cache(), self.clock());
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let end_ms = clock.now_ms().saturating_add(timeout_ms);
        loop {
            let unanswered = cache.cleared(clock, &mut clearing)?;
            let drives_unanswered = cache.cleared_drives(&clearing)?;
            let is_done = unanswered.is_empty() && drives_unanswered.is_empty();
            if is_done || clock.now_ms() >= end_ms {
                let orphaned_blocks = clearing.orphaned_blocks;
                let owing = drives_unanswered.iter().map(|it| (*it, cache.owing_drives(*it)));
                let drives_owing = owing.filter(|(_, drives)| !drives.is_empty()).collect();
                return Ok(Cleared {
                    unanswered,
                    drives_unanswered,
                    drives_owing,
                    orphaned_blocks,
                });
            }
            clock.sleep_ms(POLL_MS);
        }
    }
}
