//! In which order this node's blocks leave: a [`policy`](super::policy) for each kind of block,
//! kept up to date from the node's own log.
//!
//! Every process keeps an order of its own, in its own memory; it is soft state. What it proposes
//! is checked against the directory and the reader words under the heap lock, so a stale order
//! costs a worse choice and nothing else.
//!
//! Blocks of one size make room for each other, so each size has a policy, and so has, within a
//! size, each namespace with a quota.
//!
//! An order is made by a look at all slots, in parts, so that others have the heap lock in between.
//! What the log tells meanwhile is remembered, and taken in once each slot was looked at. A log
//! that was overrun never begins that anew: the order is used as it is, and the slots are looked at
//! once more, in parts, for what it told. So an order is made after a number of calls that depends
//! on the segment alone, whatever others publish.

use cxl_shm::node::Backend;

use super::HoldWatch;
use super::policy::{Clock, EvictionPolicy, Newcomer};
use crate::format::{Behind, BlockState, LogKind, SlotContent, behind};
use crate::heap::{LockedHeap, Share, SlotSize, SlotWord};
use crate::identity::NamespaceTag;

/// Slots that are looked at in one go when the order is made: what holds the heap lock no longer
/// than a batch of evictions does.
const SCAN_SLOTS: u32 = 4096;

/// What is known of a slot.
#[derive(Clone, Copy, Debug)]
struct Known {
    generation: u32,
    /// When it was used last, as far as is known: a position in the log.
    used: u64,
    /// Which kind, and where among its blocks; no kind when the slot holds no block.
    kind: Option<u16>,
    place: u32,
}

const UNKNOWN: Known = Known { generation: 0, used: 0, kind: None, place: 0 };

/// A block that was published while the order was made.
#[derive(Clone, Copy, Debug)]
struct Heard {
    number: u64,
    slot: u32,
    generation: u32,
}

/// Blocks that make room for each other.
#[derive(Debug)]
struct Kind {
    size: SlotSize,
    /// The namespace, when it has a quota or is pinned.
    namespace: Option<NamespaceTag>,
    policy: Clock,
    /// The slots of its blocks, by the dense numbers that the policy knows them by.
    slots: Vec<u32>,
    /// Numbers that are free.
    free: Vec<u32>,
}

impl Kind {
    fn bytes(&self) -> u64 {
        self.policy.len() as u64 * self.size.bytes()
    }
}

/// The order, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct Order {
    slots: Vec<Known>,
    kinds: Vec<Kind>,
    /// The slot that is looked at next, and how many are to be looked at from there on.
    next: u32,
    unscanned: u32,
    /// How many slots nobody has looked at since the order was begun.
    unseen: u32,
    /// What the log told meanwhile.
    heard: Vec<Heard>,
    /// Where the node's log was begun to be read, and how far it was.
    start: u64,
    position: u64,
    /// What the blocks of one prefix are told with, and how deep the last of them was.
    run: (u64, u16),
    quotas: Vec<Share>,
    quota_version: u64,
    pub(crate) watch: HoldWatch,
}

impl Order {
    /// Takes in what happened since the last call. Returns whether it has looked at all slots: else
    /// it is to be called again.
    pub(crate) fn follow<B: Backend>(&mut self, heap: &LockedHeap<'_, B>) -> bool {
        let (head, entries) = (heap.log.head(heap.fabric()), heap.areas.log(heap.node()).entries());
        if self.slots.is_empty() || self.quota_version != heap.quotas.version() {
            // As far behind as the log tells: what came last stays in its order. It is read at
            // once.
            self.start(heap, head.saturating_sub(entries));
        }
        self.grow(heap.directory.slots_in_use());
        if matches!(behind(self.position, head, entries), Behind::Overrun) {
            (self.start, self.position, self.run) = (head, head, (head, 0));
            self.unscanned = heap.directory.slots_in_use();
        }
        self.scan(heap);
        self.read_log(heap, head);
        if self.unseen > 0 {
            return false;
        }
        for Heard { number, slot, generation } in std::mem::take(&mut self.heard) {
            self.learn(heap, slot, generation, number, number + 1);
        }
        true
    }

    fn start<B: Backend>(&mut self, heap: &LockedHeap<'_, B>, position: u64) {
        let slots = heap.directory.slots_in_use();
        *self = Self {
            slots: vec![UNKNOWN; slots as usize],
            unscanned: slots,
            unseen: slots,
            start: position,
            position,
            run: (position, 0),
            quotas: heap.quotas.all(),
            quota_version: heap.quotas.version(),
            watch: std::mem::take(&mut self.watch),
            ..Self::default()
        };
    }

