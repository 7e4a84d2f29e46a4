//! Clearing a namespace: a node asks, and each owner removes its own blocks.
//!
//! ```text
//! asking node                            owner
//!   directive line and count of            (upkeep, every few milliseconds)
//!   directives, published           --->   counts of all nodes, freshly
//!                                          lines of new directives, freshly
//!                                          descriptors FREE, log, head: batch by batch
//!   answers of all nodes, freshly   <---   answer: number of the last directive, published
//! ```
//!
//! - **CLEAR-D2** An owner answers once every block is FREE, published, that was complete when the
//!   owner first saw the directive. Blocks that are published later may stay.
//! - **CLEAR-D3** A hold keeps no block: it is a promise not to evict, and the second look of its
//!   reader finds FREE (READ-F2).
//! - **CLEAR-D4** The blocks of a vacant node are removed by the asking node, as its reclaimer
//!   (ORPHAN-W1). A node that joins answers what its earlier lives left open.
//!
//! - **CLEAR-D8** Where a node has drives, its agent answers a clear in a word of its own: once no block
//!   that the agent had when it first saw the directive can come from its drives. The asking process
//!   looks whether a node ever had an agent after it has published the directive. An agent that starts
//!   says so, published, before it looks for directives.
//!
//! A directive that the asking process does not wait for is carried out all the same, by every node
//! that lives. Each answer is a word with one writing host.

use std::collections::BTreeSet;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{LineError, refresh_all};
use cxl_shm::host::MembershipLost;
use cxl_shm::layout::{NodeLine, NodeState};
use cxl_shm::lifecycle::is_vacant;
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use super::issue::DirectiveError;
use crate::format::{Answer, Descriptor, DescriptorError, Directive, SlotContent};
use crate::identity::{Namespace, NamespaceTag};
use crate::process::Cache;
use crate::reclaim::Orphan;

/// Between two looks at all blocks of a node that does not answer.
const LOOK_MS: u64 = 1000;

/// A clear under way.
#[derive(Debug)]
pub struct Clearing {
    number: u64,
    /// Whether drives are to have none of it, too.
    clears_drives: bool,
    namespace: Option<NamespaceTag>,
    /// Vacant nodes whose blocks are removed.
    removed: BTreeSet<NodeId>,
    look_at_ms: u64,
    /// Blocks of vacant nodes that were removed so far.
    pub orphaned_blocks: u64,
}

