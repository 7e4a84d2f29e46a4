//! Draining a node: it publishes no new blocks, so that its host can be stopped (CLEAR-D10).

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;

use super::carry_out::New;
use super::issue::DirectiveError;
use crate::format::{Directive, Drain};
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

    /// Whether the last that was asked for this node is to drain it.
    pub(crate) fn is_asked_to_drain(&self) -> bool {
        let mut last = None;
        for (asking, count) in self.directive_counts().into_iter().filter(|(_, count)| *count > 0) {
            let new = self.new_directives(asking, 0, count);
            let mut asked_ms = 0;
            for (number, directive) in new.into_iter().flat_map(New::into_directives) {
                // Directives of one node count in their own order, whatever its clock does (CLEAR-D7).
                asked_ms = directive.asked_ms().max(asked_ms);
                let drained = match directive {
                    Directive::Drain(drain) if drain.node == self.member().node() => true,
                    Directive::Undrain(drain) if drain.node == self.member().node() => false,
                    _ => continue,
                };
                last = last.max(Some((asked_ms, asking, number, drained)));
            }
        }
        last.is_some_and(|(.., drained)| drained)
    }
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
