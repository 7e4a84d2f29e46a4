//! Which other hosts hold or want a lock, when a wait for the lock ends without it.

use std::fmt;

use super::arbitrated::{grants_of, manager_of, ticket_wanted};
use super::bakery;
use super::shared_tier::others_requests;
use crate::fabric::refresh_all;
use crate::host::Living;
use crate::host::Phase;
use crate::host::ProcessIdentity;
use crate::layout::LockProtocol;
use crate::node::{Backend, Member, NodeHandle};
use crate::units::{LockId, NodeId};

/// Who else held or wanted a lock between hosts at the end of a wait: what one look found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contention {
    /// Another node holds it, by the grant of the lock manager. Never under the protocol `bakery`,
    /// where a holder looks like a waiter from outside.
    HeldBy {
        /// The node. It may be dead, and not recovered yet.
        node: NodeId,
    },
    /// Another node holds or wants it, and no grant to that node was seen.
    WantedBy {
        /// The first of such nodes: by its number in the bakery, else by the number of the node. It
        /// may be dead, and not recovered yet.
        node: NodeId,
    },
    /// Another thread of this host holds it, or came first in the host's queue for it.
    ThisHost {
        /// The process of the thread that has the host's turn; `None` when no living thread had it.
        pid: Option<u32>,
    },
    /// Nobody else: it is free, and was not granted in time.
    Nobody,
}

impl Contention {
    /// One look, for a thread that does not hold `lock`. `is_queued`: it waits in its host's queue.
    pub(crate) fn look<B: Backend>(member: &Member<B>, lock: LockId, is_queued: bool) -> Self {
        let handle = member.node_handle();
        let turn = handle.tier().queue(lock).holder();
        let turn = turn.filter(|token| *token != member.token() && member.holds(*token));
        let identity = turn.and_then(|token| handle.tier().process(token.process()));
        let this_host = Self::ThisHost { pid: identity.map(ProcessIdentity::pid) };
        let is_behind = is_queued || turn.is_some();
        if is_behind && handle.tier().lock_state(lock).phase == Phase::Hold {
            return this_host;
        }
        let nobody = if is_behind { this_host } else { Self::Nobody };
        elsewhere(handle, member.fabric(), lock).unwrap_or(nobody)
    }
}

/// What other nodes do with `lock`: one refresh of their requests, and one of their grants.
fn elsewhere<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    lock: LockId,
) -> Option<Contention> {
    let requests = others_requests(handle, fabric, lock);
    match handle.lock_protocol() {
        LockProtocol::Bakery => {
            let numbered = |(node, word)| Some((bakery::number_wanted(word)?, node));
            // The holder has the smallest number.
            let (_, node) = requests.filter_map(numbered).min()?;
            Some(Contention::WantedBy { node })
        }
        LockProtocol::Arbitrated => {
            let wanted = |(node, word)| Some((node, ticket_wanted(word)?));
            let wanting: Vec<_> = requests.filter_map(wanted).collect();
            let (first, _) = *wanting.first()?;
            let holder = holder_of(handle, fabric, lock, &wanting);
            let wanted = Contention::WantedBy { node: first };
            Some(holder.map_or(wanted, |node| Contention::HeldBy { node }))
        }
    }
}

/// The one of the nodes in `wanting`, each with its ticket, to which the lock manager that this
/// host obeys has granted `lock`.
fn holder_of<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    lock: LockId,
    wanting: &[(NodeId, u64)],
) -> Option<NodeId> {
    let (layout, term) = (handle.layout(), handle.tier().term());
    let grants = layout.grants(manager_of(layout, term)?);
    let grant = |node| grants.word(layout.grant_index(node, lock));
    let words = wanting.iter().filter_map(|(node, _)| grant(*node));
    refresh_all(fabric, words.map(|word| word.range()));
    let is_granted = |(node, ticket): &&(NodeId, u64)| {
        grant(*node).is_some_and(|word| grants_of(term, *ticket).contains(&word.cached(fabric)))
    };
    wanting.iter().find(is_granted).map(|(node, _)| *node)
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeldBy { node } => write!(
                f,
                "node {node} holds it; if that node is dead, it is not recovered yet: `rackline \
                 status` shows whether node {node} is alive"
            ),
            Self::WantedBy { node } => write!(
                f,
                "node {node} holds it or waits for it; if that node is dead, it is not recovered \
                 yet: `rackline status` shows whether node {node} is alive"
            ),
            Self::ThisHost { pid: Some(pid) } => write!(
                f,
                "process {pid} of this host holds it, or waits for it before this thread; if that \
                 process is stopped (a debugger, SIGSTOP), let it continue or end it"
            ),
            Self::ThisHost { pid: None } => write!(
                f,
                "other threads of this host came first; try again, with a longer time-out"
            ),
            Self::Nobody => write!(
                f,
                "no other thread holds it or wants it, and its grant did not arrive in time; try \
                 again, with a longer time-out; if this happens again, check with `rackline \
                 status` whether the lock manager keeps up"
            ),
        }
    }
}
