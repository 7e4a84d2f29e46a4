//! Being the lock manager: at most one process a host, one host a term.

use super::arbitrated::{Manager, ManagerState, NodeReport};
use crate::fabric::Fabric;
use crate::host::HostAcquire;
use crate::host::HostLockName;
use crate::host::LockState;
use crate::layout::Layout;
use crate::node::Member;
use crate::node::{Backend, Slot, is_freed, is_taken};
use crate::units::NodeId;

/// Why a process did not become lock manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManageError {
    /// Another process of this host is it, or wants to be.
    #[error("another lock manager runs on this host already")]
    OneOnThisHost,
    /// The terms are used up.
    #[error("the region has no terms left; format it again")]
    NoTermsLeft,
}

/// The right to be this host's lock manager, held until dropped.
///
/// It stands by until [`claim`](Self::claim), then serves by [`poll`](Self::poll).
#[derive(Debug)]
pub struct Manage<'m, B: Backend> {
    member: &'m Member<B>,
    manager: Option<Manager>,
    hurried: u8,
}

/// Most rounds in haste in a row ([`Manage::attend`]).
const HURRIED_MAX: u8 = 15;

/// The manager of the newest term, as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagerSeen {
    /// Where it runs.
    pub node: NodeId,
    /// Its term.
    pub term: u64,
    /// Changes while it lives.
    pub heartbeat: u64,
    /// It has not said that it stopped.
    pub serving: bool,
}

impl<B: Backend> Member<B> {
    /// Makes this process the one of its host that may be lock manager.
    ///
    /// # Errors
    /// [`ManageError::OneOnThisHost`].
    pub fn manage(&self) -> Result<Manage<'_, B>, ManageError> {
        let lock = self.node_handle().tier().host_lock(HostLockName::Manager);
        match self.try_host_lock(&lock) {
            HostAcquire::Busy => Err(ManageError::OneOnThisHost),
            HostAcquire::Acquired | HostAcquire::Recovered => {
                Ok(Manage { member: self, manager: None, hurried: 0 })
            }
        }
    }

    /// The manager of the newest term; `None` when there never was one.
    #[must_use]
    pub fn manager_seen(&self) -> Option<ManagerSeen> {
        ManagerSeen::look(self.layout(), self.fabric())
    }
}

impl ManagerSeen {
    /// Looks over all nodes, freshly. Needs no membership.
    #[must_use]
    pub fn look<F: Fabric>(layout: &Layout, fabric: &F) -> Option<Self> {
        let (node, claim) = super::arbitrated::newest_claim(layout, fabric)?;
        let heartbeat = layout.manager_heartbeat(node).fresh(fabric);
        Some(Self { node, term: claim.term, heartbeat, serving: claim.serving })
    }

    /// A node that takes part and has not acknowledged the term, as far as its first lock says:
    /// nothing is granted before it has (LOCK-T4).
    #[must_use]
    pub fn waiting_for<F: Fabric>(&self, layout: &Layout, fabric: &F) -> Option<NodeId> {
        let _ = Slot::all(layout, fabric);
        layout.nodes().find(|node| {
            let present = is_taken(layout, fabric, *node) && !is_freed(layout, fabric, *node);
            let first = layout.acks(*node).word(0).map(|word| word.fresh(fabric));
            present && first.is_some_and(|word| LockState::from_word(word).term != self.term)
        })
    }
}

impl<'m, B: Backend> Manage<'m, B> {
    /// The member whose right it is.
    #[must_use]
    pub fn member(&self) -> &'m Member<B> {
        self.member
    }

    /// Claims the next term. After return every other manager finds itself deposed; grants begin
    /// once all nodes have acknowledged the term.
    ///
    /// # Errors
    /// [`ManageError::NoTermsLeft`].
    pub fn claim(&mut self) -> Result<u64, ManageError> {
        let manager = Manager::claim(self.member.node_handle(), self.member.fabric());
        let manager = manager.ok_or(ManageError::NoTermsLeft)?;
        let term = manager.term();
        self.manager = Some(manager);
        Ok(term)
    }

    /// One round of the manager's work; `None` before [`claim`](Self::claim) and after the
    /// manager was deposed.
    pub fn poll(&mut self) -> Option<ManagerState> {
        let state = self.manager.as_mut()?.poll(self.member.node_handle(), self.member.fabric());
        if matches!(state, ManagerState::Deposed { .. }) {
            self.manager = None;
        }
        self.member.count_moved_lines();
        Some(state)
    }

    /// As [`poll`](Self::poll), but while a thread waits for a lock only one round in so many looks
    /// at everything: the others see a release, grant the lock again, and look at nothing else. For
    /// the thread that drives the manager all the time.
    pub fn attend(&mut self) -> Option<ManagerState> {
        let hurried = self.hurried;
        match &mut self.manager {
            Some(manager) if manager.is_waited_for() && hurried < HURRIED_MAX => {
                self.hurried = hurried + 1;
                Some(manager.hurry(self.member.node_handle(), self.member.fabric()))
            }
            _ => {
                self.hurried = 0;
                self.poll()
            }
        }
    }

    /// Whether a thread waits for a lock, as of the last round: its holder may release it at any
    /// moment, and the next round should not be far.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.manager.as_ref().is_some_and(Manager::is_waited_for)
    }

    /// The nodes as seen in the last round.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeReport> {
        self.manager.iter().flat_map(Manager::nodes).collect()
    }
}

impl<B: Backend> Drop for Manage<'_, B> {
    fn drop(&mut self) {
        let (handle, fabric) = (self.member.node_handle(), self.member.fabric());
        if let Some(manager) = self.manager.take() {
            manager.stop(handle, fabric);
        }
        handle.tier().host_lock(HostLockName::Manager).release(self.member.token());
    }
}
