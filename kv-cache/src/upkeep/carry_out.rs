//! Carrying out what nodes ask for, as the owner of blocks.
//!
//! - **CLEAR-D7** Pins and unpins that an owner sees at once, of several nodes, count in the order in
//!   which they were asked for, by the clocks of the asking hosts. Those of one node count in the
//!   order of their numbers. What one process of a host has carried out, no other carries out again.
//! - **CLEAR-D10** A drained node publishes no new blocks of engines, until a node asks for the end of
//!   that. A word in the host's DRAM says so to all processes of the host, for this life of the node.
//!   The directive stays in the region: a node that joins again looks for it when it attaches. A node that
//!   sees a new directive about itself decides anew, by all lines that it can read: so it is drained
//!   exactly when it would be if it joined now. Drains and their ends count in the order of CLEAR-D7. The
//!   asking node takes a later time than all that it sees asked for of that node, so clocks decide only of
//!   requests that were made at once. Lines that cannot be read are passed over: a drain behind them
//!   counts. Blocks come back from drives meanwhile: agents serve others until they stop.
//! - **CLEAR-D11** Before the line of a drain in force is written again, the asking node says *drained*
//!   in a new line, with the time of the drain, and counts that: so a death in between loses neither. It
//!   counts by that time alone and is no later request, so a node that has seen a later end of the drain
//!   is not drained again. The end of a drain stays in the same way, as *not drained*, for as long as
//!   another node has a line of a drain that it ends. A node that has read the lines counts the requests
//!   again, and reads anew when there are more. A line is left for what is asked, and one for what
//!   is said again: a node that asks for more than 14 drains forgets some, and the log says so.

use std::collections::BTreeSet;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::refresh_all;
use cxl_shm::host::MembershipLost;
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use crate::evict::BATCH;
use crate::format::{Answer, DIRECTIVES, Descriptor, Directive, Handle, SlotContent};
use crate::heap::LockedHeap;
use crate::identity::NamespaceTag;
use crate::process::Cache;

/// New directives of one node.
pub(crate) struct New {
    asking: NodeId,
    /// The last one.
    last: u64,
    /// Number and content of each.
    pub(super) directives: Vec<(u64, Directive)>,
}

