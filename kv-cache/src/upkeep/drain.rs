//! Draining a node: it publishes no new blocks, so that its host can be stopped (CLEAR-D10).

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use super::issue::DirectiveError;
use crate::format::{DIRECTIVES, Directive, Drain};
use crate::heap::LockedHeap;
use crate::process::Cache;

impl<B: Backend> Cache<'_, B> {
    /// Asks `drain.node` to publish no new blocks of engines. Returns at once, with the number that
    /// [`unanswered`](Self::unanswered) asks about. Blocks of the node stay where they are, and
    /// readable, also when the node has left.
    ///
    /// # Errors
    /// [`DirectiveError`]; nothing is asked for then.
    pub fn drain(&self, clock: &impl Clock, drain: Drain) -> Result<u64, DirectiveError> {
        self.issue(clock, Directive::Drain(drain))
    }

    /// Asks `drain.node` to publish again, whichever node asked to drain it. Returns at once, as
    /// [`drain`](Self::drain) does.
    ///
    /// # Errors
    /// [`DirectiveError`]; nothing is asked for then.
    pub fn undrain(&self, clock: &impl Clock, drain: Drain) -> Result<u64, DirectiveError> {
        self.issue(clock, Directive::Undrain(drain))
    }

    /// The drain of `node` that is in force; `None` when the last that was asked for is that it
    /// publishes. Lines that cannot be read are passed over: what is behind them counts (CLEAR-D10).
    pub(crate) fn drain_in_force(&self, node: NodeId) -> Option<InForce> {
        let mut last = None;
        for (asking, count) in self.directive_counts().into_iter().filter(|(_, count)| *count > 0) {
            let mut latest_ms = 0;
            for (number, directive) in self.readable_directives(asking, 0, count).flatten() {
                // Directives of one node count in their own order, whatever its clock does (CLEAR-D7).
                latest_ms = directive.asked_ms().max(latest_ms);
                let (asked_ms, drained) = match directive {
                    Directive::Drain(drain) if drain.node == node => (latest_ms, true),
                    Directive::Undrain(drain) if drain.node == node => (latest_ms, false),
                    // CLEAR-D11.
                    Directive::Drained(drain) if drain.node == node => (drain.asked_ms, true),
                    _ => continue,
                };
                last = last.max(Some((asked_ms, asking, number, drained)));
            }
        }
        let (asked_ms, asking, number, drained) = last?;
        drained.then_some(InForce { asking, number, drain: Drain { node, asked_ms } })
    }

    /// The drain in force that loses its line to directive `number`; `None` when there is no such drain,
    /// or `directive` says itself whether that node is drained.
    pub(crate) fn drain_without_line(&self, number: u64, directive: &Directive) -> Option<Drain> {
        let asking = self.member().node();
        let lost = number.checked_sub(DIRECTIVES).filter(|lost| *lost > 0)?;
        let (_, line) = self.readable_directives(asking, lost - 1, lost).next()??;
        let (Directive::Drain(Drain { node, .. }) | Directive::Drained(Drain { node, .. })) = line
        else {
            return None;
        };
        let is_of_node = |drain: &Drain| drain.node == node;
        let is_asked_anew = match directive {
            Directive::Drain(drain) | Directive::Undrain(drain) => is_of_node(drain),
            _ => false,
        };
        let in_force = self.drain_in_force(node).filter(|_| !is_asked_anew)?;
        ((in_force.asking, in_force.number) == (asking, lost)).then_some(in_force.drain)
    }
}

/// A drain that counts, and the directive that says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InForce {
    /// The node that asked.
    pub(crate) asking: NodeId,
    /// The number of its directive.
    pub(crate) number: u64,
    /// The drain, with the time that it counts by.
    pub(crate) drain: Drain,
}

impl<B: Backend> LockedHeap<'_, B> {
    /// Notes whether this node is drained, once in its life: what it answered in an earlier life is not
    /// carried out again otherwise. A process that was faster may know of a later request.
    pub(crate) fn begin_drained(&self, drained: bool) {
        let incarnation = self.member.incarnation();
        if self.directory.drained(incarnation).is_none() {
            self.directory.set_drained(incarnation, drained);
            if drained {
                let node = self.node();
                tracing::warn!(%node, "this node is drained: it publishes no new blocks");
            }
        }
    }
}