    /// The node uses so many slots of its segment now. What is in the new ones the log tells. A
    /// look at all slots that has begun begins anew.
    fn grow(&mut self, slots: u32) {
        if slots as usize <= self.slots.len() {
            return;
        }
        self.slots.resize(slots as usize, UNKNOWN);
        if self.unscanned > 0 {
            (self.next, self.unscanned) = (0, slots);
            self.unseen = if self.unseen > 0 { slots } else { 0 };
        }
    }

    /// Looks at the next slots, of those that are to be looked at.
    fn scan<B: Backend>(&mut self, heap: &LockedHeap<'_, B>) {
        let part = self.unscanned.min(SCAN_SLOTS);
        for _ in 0..part {
            let slot = self.next;
            self.next = (slot + 1) % heap.directory.slots_in_use();
            let known = self.slots[slot as usize];
            match heap.directory.slot(slot) {
                SlotWord::Ready { generation, .. } => {
                    if known.kind.is_none() || known.generation != generation {
                        // Before all that the log tells, in the order of their depths.
                        self.learn(heap, slot, generation, self.start, self.start);
                    }
                }
                SlotWord::Blank | SlotWord::Free { .. } | SlotWord::Writing { .. } => {
                    self.forget(slot);
                }
            }
        }
        self.unscanned -= part;
        self.unseen = self.unseen.saturating_sub(part);
    }

    /// Reads the log up to `head`.
    fn read_log<B: Backend>(&mut self, heap: &LockedHeap<'_, B>, head: u64) {
        let log = heap.areas.log(heap.node());
        while self.position != head {
            let number = self.position;
            self.position = number.wrapping_add(1);
            // One that cannot be read was skipped over (INDEX-G3), before the slots were looked at.
            let Some(entry) = log.cached(heap.fabric(), number) else { continue };
            // INDEX-G4: what lies in the log is a hint, and may name what is not there.
            if entry.slot as usize >= self.slots.len() {
                continue;
            }
            let (slot, generation) = (entry.slot, entry.generation);
            match entry.kind {
                LogKind::Published if self.unseen > 0 => {
                    self.heard.push(Heard { number, slot, generation });
                }
                LogKind::Published => {
                    // Blocks of one prefix are announced one after the other, ever deeper: they
                    // came together.
                    self.learn(heap, slot, generation, number, number + 1);
                }
                LogKind::Removed => {
                    if self.slots[slot as usize].generation == generation {
                        self.forget(slot);
                    }
                }
            }
        }
        // Others may publish for as long as they like. What is gone again is not worth being
        // remembered.
        if self.heard.len() > 2 * self.slots.len() {
            self.heard.retain(|heard| {
                matches!(heap.directory.slot(heard.slot),
                    SlotWord::Ready { generation, .. } if generation == heard.generation)
            });
        }
    }

    /// Takes in a block that was published at `number` of the log, if it is still there; unless it
    /// continues a prefix, it came at `tick`.
    fn learn<B: Backend>(
        &mut self,
        heap: &LockedHeap<'_, B>,
        slot: u32,
        generation: u32,
        number: u64,
        tick: u64,
    ) {
        let Ok(SlotContent::Block(block)) = heap.segment.own(heap.fabric(), slot) else { return };
        let chunk_bytes = heap.member.layout().geometry().chunk_bytes;
        let size = SlotSize::for_block(block.payload.bytes(), chunk_bytes);
        let (Some(size), BlockState::Ready) = (size, block.state) else { return };
        if block.handle.generation() != generation {
            return;
        }
        if block.depth <= self.run.1 || self.run.0 <= self.start {
            self.run.0 = tick;
        }
        self.run.1 = block.depth;
        self.forget(slot);
        let share = self.quotas.iter().find(|share| share.namespace == block.namespace);
        let kind = self.kind(size, share.map(|share| share.namespace));
        let place = self.kinds[usize::from(kind)].enter(slot);
        self.slots[slot as usize] = Known { generation, used: number, kind: Some(kind), place };
        let [key, _] = block.key.words();
        let newcomer = Newcomer { key, depth: u32::from(block.depth), tick: self.run.0 };
        self.kinds[usize::from(kind)].policy.inserted(place, newcomer);
    }