impl<B: Backend> Cache<'_, B> {
    /// Carries out what nodes asked for since the last call (CLEAR-D2). Returns how many blocks were
    /// removed.
    pub(super) fn answer_directives(&self, clock: &impl Clock) -> u64 {
        let member = self.member();
        let own = self.areas().own_directives(member.area());
        let mut new = Vec::new();
        for (node, count) in self.directive_counts() {
            let answered = Answer::from_word(own.answer(node).own(member.fabric())).number;
            if count > answered {
                new.extend(self.new_directives(node, answered, count));
            }
        }
        if new.is_empty() {
            return 0;
        }
        let removed = self.clear_own(clock, &new);
        let refused = self.locked(clock, |heap| {
            self.decide_drained(heap, &new);
            pin_and_answer(heap, &new)
        });
        if refused > 0 {
            tracing::warn!(
                refused,
                "pins that nodes asked for are not set on this host: the tenant has a quota here, \
                 which stays, or the host has no room for another quota"
            );
        }
        let nodes: Vec<_> = new.iter().map(|new| new.asking.to_string()).collect();
        tracing::info!(nodes = nodes.join(", "), removed, "carried out what the nodes asked for");
        removed
    }

    /// How many directives there ever were, of each node, as of now.
    pub(crate) fn directive_counts(&self) -> Vec<(NodeId, u64)> {
        let (member, areas) = (self.member(), self.areas());
        let (me, fabric, layout) = (member.node(), member.fabric(), areas.layout());
        let others = layout.nodes().filter(|node| *node != me);
        refresh_all(fabric, others.map(|node| areas.directive_count(node).range()));
        let count = |node| match node == me {
            true => areas.own_directives(member.area()).count.own(fabric),
            false => areas.directive_count(node).cached(fabric),
        };
        layout.nodes().map(|node| (node, count(node))).collect()
    }

    /// The directives of `asking` behind number `answered`, as far as they can be read.
    pub(crate) fn new_directives(&self, asking: NodeId, answered: u64, count: u64) -> Option<New> {
        // One that is not there yet ends them (CLEAR-D1), or a damaged one (CLEAR-D6).
        let all = self.readable_directives(asking, answered, count);
        let directives: Vec<_> = all.map_while(|directive| directive).collect();
        let last = directives.last()?.0;
        Some(New { asking, last, directives })
    }

    /// The same, each: `None` where it cannot be read.
    pub(super) fn readable_directives(
        &self,
        asking: NodeId,
        answered: u64,
        count: u64,
    ) -> impl Iterator<Item = Option<(u64, Directive)>> + '_ {
        let (member, lines) = (self.member(), self.areas().directives(asking));
        let first = answered.max(count.saturating_sub(DIRECTIVES)) + 1;
        if asking != member.node() {
            let ranges = (first..=count).map(|number| lines.line(number).range());
            refresh_all(member.fabric(), ranges);
        }
        (first..=count).map(move |number| {
            let line = lines.line(number).cached(member.fabric()).ok();
            line.and_then(|line| line.directive(number)).map(|directive| (number, directive))
        })
    }

    /// Removes the complete blocks of this node that `new` clears, and returns how many. A pin needs
    /// no look at all blocks: there may be millions.
    fn clear_own(&self, clock: &impl Clock, new: &[New]) -> u64 {
        let (mut all, mut tags) = (false, BTreeSet::new());
        for (_, directive) in new.iter().flat_map(|new| &new.directives) {
            match directive {
                Directive::Clear(Some(namespace)) | Directive::ClearPool(Some(namespace)) => {
                    tags.insert(namespace.tag());
                }
                Directive::Clear(None) | Directive::ClearPool(None) => all = true,
                Directive::Pin(..)
                | Directive::Unpin { .. }
                | Directive::Drain(_)
                | Directive::Undrain(_)
                | Directive::Drained(_)
                | Directive::NotDrained(_)
                | Directive::Void => {}
            }
        }
        if !all && tags.is_empty() {
            return 0;
        }
        // A process whose memory failed answers nobody.
        self.clear_own_blocks(clock, |tag| all || tags.contains(&tag)).unwrap_or(0)
    }

    /// Removes the complete blocks of this node that count for a namespace that `is_wanted`, held or
    /// not, and returns how many. For an agent, which has restored some of them.
    ///
    /// # Errors
    /// [`MembershipLost`], when the memory failed: blocks may be left.
    pub fn clear_own_blocks(
        &self,
        clock: &impl Clock,
        is_wanted: impl Fn(NamespaceTag) -> bool,
    ) -> Result<u64, MembershipLost> {
        let handles = self.own_blocks(clock, |block| is_wanted(block.namespace));
        let removed = handles.chunks(BATCH).map(|batch| self.retire(clock, batch)).sum();
        // FAULT-F7: the agent notes on its drives that the clear is carried out.
        self.check_reads()?;
        Ok(removed)
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

/// Carries out pins and their ends, and answers all nodes. A node that joins, or wakes, sees
/// those of many nodes at once (CLEAR-D7). Returns how many pins are not set.
pub(crate) fn pin_and_answer<B: Backend>(heap: &LockedHeap<'_, B>, new: &[New]) -> usize {
    let mut pins = Vec::new();
    for New { asking, directives, .. } in new {
        let answered = Answer::from_word(heap.directives.answer(*asking).own(heap.fabric())).number;
        let mut asked_ms = 0;
        for (number, directive) in directives {
            // Directives of one node count in their own order, whatever its clock does.
            asked_ms = directive.asked_ms().max(asked_ms);
            // Another process of the host may be ahead (CLEAR-D7).
            if *number > answered {
                pins.push((asked_ms, *asking, *number, *directive));
            }
        }
    }
    pins.sort_unstable_by_key(|(asked_ms, asking, number, _)| (*asked_ms, *asking, *number));
    pins.retain(|(.., directive)| !heap.quotas.carry_out(directive));
    for New { asking, last, .. } in new {
        let word = heap.directives.answer(*asking);
        if Answer::from_word(word.own(heap.fabric())).number < *last {
            let is_last = |it: &(u64, NodeId, u64, Directive)| (it.1, it.2) == (*asking, *last);
            let refused = pins.iter().any(is_last);
            word.publish(heap.fabric(), Answer { number: *last, refused }.word());
        }
    }
    pins.len()
}
