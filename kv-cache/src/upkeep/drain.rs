//! Draining a node: it publishes no new blocks, so that its host can be stopped (CLEAR-D10).

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use super::carry_out::New;
use super::issue::DirectiveError;
use crate::format::{DIRECTIVES, Directive, Drain, OfDrain};
use crate::heap::LockedHeap;
use crate::process::Cache;

/// How often lines are looked at that change meanwhile. A request writes at most as many as there are.
const LOOKS_MAX: usize = 64;

impl<B: Backend> Cache<'_, B> {
    /// Asks `drain.node` to publish no new blocks of engines. Returns at once, with the number that
    /// [`unanswered`](Self::unanswered) asks about. Blocks of the node stay where they are, and
    /// readable, also when the node has left.
    ///
    /// # Errors
    /// [`DirectiveError`]; nothing is asked for then.
    pub fn drain(&self, clock: &impl Clock, drain: Drain) -> Result<u64, DirectiveError> {
        self.issue(clock, Directive::Drain(self.after_the_last(drain)?))
    }

    /// Asks `drain.node` to publish again, whichever node asked to drain it. Returns at once, as
    /// [`drain`](Self::drain) does.
    ///
    /// # Errors
    /// [`DirectiveError`]; nothing is asked for then.
    pub fn undrain(&self, clock: &impl Clock, drain: Drain) -> Result<u64, DirectiveError> {
        self.issue(clock, Directive::Undrain(self.after_the_last(drain)?))
    }

    /// The same, later than all that was asked for of this node: the clock of who asked for that may be
    /// ahead (CLEAR-D10).
    fn after_the_last(&self, drain: Drain) -> Result<Drain, DirectiveError> {
        if self.areas().layout().node(drain.node.0).is_none() {
            return Err(DirectiveError::NoNode(drain.node));
        }
        let last_ms = self.last_asked(drain.node).map(|last| last.drain.asked_ms);
        let next_ms = last_ms.map_or(0, |last_ms| last_ms.saturating_add(1));
        Ok(Drain { asked_ms: drain.asked_ms.max(next_ms), ..drain })
    }

    /// The drain of `node` that is in force; `None` when the last that was asked for is that it
    /// publishes.
    pub(crate) fn drain_in_force(&self, node: NodeId) -> Option<LastAsked> {
        self.last_asked(node).filter(|last| last.drained)
    }

    /// What was asked for last of a drain of `node` and its end.
    fn last_asked(&self, node: NodeId) -> Option<LastAsked> {
        self.last_asked_since(node, self.directive_counts())
    }

    /// The same, where each node had asked for so many things a moment ago.
    pub(crate) fn last_asked_since(
        &self,
        node: NodeId,
        mut counts: Vec<(NodeId, u64)>,
    ) -> Option<LastAsked> {
        for _ in 0..LOOKS_MAX {
            let last = self.last_asked_in(node, &counts);
            // A drain may have gone from a line that was not read yet into one that was (CLEAR-D11).
            let now = self.directive_counts();
            if now == counts {
                return last;
            }
            counts = now;
        }
        self.last_asked_in(node, &counts)
    }

    /// The same, in the lines of so many directives of each node. Lines that cannot be read are passed
    /// over: what is behind them counts (CLEAR-D10).
    fn last_asked_in(&self, node: NodeId, counts: &[(NodeId, u64)]) -> Option<LastAsked> {
        let mut asked = Vec::new();
        for (asking, count) in counts.iter().copied().filter(|(_, count)| *count > 0) {
            let mut latest_ms = 0;
            for (number, directive) in self.readable_directives(asking, 0, count).flatten() {
                // Directives of one node count in their own order, whatever its clock does (CLEAR-D7).
                latest_ms = directive.asked_ms().max(latest_ms);
                let Some(said) = directive.of_drain().filter(|said| said.drain.node == node) else {
                    continue;
                };
                // CLEAR-D11.
                let asked_ms = if said.again { said.drain.asked_ms } else { latest_ms };
                asked.push((asked_ms, asking, number, said.drained));
            }
        }
        let (asked_ms, asking, number, drained) = *asked.iter().max()?;
        let ends_another = !drained && asked.iter().any(|it| it.3 && it.1 != asking);
        let drain = Drain { node, asked_ms };
        Some(LastAsked { asking, number, drain, drained, ends_another })
    }

    /// Ends or begins that this node publishes, when one of `new` concerns that (CLEAR-D10).
    pub(super) fn decide_drained(&self, heap: &LockedHeap<'_, B>, new: &[New]) {
        let node = heap.node();
        let mut said = new.iter().flat_map(|new| &new.directives);
        let concerns = |said: OfDrain| said.drain.node == node;
        if said.any(|(_, directive)| directive.of_drain().is_some_and(concerns)) {
            heap.set_drained(self.drain_in_force(node).is_some());
        }
    }

    /// What is to be said again because directive `number` overwrites the line that says so. `None` when
    /// nothing there counts, or `directive` says itself whether that node is drained.
    pub(crate) fn said_again(&self, number: u64, directive: &Directive) -> Option<Directive> {
        let asking = self.member().node();
        let lost = number.checked_sub(DIRECTIVES).filter(|lost| *lost > 0)?;
        let (_, line) = self.readable_directives(asking, lost - 1, lost).next()??;
        let node = line.of_drain()?.drain.node;
        if directive.of_drain().is_some_and(|said| !said.again && said.drain.node == node) {
            return None;
        }
        let last = self.last_asked(node)?;
        let LastAsked { drain, drained, ends_another, .. } = last;
        let counts = (last.asking, last.number) == (asking, lost) && (drained || ends_another);
        let again = if drained { Directive::Drained } else { Directive::NotDrained };
        counts.then_some(again(drain))
    }
}

/// Whether a node is drained, by what was asked for last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LastAsked {
    /// The node that asked.
    pub(crate) asking: NodeId,
    /// The number of its directive.
    pub(crate) number: u64,
    /// The drain or its end, with the time that it counts by.
    pub(crate) drain: Drain,
    /// Whether it is a drain.
    pub(crate) drained: bool,
    /// It is the end of a drain that another node has a line of.
    pub(crate) ends_another: bool,
}

impl<B: Backend> LockedHeap<'_, B> {
    /// Notes whether this node is drained, once in its life: what it answered in an earlier life is not
    /// carried out again otherwise. A process that was faster may know of a later request.
    pub(crate) fn begin_drained(&self, drained: bool) {
        if self.directory.drained(self.member.incarnation()).is_none() {
            self.set_drained(drained);
        }
    }

    fn set_drained(&self, drained: bool) {
        let (node, incarnation) = (self.node(), self.member.incarnation());
        let before = self.directory.drained(incarnation).unwrap_or_default();
        self.directory.set_drained(incarnation, drained);
        match (before, drained) {
            (false, true) => {
                tracing::warn!(%node, "this node is drained: it publishes no new blocks");
            }
            (true, false) => {
                tracing::info!(%node, "this node is not drained any more: it publishes blocks again");
            }
            (true, true) | (false, false) => {}
        }
    }
}