    /// The kind of these blocks; the last one for all when there are more kinds than numbers.
    fn kind(&mut self, size: SlotSize, namespace: Option<NamespaceTag>) -> u16 {
        let is = |kind: &Kind| kind.size == size && kind.namespace == namespace;
        let full = self.kinds.len() > usize::from(u16::MAX);
        let index = self.kinds.iter().position(is).unwrap_or_else(|| {
            if full {
                return usize::from(u16::MAX);
            }
            self.kinds.push(Kind {
                size,
                namespace,
                policy: Clock::default(),
                slots: Vec::new(),
                free: Vec::new(),
            });
            self.kinds.len() - 1
        });
        u16::try_from(index).unwrap_or(u16::MAX)
    }

    fn forget(&mut self, slot: u32) {
        let known = &mut self.slots[slot as usize];
        if let Some(kind) = known.kind.take() {
            let kind = &mut self.kinds[usize::from(kind)];
            kind.policy.removed(known.place);
            kind.free.push(known.place);
        }
    }

    /// Up to `want` slots of a kind that should leave, of those that `may_leave`.
    pub(super) fn victims(
        &mut self,
        kind: usize,
        want: usize,
        may_leave: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let Kind { policy, slots, .. } = &mut self.kinds[kind];
        let places = policy.victims(want, &mut |place| may_leave(slots[place as usize]));
        places.into_iter().map(|place| slots[place as usize]).collect()
    }

    /// Takes in when a block was last used, a position in the log. Returns whether it was since it
    /// was last looked at.
    pub(super) fn used(&mut self, slot: u32, used: Option<u64>) -> bool {
        let Some(used) = used else { return false };
        let known = &mut self.slots[slot as usize];
        let later = used > known.used;
        if later {
            known.used = used;
        }
        later
    }

    /// How long ago the block in `slot` was last used, as far as is known, in entries of the log
    /// whose head is at `head`; at most `u32::MAX`, which is that of a block that is not known.
    pub(crate) fn age(&self, slot: u32, head: u64) -> u64 {
        let known = self.slots.get(slot as usize).filter(|known| known.kind.is_some());
        let age = known.map_or(u64::MAX, |known| head.saturating_sub(known.used));
        age.min(u64::from(u32::MAX))
    }

    /// The kind from which the next blocks leave: of `size`, if one is given, and none of `spent`.
    /// With it, how many of its blocks may leave before this is asked again.
    ///
    /// First the namespace that is most over its quota. Then what has no quota, or more than its
    /// pin. What is within a quota or a pin leaves when there is nothing else, the largest first.
    pub(super) fn next_kind(
        &self,
        size: Option<SlotSize>,
        spent: &[usize],
        capacity_bytes: u64,
    ) -> Option<(usize, usize)> {
        let candidate = |(index, kind): &(usize, &Kind)| {
            kind.policy.len() > 0
                && !spent.contains(index)
                && size.is_none_or(|size| kind.size == size)
        };
        let claim = |kind: &Kind| {
            let Some(namespace) = kind.namespace else { return (1, kind.bytes(), u64::MAX) };
            let same = self.kinds.iter().filter(|other| other.namespace == kind.namespace);
            let used: u64 = same.map(Kind::bytes).sum();
            let share = self.quotas.iter().find(|share| share.namespace == namespace);
            let bytes = share.map_or(u64::MAX, |share| share.quota.bytes(capacity_bytes));
            match used.checked_sub(bytes) {
                // CLEAR-D5: no more than the excess.
                Some(excess @ 1..) if share.is_some_and(|share| share.pinned) => {
                    (1, kind.bytes(), excess.div_ceil(kind.size.bytes()))
                }
                Some(excess @ 1..) => (2, excess, u64::MAX),
                _ => (0, kind.bytes(), u64::MAX),
            }
        };
        let kinds = self.kinds.iter().enumerate().filter(candidate);
        let best = kinds.map(|(index, kind)| (index, claim(kind))).max_by_key(|(_, claim)| *claim);
        best.map(|(index, (.., most))| (index, usize::try_from(most).unwrap_or(usize::MAX)))
    }
}

impl Kind {
    /// A number for the block in `slot`.
    fn enter(&mut self, slot: u32) -> u32 {
        if let Some(place) = self.free.pop() {
            self.slots[place as usize] = slot;
            return place;
        }
        self.slots.push(slot);
        u32::try_from(self.slots.len() - 1).expect("a segment has at most 2^26 slots")
    }
}
