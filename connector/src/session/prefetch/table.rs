//! Which blocks the prefetches of a process want, and what became of them.
//!
//! - **TIER-P1** A block is asked for once, however many prefetches want it. A lookup that wants it meanwhile
//!   waits for the same request, unless that has a later deadline than the lookup.
//! - **TIER-P2** A block that was asked for ends once: restored, late, refused or cancelled.
//! - **TIER-P3** Blocks under way, and those that came and wait for their use until the deadline, have
//!   so many bytes at most.

use std::collections::{BTreeSet, HashMap, VecDeque};

use cxl_shm::units::NodeId;
use kv_cache::tier::RestoreTicket;
use kv_cache::{BlockKey, PrefetchCounts};

/// Requests of all prefetches that are unanswered at once. Lookups have requests besides.
pub(super) const ASKED_MAX: usize = 128;
/// Blocks of all prefetches under way, and restored blocks whose use is watched.
const BLOCKS_MAX: usize = 1 << 16;

/// What a prefetch wants of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) key: BlockKey,
    /// The node whose agent restores it.
    pub(super) node: NodeId,
    pub(super) bytes: u64,
    pub(super) until_ms: u64,
    pub(super) recompute_ms: Option<u32>,
}

/// What became of a want.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// It is asked for, or will be when earlier ones are answered.
    Up,
    /// Another prefetch has it under way.
    UnderWay,
    /// Too much is under way (TIER-P3).
    Full,
}

/// How a block ended (TIER-P2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Restored,
    Late,
    Refused,
}

/// A block under way.
#[derive(Debug)]
struct Wanted {
    want: Want,
    number: u64,
    /// The prefetches that want it.
    by: Vec<u64>,
    ticket: Option<RestoreTicket>,
    /// A lookup waits for the same request.
    is_joined: bool,
    /// A lookup has got it already.
    is_used: bool,
}

/// A block that came, and was not used yet.
#[derive(Clone, Copy, Debug)]
struct Restored {
    until_ms: u64,
    /// What it has of the room; 0 after its deadline.
    bytes: u64,
    number: u64,
}

/// The prefetches of a process.
#[derive(Debug)]
pub(super) struct Table {
    bytes_max: u64,
    /// Of blocks under way, and of restored ones before their deadline.
    bytes: u64,
    next_number: u64,
    /// When the first deadline is over of what has one: a block to ask for, or room to let go. Never later.
    next_deadline_ms: u64,
    wanted: HashMap<BlockKey, Wanted>,
    /// Blocks that are still to be asked for, in their order, with the numbers of their wants. Some have
    /// ended meanwhile: at most as many as have not, and a few.
    to_ask: VecDeque<(BlockKey, u64)>,
    asked: Vec<(BlockKey, RestoreTicket)>,
    restored: HashMap<BlockKey, Restored>,
    /// The same, oldest first, with their numbers; some were used meanwhile.
    restored_order: VecDeque<(BlockKey, u64)>,
    /// Requests to be taken back.
    unwanted: Vec<RestoreTicket>,
    counts: PrefetchCounts,
}

