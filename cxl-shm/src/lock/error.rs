//! Why a lock between hosts was not acquired.

use super::Contention;
use crate::host::MembershipLost;
use crate::units::{LockId, NodeId};

/// Why a lock between hosts was not acquired. Nothing is held or left behind then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// No lock manager ever ran on this region. Not under the protocol `bakery`, which needs none.
    #[error(
        "no lock manager has run on this region yet; start one with `rackline lock-manager` on \
         one of its hosts"
    )]
    NoManager,
    /// The lock manager does not move any more. Not under the protocol `bakery`. The first who
    /// waits finds that out; all of its host are refused at once from then on, until the manager
    /// moves again.
    #[error(
        "the lock manager on node {node} (term {term}) has sent no heartbeat for {silent_ms} ms or \
         longer; start another one with `rackline lock-manager` on this or another host: it takes \
         over"
    )]
    ManagerSilent {
        /// Where it ran.
        node: NodeId,
        /// Its term.
        term: u64,
        /// How long it has been silent, at least.
        silent_ms: u64,
    },
    /// It was not acquired in time.
    #[error("lock {lock} was not acquired within {timeout_ms} ms: {others}")]
    TimedOut {
        /// The lock.
        lock: LockId,
        /// How long was waited, in milliseconds.
        timeout_ms: u64,
        /// Who else held or wanted it at the end.
        others: Contention,
    },
    /// This node has asked for the lock as often as can be counted. Not under the protocol
    /// `bakery`.
    #[error(
        "node {node} has used all 2^37 tickets for lock {lock}; use another lock, or format the \
         region again with `rackline format --force`"
    )]
    TicketsUsedUp {
        /// This node.
        node: NodeId,
        /// The lock.
        lock: LockId,
    },
    /// This node does not take part any more.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
    /// What a node has in its request word was written by no node. It may hide a holder, so nobody
    /// has the lock while it is there. Only under the protocol `bakery`.
    #[error(
        "the request of node {node} for lock {lock} is damaged; stop all processes of that node \
         and start them again: joining repairs the request"
    )]
    DamagedRequest {
        /// Whose request it is.
        node: NodeId,
        /// The lock.
        lock: LockId,
    },
}

impl LockError {
    /// Whether the lock was refused because nobody grants locks at the moment: no lock manager
    /// runs, or it is silent. The host remembers that: until a lock manager moves, every further
    /// request of the same host is refused at once, without waiting.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::NoManager | Self::ManagerSilent { .. })
    }
}
