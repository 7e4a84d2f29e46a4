//! The next life of a node whose blocks a reclaimer was reclaiming (ORPHAN-W2).

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use crate::heap::Heap;

/// How long it waits for a reclaimer. A running reclaimer looks before every batch of evictions,
/// before it looks at all blocks of the orphan, and while it waits for a lock, however long that
/// takes (ORPHAN-W2). This time is much longer than any gap between two of these looks. When the
/// reclaimer's process dies, other processes of its host end its work twice a second. A dead or
/// paused host cannot be waited for.
const WAIT_MS: u64 = 10_000;

/// Another host is still reclaiming the blocks of this node's previous incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "node {reclaimer} is still reclaiming blocks of this node's previous incarnation, and does not \
     stop: its host is paused, or dead and not fenced yet (`rackline status`); start again when \
     that host continues or is recovered"
)]
pub struct ReclaimInProgress {
    /// The reclaiming node.
    pub reclaimer: NodeId,
}

impl<B: Backend> Heap<'_, B> {
    /// Waits until no other node writes the blocks that this node published in earlier lives,
    /// unless a process of this life has taken them over already. This host's caches do not hold
    /// what was written since the node joined: the first sweep refreshes those lines (MEM-M8).
    pub(crate) fn await_reclaimer(&self, clock: &impl Clock) -> Result<(), ReclaimInProgress> {
        let until_ms = clock.now_ms().saturating_add(WAIT_MS);
        let mut tries = 0;
        loop {
            match self.check_reclaimer(clock) {
                Err(_) if clock.now_ms() < until_ms => clock.pause(tries),
                outcome => return outcome,
            }
            tries += 1;
        }
    }

    /// Looks once whether another node still writes them.
    pub(crate) fn check_reclaimer(&self, clock: &impl Clock) -> Result<(), ReclaimInProgress> {
        if self.is_built(clock) {
            return Ok(());
        }
        self.member()
            .still_guarded()
            .map_or(Ok(()), |reclaimer| Err(ReclaimInProgress { reclaimer }))
    }
}
