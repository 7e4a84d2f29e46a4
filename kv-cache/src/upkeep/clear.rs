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

use crate::evict::BATCH;
use crate::format::{DIRECTIVES, Descriptor, Directive, DirectiveLine, Handle, SlotContent};
use crate::heap::PERCENT_MAX;
use crate::identity::{Namespace, NamespaceTag};
use crate::process::Cache;
use crate::reclaim::Orphan;

/// Between two looks at all blocks of a node that does not answer.
const LOOK_MS: u64 = 1000;

/// Why nothing is cleared or pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectiveError {
    /// Some node has not answered many earlier ones.
    #[error(
        "node {node} has not answered the last {DIRECTIVES} requests of this node: it is paused, or \
         no process there keeps its blocks; wait until it continues or is declared dead \
         (`rackline status`)"
    )]
    Unanswered {
        /// The node.
        node: NodeId,
    },
    /// No share that may be pinned.
    #[error("a pin of {0} percent: must be from 1 to {PERCENT_MAX}")]
    Percent(u16),
    /// No time that a pin may last.
    #[error("a pin for {0} ms: must be from 1 ms to 365 days")]
    Length(u64),
    /// This process does not take part any more.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
}

/// A clear under way.
#[derive(Debug)]
pub struct Clearing {
    number: u64,
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
        let number = self.issue(clock, Directive::Clear(namespace.copied()))?;
        Ok(Clearing {
            number,
            namespace: namespace.map(Namespace::tag),
            removed: BTreeSet::new(),
            look_at_ms: clock.now_ms() + LOOK_MS,
            orphaned_blocks: 0,
        })
    }

    /// Asks every node for something. Returns the number of the directive.
    pub(crate) fn issue(
        &self,
        clock: &impl Clock,
        directive: Directive,
    ) -> Result<u64, DirectiveError> {
        self.check_member()?;
        self.locked(clock, |heap| {
            let number = heap.directives.count.own(heap.fabric()).saturating_add(1);
            // CLEAR-D1.
            if let Some(overwritten) = number.checked_sub(DIRECTIVES)
                && let Some(node) = self.waiting_for(overwritten).into_iter().next()
            {
                return Err(DirectiveError::Unanswered { node });
            }
            // The line before the count: a loss of power between them leaves no count of a line
            // that nobody can read, for which every owner would wait.
            heap.directives
                .line(number)
                .publish(heap.fabric(), &DirectiveLine::new(number, directive));
            heap.directives.count.publish(heap.fabric(), number);
            Ok(number)
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
        if !waiting.is_empty() && clock.now_ms() >= clearing.look_at_ms {
            // A node whose processes keep no blocks answers nothing, and may have none.
            clearing.look_at_ms = clock.now_ms() + LOOK_MS;
            waiting.retain(|node| self.has_any(*node, &is_wanted));
        }
        left.extend(waiting);
        left.sort_unstable();
        left.dedup();
        Ok(left)
    }

    /// Whether a node has a complete block that `is_wanted`, freshly read.
    pub(super) fn has_any(&self, node: NodeId, is_wanted: &impl Fn(&Descriptor) -> bool) -> bool {
        let mut found = false;
        self.areas().segment(node).scan(self.member().fabric(), |_, content| {
            if let Ok(SlotContent::Block(block)) = content {
                found |= block.is_readable() && is_wanted(&block);
            }
        });
        found
    }

    /// The nodes that take part and have not answered this node's directive `number`, freshly read.
    pub(super) fn waiting_for(&self, number: u64) -> Vec<NodeId> {
        taking_part(self.not_answered(number))
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
            answer >= number
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

    /// Carries out what nodes asked for since the last call (CLEAR-D2). Returns how many blocks were
    /// removed.
    pub(super) fn answer_directives(&self, clock: &impl Clock) -> u64 {
        let (member, areas) = (self.member(), self.areas());
        let (me, fabric, layout) = (member.node(), member.fabric(), areas.layout());
        let own = areas.own_directives(member.area());
        let others = || layout.nodes().filter(|node| *node != me);
        refresh_all(fabric, others().map(|node| areas.directive_count(node).range()));
        let mut removed = 0;
        for node in layout.nodes() {
            let count = match node == me {
                true => own.count.own(fabric),
                false => areas.directive_count(node).cached(fabric),
            };
            let answered = own.answer(node).own(fabric);
            if count > answered {
                removed += self.carry_out(clock, node, answered, count);
            }
        }
        removed
    }

    /// Carries out the directives of `asking` behind number `answered`, and answers them.
    fn carry_out(&self, clock: &impl Clock, asking: NodeId, answered: u64, count: u64) -> u64 {
        let (member, areas) = (self.member(), self.areas());
        let (fabric, directives) = (member.fabric(), areas.directives(asking));
        let first = answered.max(count.saturating_sub(DIRECTIVES)) + 1;
        if asking != member.node() {
            refresh_all(fabric, (first..=count).map(|number| directives.line(number).range()));
        }
        let (mut done, mut all, mut tags) = (answered, false, BTreeSet::new());
        let mut pins = Vec::new();
        for number in first..=count {
            let line = directives.line(number).cached(fabric);
            // Not there yet (CLEAR-D1). Or damaged: it is never answered, so the asking node hears
            // of it.
            let Some(directive) = line.ok().and_then(|line| line.directive(number)) else { break };
            match directive {
                Directive::Clear(Some(namespace)) => _ = tags.insert(namespace.tag()),
                Directive::Clear(None) => all = true,
                Directive::Pin(..) | Directive::Unpin { .. } => pins.push((number, directive)),
            }
            done = number;
        }
        if done == answered {
            return 0;
        }
        // A pin needs no look at all blocks: there may be millions.
        let handles = if all || !tags.is_empty() {
            self.own_blocks(clock, |block| all || tags.contains(&block.namespace))
        } else {
            Vec::new()
        };
        let removed = handles.chunks(BATCH).map(|batch| self.retire(clock, batch)).sum();
        let refused = self.locked(clock, |heap| {
            let answer = heap.directives.answer(asking);
            // Another process of the host may be ahead: its pins count.
            let answered = answer.own(heap.fabric());
            if answered >= done {
                return 0;
            }
            let refused = heap.quotas.carry_out_pins(&pins, answered);
            answer.publish(heap.fabric(), done);
            refused
        });
        if refused > 0 {
            tracing::warn!(
                node = %asking, refused,
                "pins that the node asked for are not set on this host: the tenant has a quota \
                 here, which stays, or the host has no room for another quota"
            );
        }
        tracing::info!(node = %asking, removed, "carried out what the node asked for");
        removed
    }

    /// The blocks of this node that are `wanted`. Lines that cannot be read are read again under the
    /// heap lock: another process of the host may be writing them (CLEAR-D2).
    fn own_blocks(&self, clock: &impl Clock, wanted: impl Fn(&Descriptor) -> bool) -> Vec<Handle> {
        let fabric = self.member().fabric();
        let segment = self.areas().segment(self.member().node());
        let (mut handles, mut torn) = (Vec::new(), Vec::new());
        for slot in 0..segment.slots_in_use(fabric) {
            match segment.cached(fabric, slot) {
                Ok(SlotContent::Block(block)) if wanted(&block) => handles.push(block.handle),
                Ok(_) => {}
                Err(_) => torn.push(slot),
            }
        }
        for slots in torn.chunks(BATCH) {
            let again = self.locked(clock, |_| {
                let content = slots.iter().filter_map(|slot| segment.cached(fabric, *slot).ok());
                content.collect::<Vec<_>>()
            });
            handles.extend(again.iter().filter_map(|content| match content {
                SlotContent::Block(block) if wanted(block) => Some(block.handle),
                _ => None,
            }));
        }
        handles
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
