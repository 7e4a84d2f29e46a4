//! What the shared tier of a lock is, whatever its protocol.

use std::fmt::Debug;
use std::hash::Hash;

use crate::fabric::refresh_all;
use crate::host::Phase;
use crate::node::{Backend, NodeHandle};
use crate::units::{LockId, NodeId};

/// A node's side of a lock between hosts, as a state machine: an acquisition in progress. `begin`,
/// then `poll` until it holds, or `withdraw` at any time.
///
/// One thread of the host is here at a time: the caller holds the host tier's lock of the same lock
/// id. What outlives that thread is the host's *lock state* (its phase: idle, waiting,
/// holding), so that a lock can be passed to another thread ([`Held::passed`]) and ended after a
/// death.
pub(crate) trait SharedTier: Clone + Eq + Hash + Debug + Sized {
    /// Publishes that this node wants `lock`. The lock state is idle: a predecessor that died with
    /// it was recovered from first.
    fn begin<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> Self;

    /// A few operations towards the lock; what is held, once it is. Not called again after that.
    ///
    /// # Errors
    /// [`DamagedRequest`]: nothing has changed, and the acquisition is still to be withdrawn.
    fn poll<B: Backend>(
        &mut self,
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
    ) -> Result<Option<Held>, DamagedRequest>;

    /// Whether another node was seen before this one. Not where only a lock manager sees that.
    fn was_behind(&self) -> bool;

    /// Gives up waiting. Always legal, also when the lock is being granted.
    fn withdraw<B: Backend>(self, handle: &NodeHandle<B>, fabric: &B::Fabric);

    /// Releases. Everything the lock protects has been published (LOCK-A3).
    fn release<B: Backend>(held: Held, handle: &NodeHandle<B>, fabric: &B::Fabric);

    /// Ends what a thread that died waiting or holding had begun. Intents were redone before; of a
    /// program's lock that it held, what it may have stored is on the device, and later holders are
    /// told (LOCK-L5).
    fn release_after_death<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId);

    /// Later holders are not told any more that one before them died (LOCK-L5): from the release
    /// on.
    fn make_consistent<B: Backend>(held: Held, handle: &NodeHandle<B>, fabric: &B::Fabric);

    /// Whether a former life of this node may have held `lock`, a program's. Only while the host
    /// joins.
    fn may_have_held<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> bool;

    /// Whether a node other than this one wants or holds `lock`: one parallel look.
    fn is_wanted_elsewhere<B: Backend>(
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
        lock: LockId,
    ) -> bool;

    /// Whether the node has a ticket left for `lock`. Asked with the host's turn, before
    /// [`begin`](Self::begin).
    fn has_tickets<B: Backend>(handle: &NodeHandle<B>, lock: LockId) -> bool;

    /// Whether the node can continue from its published request. Asked before the slot is touched.
    fn can_resume<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> bool;

    /// Ends the request of the node's former incarnation and starts its lock state. Only while the
    /// host joins, after intents were redone.
    fn resume<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId);
}

/// A lock that the host holds, and the ticket under which it does; bakery has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "a held lock is released"]
pub(crate) struct Held {
    pub(super) lock: LockId,
    pub(super) ticket: u64,
    /// A holder died, and nobody has made the data consistent since (LOCK-L5).
    pub(super) after_death: bool,
}

impl Held {
    /// What the host holds of `lock`, for the thread that it was passed to: no other is at it.
    pub(crate) fn passed<B: Backend>(
        handle: &NodeHandle<B>,
        lock: LockId,
        after_death: bool,
    ) -> Option<Self> {
        let state = handle.tier().lock_state(lock);
        let held = Self { lock, ticket: state.ticket, after_death };
        (state.phase == Phase::Hold).then_some(held)
    }
}

/// What every other node has in its request word of `lock`, freshly read with one fence.
pub(super) fn others_requests<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    lock: LockId,
) -> impl Iterator<Item = (NodeId, u64)> {
    let me = handle.node();
    let others = || handle.layout().nodes().filter(move |node| *node != me);
    refresh_all(fabric, others().map(|node| handle.layout().request(node, lock).range()));
    others().map(move |node| (node, handle.layout().request(node, lock).cached(fabric)))
}

/// A request word that no host ever writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("the request of node {node} is damaged")]
pub(crate) struct DamagedRequest {
    /// Whose it is.
    pub(crate) node: NodeId,
}
