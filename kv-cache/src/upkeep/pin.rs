//! Pinning a namespace: its blocks leave last, on every node, for a time (CLEAR-D5).

use cxl_shm::clock::Clock;
use cxl_shm::host::MembershipLost;
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use super::issue::DirectiveError;
use crate::format::{Directive, Pin};
use crate::heap::{PERCENT_MAX, PIN_MS_MAX};
use crate::identity::Namespace;
use crate::process::Cache;

impl<B: Backend> Cache<'_, B> {
    /// Asks every node to let blocks of `namespace` leave last, as far as they take
    /// `pin.percent` of the node's payload, for `pin.length_ms` from when the node sees the request.
    /// Returns at once, with the number that [`unanswered`](Self::unanswered) asks about.
    ///
    /// A pinned block still leaves when there is nothing else, or when another node needs its
    /// chunk. Where the namespace has a quota on a host, the quota stays. A pin ends on a
    /// node when the last process of its host leaves. A later pin of the namespace replaces it.
    ///
    /// # Errors
    /// [`DirectiveError`]; nothing is asked for then.
    pub fn pin(
        &self,
        clock: &impl Clock,
        namespace: &Namespace,
        pin: Pin,
    ) -> Result<u64, DirectiveError> {
        if !(1..=PERCENT_MAX).contains(&pin.percent) {
            return Err(DirectiveError::Percent(pin.percent));
        }
        if !(1..=PIN_MS_MAX).contains(&pin.length_ms) {
            return Err(DirectiveError::Length(pin.length_ms));
        }
        self.issue(clock, Directive::Pin(*namespace, pin))
    }

    /// Asks every node to end the pin of `namespace`, whichever node asked for the pin;
    /// `asked_ms` as in [`Pin`]. Returns at once, as [`pin`](Self::pin) does.
    ///
    /// # Errors
    /// [`DirectiveError`]; nothing is asked for then.
    pub fn unpin(
        &self,
        clock: &impl Clock,
        namespace: &Namespace,
        asked_ms: u64,
    ) -> Result<u64, DirectiveError> {
        self.issue(clock, Directive::Unpin { namespace: *namespace, asked_ms })
    }

    /// The nodes that take part and have not answered [`pin`](Self::pin) or
    /// [`unpin`](Self::unpin) `number` of this node.
    ///
    /// # Errors
    /// [`MembershipLost`].
    pub fn unanswered(
        &self,
        clock: &impl Clock,
        number: u64,
    ) -> Result<Vec<NodeId>, MembershipLost> {
        self.check_member()?;
        let waiting = self.waiting_for(number);
        if !waiting.is_empty() {
            self.locked(clock, |heap| self.mend_directives(heap));
        }
        // FAULT-F7: a node of zeros never joined, and need not answer.
        self.check_reads()?;
        Ok(waiting)
    }

    /// The nodes that answered [`pin`](Self::pin) `number` of this node last, and do not set it: the
    /// namespace has a quota there, or the host has no room for another.
    #[must_use]
    pub fn refused(&self, number: u64) -> Vec<NodeId> {
        self.refused_by(number)
    }

    /// Whether `node` has a complete block, or a descriptor that cannot be read, as of now. This
    /// scans the node's descriptors.
    #[must_use]
    pub fn has_blocks(&self, node: NodeId) -> bool {
        self.has_any(node, &|_| true)
    }
}