impl<B: Backend> Cache<'_, B> {
    /// Asks every node to remove its complete blocks of `namespace`; of all namespaces when there is
    /// none. Returns at once; [`cleared`](Self::cleared) says what is left.
    ///
    /// # Errors
    /// [`DirectiveError`]; nothing is asked for then.
    pub fn clear(
        &self,
        clock: &impl Clock,
        namespace: Option<&Namespace>,
    ) -> Result<Clearing, DirectiveError> {
        self.ask_to_clear(clock, namespace, Directive::Clear(namespace.copied()))
    }

    /// As [`clear`](Self::clear), and leaves the blocks on drives: they come back when engines ask for
    /// them.
    ///
    /// # Errors
    /// [`DirectiveError`]; nothing is asked for then.
    pub fn clear_pool(
        &self,
        clock: &impl Clock,
        namespace: Option<&Namespace>,
    ) -> Result<Clearing, DirectiveError> {
        self.ask_to_clear(clock, namespace, Directive::ClearPool(namespace.copied()))
    }

    fn ask_to_clear(
        &self,
        clock: &impl Clock,
        namespace: Option<&Namespace>,
        directive: Directive,
    ) -> Result<Clearing, DirectiveError> {
        let clears_drives = directive.may_clear_drives();
        let number = self.issue(clock, directive)?;
        Ok(Clearing {
            number,
            clears_drives,
            namespace: namespace.map(Namespace::tag),
            removed: BTreeSet::new(),
            look_at_ms: clock.now_ms() + LOOK_MS,
            orphaned_blocks: 0,
        })
    }

    /// Removes what vacant nodes have of it, and returns the nodes that may still have some. None
    /// are left when all of it is gone (CLEAR-D2).
    ///
    /// # Errors
    /// [`MembershipLost`].
    pub fn cleared(
        &self,
        clock: &impl Clock,
        clearing: &mut Clearing,
    ) -> Result<Vec<NodeId>, MembershipLost> {
        self.check_member()?;
        let is_wanted =
            |block: &Descriptor| clearing.namespace.is_none_or(|it| it == block.namespace);
        let mut left = Vec::new();
        // Before the look at orphans: a node that leaves meanwhile is waited for.
        let unanswered = self.not_answered(clearing.number);
        let orphans = self.orphans(u64::MAX);
        // A node that was vacant, and is no orphan, has no chunk; or it has a new life.
        let (layout, fabric) = (self.areas().layout(), self.member().fabric());
        left.extend(unanswered.iter().filter_map(|(node, line)| {
            let is_orphan = || orphans.iter().any(|(orphan, _)| orphan == node);
            let is_new = says_vacant(line.as_ref())
                && !clearing.removed.contains(node)
                && !is_orphan()
                && !is_vacant(layout, fabric, *node);
            is_new.then_some(*node)
        }));
        // CLEAR-D4.
        for (node, _) in orphans {
            if clearing.removed.contains(&node) {
                continue;
            }
            if !self.take_orphan(clock, node) {
                left.push(node);
                continue;
            }
            let removed = Orphan::of(self, node).remove(is_wanted);
            self.leave_orphan(clock);
            clearing.orphaned_blocks += removed.unwrap_or(0);
            match removed {
                Some(_) => _ = clearing.removed.insert(node),
                // Its new life removes them.
                None => left.push(node),
            }
        }
        let mut waiting = taking_part(unanswered);
        if !waiting.is_empty() {
            self.locked(clock, |heap| self.mend_directives(heap));
        }
        if !waiting.is_empty() && clock.now_ms() >= clearing.look_at_ms {
            // A node whose processes keep no blocks answers nothing, and may have none.
            clearing.look_at_ms = clock.now_ms() + LOOK_MS;
            waiting.retain(|node| self.has_any(*node, &is_wanted));
        }
        left.extend(waiting);
        left.sort_unstable();
        left.dedup();
        // FAULT-F7: a node of zeros never joined, and need not answer.
        self.check_reads()?;
        Ok(left)
    }

    /// The nodes on whose drives blocks may be left: their agents have not answered (CLEAR-D8). An
    /// agent that has stopped with empty drives is not waited for.
    ///
    /// # Errors
    /// [`MembershipLost`].
    pub fn cleared_drives(&self, clearing: &Clearing) -> Result<Vec<NodeId>, MembershipLost> {
        self.check_member()?;
        let drives = self.areas().drives().filter(|_| clearing.clears_drives);
        let Some(drives) = drives else { return Ok(Vec::new()) };
        let (me, fabric) = (self.member().node(), self.member().fabric());
        let lines = |node| [drives.of(node).states(), drives.of(node).cleared(me).range()];
        refresh_all(fabric, drives.nodes().filter(|node| *node != me).flat_map(lines));
        let may_have_some = |node: &NodeId| {
            let said = drives.of(*node);
            said.has_agent(fabric) && said.cleared(me).cached(fabric) < clearing.number
        };
        let left = drives.nodes().filter(may_have_some).collect();
        // FAULT-F7: a node of zeros has no agent.
        self.check_reads()?;
        Ok(left)
    }

    /// Which drives of a node owe a clear, by their places in the settings of its agent, the first
    /// being 1, as the agent has said lately. None when no agent of the node says so.
    #[must_use]
    pub fn owing_drives(&self, node: NodeId) -> Vec<u32> {
        let Some(drives) = self.areas().drives() else { return Vec::new() };
        let seen = drives.of(node).agent(self.member().fabric());
        let bits = seen.filter(|it| it.line.runs).map_or(0, |it| it.line.owing_drives);
        (0..u64::BITS).filter(|bit| bits & 1 << bit != 0).map(|bit| bit + 1).collect()
    }

    /// Whether a node has a complete block that `is_wanted`, freshly read; or a descriptor that
    /// cannot be read: its owner may be paused in the middle of a change.
    pub(super) fn has_any(&self, node: NodeId, is_wanted: &impl Fn(&Descriptor) -> bool) -> bool {
        let mut found = false;
        self.areas().segment(node).scan(self.member().fabric(), |_, content| {
            found |= match content {
                Ok(SlotContent::Block(block)) => block.is_readable() && is_wanted(&block),
                Ok(SlotContent::Blank | SlotContent::Free { .. }) => false,
                Err(DescriptorError::Torn(_)) => true,
                Err(DescriptorError::Malformed) => false,
            };
        });
        found
    }

    /// The nodes that take part and have not answered this node's directive `number`, freshly read.
    pub(super) fn waiting_for(&self, number: u64) -> Vec<NodeId> {
        taking_part(self.not_answered(number))
    }

    /// The nodes whose last answer to this node is that they refuse directive `number`.
    pub(super) fn refused_by(&self, number: u64) -> Vec<NodeId> {
        let (member, areas) = (self.member(), self.areas());
        let (me, fabric) = (member.node(), member.fabric());
        let has_refused = |node: &NodeId| {
            let word = areas.directives(*node).answer(me).fresh(fabric);
            Answer::from_word(word) == Answer { number, refused: true }
        };
        areas.layout().nodes().filter(has_refused).collect()
    }

    /// The nodes that have not answered this node's directive `number`, and what their lines say,
    /// freshly read. A node that never joined is not among them.
    fn not_answered(&self, number: u64) -> Vec<(NodeId, Option<NodeLine>)> {
        let (member, areas) = (self.member(), self.areas());
        let (me, fabric, layout) = (member.node(), member.fabric(), areas.layout());
        let others = || layout.nodes().filter(|node| *node != me);
        // The answer first: a node that has left since is an orphan.
        refresh_all(fabric, others().map(|node| areas.directives(node).answer(me).range()));
        let has_answered = |node: &NodeId| {
            let answer = match *node == me {
                true => areas.own_directives(member.area()).answer(me).own(fabric),
                false => areas.directives(*node).answer(me).cached(fabric),
            };
            Answer::from_word(answer).number >= number
        };
        let waiting: Vec<NodeId> = layout.nodes().filter(|node| !has_answered(node)).collect();
        refresh_all(fabric, waiting.iter().map(|node| layout.node_line(*node).range()));
        let line = |node| match layout.node_line(node).cached(fabric) {
            Ok(line) => Some((node, Some(line))),
            Err(LineError::Blank { .. }) => None,
            Err(LineError::Corrupt { .. }) => Some((node, None)),
        };
        waiting.into_iter().filter_map(line).collect()
    }
}

/// Whether a node's line says that it is vacant. A line that cannot be read does not.
fn says_vacant(line: Option<&NodeLine>) -> bool {
    line.is_some_and(|line| line.state().is_some_and(NodeState::is_vacant))
}

fn taking_part(nodes: Vec<(NodeId, Option<NodeLine>)>) -> Vec<NodeId> {
    let takes_part = |it: &(NodeId, Option<NodeLine>)| !says_vacant(it.1.as_ref());
    nodes.into_iter().filter(takes_part).map(|(node, _)| node).collect()
}