impl Table {
    /// One whose blocks take at most `bytes_max` (TIER-P3).
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            next_number: 0,
            next_deadline_ms: u64::MAX,
            wanted: HashMap::new(),
            to_ask: VecDeque::new(),
            asked: Vec::new(),
            restored: HashMap::new(),
            restored_order: VecDeque::new(),
            unwanted: Vec::new(),
            counts: PrefetchCounts::default(),
        }
    }

    /// A number for a prefetch.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Blocks under way.
    pub(super) fn under_way(&self) -> usize {
        self.wanted.len()
    }

    /// What was counted since the last call.
    pub(super) fn take_counts(&mut self) -> PrefetchCounts {
        std::mem::take(&mut self.counts)
    }

    /// Prefetch `by` wants a block.
    pub(super) fn want(&mut self, by: u64, want: Want) -> Taken {
        if let Some(wanted) = self.wanted.get_mut(&want.key) {
            wanted.by.push(by);
            if wanted.ticket.is_none() {
                wanted.want.until_ms = wanted.want.until_ms.max(want.until_ms);
            }
            return Taken::UnderWay;
        }
        // It came, and was evicted before it was used: it has the room already.
        self.forget(&want.key);
        let bytes = self.bytes.saturating_add(want.bytes);
        if bytes > self.bytes_max || self.wanted.len() >= BLOCKS_MAX {
            return Taken::Full;
        }
        self.bytes = bytes;
        self.counts.asked += 1;
        self.next_deadline_ms = self.next_deadline_ms.min(want.until_ms);
        let number = self.next_number();
        let (ticket, is_joined, is_used) = (None, false, false);
        let wanted = Wanted { want, number, by: vec![by], ticket, is_joined, is_used };
        self.wanted.insert(want.key, wanted);
        self.to_ask.push_back((want.key, number));
        self.leave_ended();
        Taken::Up
    }

    /// Forgets what has ended before it was asked for, when that is most of what waits: nothing is asked
    /// for while enough is unanswered, and prefetches may be taken back and made again meanwhile.
    fn leave_ended(&mut self) {
        if self.to_ask.len() > 2 * self.wanted.len() + ASKED_MAX {
            let Self { to_ask, wanted, .. } = self;
            to_ask.retain(|(key, number)| is_to_ask(wanted, key, *number).is_some());
        }
    }

    /// So many blocks on drives are not asked for.
    pub(super) fn full(&mut self, blocks: usize) {
        self.counts.full += blocks as u64;
    }

    /// The next blocks to ask for, of one node; none while enough are unanswered.
    pub(super) fn next_to_ask(&mut self) -> Vec<Want> {
        let mut next: Vec<Want> = Vec::new();
        while self.asked.len() + next.len() < ASKED_MAX
            && let Some((key, number)) = self.to_ask.front()
        {
            match is_to_ask(&self.wanted, key, *number).map(|wanted| wanted.want) {
                Some(want) if next.first().is_some_and(|first| first.node != want.node) => break,
                Some(want) => next.push(want),
                // It has ended.
                None => {}
            }
            self.to_ask.pop_front();
        }
        next
    }

    /// A block was asked for. When it has ended meanwhile, the request is unwanted.
    pub(super) fn asked(&mut self, key: BlockKey, ticket: RestoreTicket) {
        match self.wanted.get_mut(&key).filter(|wanted| wanted.ticket.is_none()) {
            Some(wanted) => {
                wanted.ticket = Some(ticket);
                self.asked.push((key, ticket));
            }
            None => self.unwanted.push(ticket),
        }
    }

    /// Blocks for which there was no room to ask, to be asked for before all others.
    pub(super) fn not_asked(&mut self, wants: &[Want]) {
        for want in wants.iter().rev() {
            if let Some(wanted) = self.wanted.get(&want.key) {
                self.to_ask.push_front((want.key, wanted.number));
            }
        }
    }

    /// The requests that are not answered, with their deadlines.
    pub(super) fn unanswered(&self) -> Vec<(BlockKey, RestoreTicket, u64)> {
        let until_ms = |key| self.wanted.get(key).map_or(0, |wanted| wanted.want.until_ms);
        self.asked.iter().map(|(key, ticket)| (*key, *ticket, until_ms(key))).collect()
    }

    /// The deadline of a request is over that was not answered.
    pub(super) fn overdue(&mut self, key: BlockKey, ticket: RestoreTicket) {
        self.unwanted.push(ticket);
        self.ended(key, ticket, Ended::Late);
    }

    /// A request for a block has this end (TIER-P2).
    pub(super) fn ended(&mut self, key: BlockKey, ticket: RestoreTicket, how: Ended) {
        let is_its = |wanted: &&Wanted| wanted.ticket == Some(ticket);
        if self.wanted.get(&key).filter(is_its).is_none() {
            return;
        }
        let Some(wanted) = self.remove(key) else { return };
        match how {
            Ended::Late => self.counts.late += 1,
            Ended::Refused => self.counts.refused += 1,
            Ended::Restored => {
                self.counts.restored += 1;
                if wanted.is_used {
                    self.counts.used += 1;
                } else {
                    self.watch(wanted.want);
                }
            }
        }
    }

    /// Ends what was not asked for by its deadline, and lets the room go of what came and was not used.
    pub(super) fn end_late(&mut self, now_ms: u64) {
        if now_ms < self.next_deadline_ms {
            return;
        }
        let unasked = self.wanted.iter().filter(|(_, it)| it.ticket.is_none());
        let (late, waiting): (Vec<_>, Vec<_>) = unasked
            .map(|(key, it)| (*key, it.want.until_ms))
            .partition(|(_, until_ms)| *until_ms <= now_ms);
        for (key, _) in late {
            self.counts.late += u64::from(self.remove(key).is_some());
        }
        let mut next_ms = waiting.into_iter().map(|(_, until_ms)| until_ms).min();
        for restored in self.restored.values_mut().filter(|it| it.bytes > 0) {
            if restored.until_ms <= now_ms {
                self.bytes -= std::mem::take(&mut restored.bytes);
            } else {
                next_ms = Some(next_ms.unwrap_or(u64::MAX).min(restored.until_ms));
            }
        }
        self.next_deadline_ms = next_ms.unwrap_or(u64::MAX);
    }

    /// Whether anything is to be done without a call.
    pub(super) fn is_busy(&self) -> bool {
        !self.wanted.is_empty() || !self.unwanted.is_empty() || self.next_deadline_ms < u64::MAX
    }

    /// Prefetch `by` does not want these blocks any more.
    pub(super) fn cancel(&mut self, by: u64, keys: &[BlockKey]) {
        for key in keys {
            let Some(wanted) = self.wanted.get_mut(key) else { continue };
            let before = wanted.by.len();
            wanted.by.retain(|other| *other != by);
            if wanted.by.len() == before || !wanted.by.is_empty() {
                continue;
            }
            self.drop_wanted(*key);
        }
    }

    /// No prefetch wants anything any more.
    pub(super) fn cancel_all(&mut self) {
        let keys: Vec<_> = self.wanted.keys().copied().collect();
        keys.into_iter().for_each(|key| self.drop_wanted(key));
    }

    fn drop_wanted(&mut self, key: BlockKey) {
        let Some(gone) = self.remove(key) else { return };
        if gone.is_used {
            // It came, and its answer was not taken yet.
            self.counts.restored += 1;
            self.counts.used += 1;
        } else {
            self.counts.cancelled += 1;
        }
        if !gone.is_used && !gone.is_joined {
            self.unwanted.extend(gone.ticket);
        }
    }

    /// The requests to be taken back: nothing waits for them.
    pub(super) fn take_unwanted(&mut self) -> Vec<RestoreTicket> {
        std::mem::take(&mut self.unwanted)
    }

    /// A lookup that waits until `until_ms` wants a block on a drive: the request to wait for
    /// (TIER-P1). `None` when the lookup has to ask itself.
    pub(super) fn join(&mut self, key: &BlockKey, until_ms: u64) -> Option<RestoreTicket> {
        let wanted = self.wanted.get_mut(key)?;
        self.counts.joined += 1;
        match wanted.ticket {
            Some(ticket) => {
                let joins = wanted.want.until_ms <= until_ms;
                wanted.is_joined |= joins;
                joins.then_some(ticket)
            }
            None => {
                self.counts.late += 1;
                self.remove(*key);
                None
            }
        }
    }

    /// Lookups have found these blocks.
    pub(super) fn found(&mut self, keys: impl Iterator<Item = BlockKey>) {
        if self.wanted.is_empty() && self.restored.is_empty() {
            return;
        }
        for key in keys {
            if self.forget(&key) {
                self.counts.used += 1;
            } else if let Some(wanted) = self.wanted.get_mut(&key) {
                wanted.is_used = true;
            }
        }
    }

    /// Leaves the requests that no prefetch waits for.
    pub(super) fn keep_unwanted(&self, tickets: &mut Vec<RestoreTicket>) {
        if !self.asked.is_empty() {
            let asked: Vec<_> = self.asked.iter().map(|(_, ticket)| *ticket).collect();
            tickets.retain(|ticket| !asked.contains(ticket));
        }
    }

    /// The nodes that have to answer, and the node that is asked next.
    pub(super) fn nodes(&self) -> BTreeSet<NodeId> {
        let next = self.to_ask.front().and_then(|(key, _)| self.wanted.get(key));
        let next = next.map(|wanted| wanted.want.node);
        self.asked.iter().map(|(_, ticket)| ticket.node()).chain(next).collect()
    }

    /// Ends all blocks of a node whose agent is gone.
    pub(super) fn end_node(&mut self, node: NodeId) {
        let its = self.wanted.iter().filter(|(_, it)| it.want.node == node);
        let its: Vec<_> = its.map(|(key, _)| *key).collect();
        let gone: Vec<_> = its.into_iter().filter_map(|key| self.remove(key)).collect();
        self.counts.refused += gone.len() as u64;
        self.unwanted.extend(gone.into_iter().filter_map(|gone| gone.ticket));
    }

    fn remove(&mut self, key: BlockKey) -> Option<Wanted> {
        let wanted = self.wanted.remove(&key)?;
        self.bytes -= wanted.want.bytes;
        if wanted.ticket.is_some() {
            self.asked.retain(|(other, _)| *other != key);
        }
        Some(wanted)
    }

    fn watch(&mut self, want: Want) {
        let number = self.next_number();
        let Want { key, until_ms, bytes, .. } = want;
        self.bytes += bytes;
        self.next_deadline_ms = self.next_deadline_ms.min(until_ms);
        self.restored.insert(key, Restored { until_ms, bytes, number });
        self.restored_order.push_back((key, number));
        while self.restored_order.len() > BLOCKS_MAX {
            if let Some((oldest, number)) = self.restored_order.pop_front()
                && self.restored.get(&oldest).is_some_and(|it| it.number == number)
            {
                self.forget(&oldest);
            }
        }
    }

    /// Watches a restored block no more. Says whether it was watched.
    fn forget(&mut self, key: &BlockKey) -> bool {
        let Some(restored) = self.restored.remove(key) else { return false };
        self.bytes -= restored.bytes;
        true
    }
}

