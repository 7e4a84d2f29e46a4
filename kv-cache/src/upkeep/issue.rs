//! Writing directives, and writing those again that were damaged in memory.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{OwnedWord, PublishBatch, refresh_all};
use cxl_shm::host::MembershipLost;
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use crate::format::{DIRECTIVES, Directive, DirectiveLine, Drain, OfDrain};
use crate::heap::{LockedHeap, PERCENT_MAX};
use crate::process::Cache;

/// Why nothing is cleared, pinned or drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectiveError {
    /// Some node has not answered many earlier ones.
    #[error(
        "node {node} has blocks and has not answered the last {DIRECTIVES} requests of this node: \
         it is paused, or no process there keeps its blocks; wait until it continues or is \
         declared dead (`rackline status`)"
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
    /// No node that may be drained.
    #[error("node {0} does not exist in this region")]
    NoNode(NodeId),
    /// This process does not take part any more.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
}

impl<B: Backend> Cache<'_, B> {
    /// Asks every node for something. Returns the number of the directive.
    pub(crate) fn issue(
        &self,
        clock: &impl Clock,
        directive: Directive,
    ) -> Result<u64, DirectiveError> {
        let (member, fabric) = (self.member(), self.member().fabric());
        let own = self.areas().own_directives(member.area()).count;
        // CLEAR-D11: one line is for the request.
        let mut lines_left = DIRECTIVES - 1;
        loop {
            self.check_member()?;
            let count = own.own(fabric);
            // Before the lock: a look at all blocks of a node takes long. Nodes without blocks, as those
            // of lock managers alone, have nothing to clear and nothing to pin.
            let unanswered = self.waiting_for_line(count.saturating_add(1)).into_iter();
            let idle: Vec<_> = unanswered.filter(|node| !self.has_blocks(*node)).collect();
            let outcome = self
                .locked(clock, |heap| self.issue_beside(heap, &idle, directive, &mut lines_left));
            // FAULT-F7: nobody sees what was written.
            self.check_reads()?;
            match outcome {
                // More nodes may have no blocks: those that answered fewer directives.
                Err(DirectiveError::Unanswered { .. }) if own.own(fabric) > count => {}
                outcome => return outcome,
            }
        }
    }

    /// Asks every node for something, and waits for none that is `idle`. What is said again has so many
    /// `lines_left`.
    fn issue_beside(
        &self,
        heap: &LockedHeap<'_, B>,
        idle: &[NodeId],
        directive: Directive,
        lines_left: &mut u64,
    ) -> Result<u64, DirectiveError> {
        let mut number = heap.directives.count.own(heap.fabric()).saturating_add(1);
        loop {
            // Also where this is refused: a node may not answer because it cannot read a line.
            self.mend_directives(heap);
            // CLEAR-D1.
            let mut waiting = self.waiting_for_line(number).into_iter();
            if let Some(node) = waiting.find(|node| !idle.contains(node)) {
                return Err(DirectiveError::Unanswered { node });
            }
            // CLEAR-D11: the line behind the one that is written now.
            match self.said_again(number + 1, &directive) {
                Some(again) if *lines_left > 0 => {
                    self.write(heap, number, again);
                    *lines_left -= 1;
                }
                again => {
                    again.iter().for_each(warn_of_forgotten);
                    self.write(heap, number, directive);
                    return Ok(number);
                }
            }
            number += 1;
        }
    }

    /// Writes directive number `number`, which follows the last one.
    fn write(&self, heap: &LockedHeap<'_, B>, number: u64, directive: Directive) {
        let lost = lost_line(heap, number);
        // The line before the count: a loss of power between them leaves no count of a line
        // that nobody can read, for which every owner would wait.
        let line = DirectiveLine::new(number, directive);
        heap.directives.line(number).publish(heap.fabric(), &line);
        let mut batch = PublishBatch::new(heap.fabric());
        // CLEAR-D9: stored before the count, in the same line.
        lost.into_iter().for_each(|(word, lost)| batch.word(word, lost));
        batch.word(heap.directives.count, number);
        batch.publish();
        self.process_state().note_issued(number, directive);
    }

    /// The nodes that take part and have not answered the directive whose line `number` overwrites.
    fn waiting_for_line(&self, number: u64) -> Vec<NodeId> {
        number
            .checked_sub(DIRECTIVES)
            .map_or_else(Vec::new, |overwritten| self.waiting_for(overwritten))
    }

    /// Writes lines of this node's directives again that cannot be read: no owner reads on behind
    /// such a line (CLEAR-D6).
    pub(super) fn mend_directives(&self, heap: &LockedHeap<'_, B>) {
        let (fabric, directives) = (heap.fabric(), &heap.directives);
        let count = directives.count.own(fabric);
        let numbers = count.saturating_sub(DIRECTIVES) + 1..=count;
        // Published lines: what this host's caches hold of them is not newer than the memory.
        let areas = self.areas().directives(heap.node());
        refresh_all(fabric, numbers.clone().map(|number| areas.line(number).range()));
        for number in numbers {
            let line = directives.line(number);
            let said = line.own(fabric).ok();
            if said.is_some_and(|said| said.directive(number).is_some()) {
                continue;
            }
            // It overwrites one that a node may have passed over while it had no blocks (CLEAR-D1). A node
            // that has blocks now reads on.
            let is_uncounted = said.is_some_and(|said| said.may_be(number, count));
            if is_uncounted && self.waiting_for_line(count.saturating_add(1)).is_empty() {
                continue;
            }
            let known = self.process_state().issued(number);
            line.publish(fabric, &DirectiveLine::new(number, known.unwrap_or(Directive::Void)));
            if known.is_none() && !is_uncounted {
                tracing::warn!(
                    number,
                    "a clear or pin that an earlier process of this node asked for was damaged in \
                     memory, and nodes that had not carried it out do not: ask for it again"
                );
            }
        }
    }
}

fn warn_of_forgotten(again: &Directive) {
    let Some(OfDrain { drain: Drain { node, .. }, drained, .. }) = again.of_drain() else { return };
    let command = if drained { "rackline drain --node" } else { "rackline drain --undo --node" };
    tracing::warn!(
        %node, drained,
        "the next request of this node forgets whether that node is drained, for the next start of its \
         host: this node has no lines for more drains and their ends; ask again from another node with \
         `{command}`"
    );
}

/// What is to be said of the line that directive `number` overwrites (CLEAR-D9).
fn lost_line<B: Backend>(heap: &LockedHeap<'_, B>, number: u64) -> Vec<(OwnedWord, u64)> {
    let Some(lost) = number.checked_sub(DIRECTIVES).filter(|lost| *lost > 0) else {
        return Vec::new();
    };
    let directives = &heap.directives;
    let line = directives.line(lost).own(heap.fabric()).ok();
    let directive = line.and_then(|line| line.directive(lost));
    let [clears, all] = directives.lost;
    let may_clear = directive.is_none_or(|directive| directive.may_clear_drives());
    may_clear.then_some((clears, lost)).into_iter().chain([(all, lost)]).collect()
}