/// A block whose want has this number, and that was not asked for.
fn is_to_ask<'a>(
    wanted: &'a HashMap<BlockKey, Wanted>,
    key: &BlockKey,
    number: u64,
) -> Option<&'a Wanted> {
    wanted.get(key).filter(|wanted| wanted.number == number && wanted.ticket.is_none())
}

#[cfg(test)]
mod tests {
    use kv_cache::{BlockHash, KeySpace};

    use super::*;

    fn want(number: u64) -> Want {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        let key = KeySpace::from_bytes(&[7; 24]).key(&BlockHash::new(hash));
        Want { key, node: NodeId(0), bytes: 1, until_ms: 60_000, recompute_ms: None }
    }

    #[test]
    fn prefetches_that_are_taken_back_and_made_again_leave_nothing_behind() {
        let mut table = Table::new(u64::MAX);
        let keys: Vec<_> = (0..1000).map(|number| want(number).key).collect();
        for by in 1..=50 {
            for number in 0..1000 {
                assert_eq!(table.want(by, want(number)), Taken::Up);
            }
            if by < 50 {
                table.cancel(by, &keys);
            }
        }
        assert!(table.to_ask.len() <= 2 * 1000 + ASKED_MAX, "{}", table.to_ask.len());
        let asked: Vec<_> = table.next_to_ask().into_iter().map(|want| want.key).collect();
        assert_eq!(asked, keys[..ASKED_MAX], "each is asked for once, in order");
    }
}
