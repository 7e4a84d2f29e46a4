//! Frees of one host's objects by another: a ring per pair, written by the sender.
//!
//! ```text
//! line 0        word 0: how often the sender has destroyed a root whose object is the receiver's
//! lines 1..64   504 slots of a word each: {lap 6, incarnation 8, number of the object's line 50}
//! ```
//!
//! A slot is one word, so it is there or not, and its lap tells the receiver whether it is the one
//! it waits for: nothing else needs publishing. The receiver publishes how far it has come, so that
//! no slot is used again before it was read. A free says which incarnation of the receiver the
//! object was in (OBJECT-O5); in one that comes later it is gone, or reachable and not to be freed
//! by this.

use super::object::SharedOffset;
use cxl_shm::fabric::{Fabric, OwnedWord, PeerArea, PeerWord, refresh_all};
use cxl_shm::layout::{FREE_RING_LINES, Layout};
use cxl_shm::node::{Backend, NodeHandle};
use cxl_shm::units::{Incarnation, LINE_BYTES, LINE_WORDS, LineRange, NodeId};

/// Frees that a ring holds.
pub(super) const SLOTS: u64 = (FREE_RING_LINES - 1) * LINE_WORDS as u64;

const LINE_BITS: u32 = 50;
const INCARNATION_BITS: u32 = 8;
const LAPS: u64 = 63;

/// A free in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SentFree {
    /// What to free.
    pub(super) offset: SharedOffset,
    /// The receiver's incarnation that it was meant for, its low bits.
    incarnation: u64,
}

impl SentFree {
    /// Whether it was meant for `incarnation`.
    pub(super) fn is_for(&self, incarnation: Incarnation) -> bool {
        self.incarnation == low_bits(incarnation)
    }
}

fn low_bits(incarnation: Incarnation) -> u64 {
    u64::from(incarnation.0) & ((1 << INCARNATION_BITS) - 1)
}

/// Never 0, so that a slot that nobody wrote belongs to no lap.
fn lap(position: u64) -> u64 {
    position / SLOTS % LAPS + 1
}

fn slot_word(position: u64, offset: SharedOffset, incarnation: Incarnation) -> u64 {
    let line = offset.bytes() / LINE_BYTES;
    (lap(position) << INCARNATION_BITS | low_bits(incarnation)) << LINE_BITS | line
}

fn parse(position: u64, word: u64) -> Option<SentFree> {
    let line = word & ((1 << LINE_BITS) - 1);
    let high = word >> LINE_BITS;
    let incarnation = high & ((1 << INCARNATION_BITS) - 1);
    let offset = SharedOffset::new(line * LINE_BYTES)?;
    (high >> INCARNATION_BITS == lap(position)).then_some(SentFree { offset, incarnation })
}

/// How many roots whose objects are of `receiver` a node says it has destroyed.
pub(crate) fn retired(layout: &Layout, sender: NodeId, receiver: NodeId) -> PeerWord {
    layout.free_ring(sender, receiver).word(0).expect("a ring has lines")
}

/// The ring from one node to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    slots: PeerArea,
    tail: PeerWord,
}

impl Ring {
    pub(super) fn new(layout: &Layout, sender: NodeId, receiver: NodeId) -> Self {
        let tails = layout.free_tails(receiver);
        let tail = tails.word(u64::from(sender.0)).expect("a tail for each node");
        Self { slots: layout.free_ring(sender, receiver), tail }
    }

    fn slot(&self, position: u64) -> PeerWord {
        let word = LINE_WORDS as u64 + position % SLOTS;
        self.slots.word(word).expect("a slot of the ring")
    }

    /// Receiver, which has `node_handle`: how far it has come.
    pub(super) fn own_tail<B: Backend>(&self, node_handle: &NodeHandle<B>) -> OwnedWord {
        node_handle.free_tail(self.tail)
    }

    /// The line of the free at `position`.
    pub(super) fn slot_range(&self, position: u64) -> LineRange {
        self.slot(position).range()
    }

    /// Receiver: the free at `position`, when it has been sent. `refreshed` when the caller has
    /// refreshed its line.
    pub(super) fn look<F: Fabric>(
        &self,
        fabric: &F,
        position: u64,
        refreshed: bool,
    ) -> Option<SentFree> {
        let slot = self.slot(position);
        let word = if refreshed { slot.cached(fabric) } else { slot.fresh(fabric) };
        parse(position, word)
    }

    /// Sender: frees that wait, when `sent` were sent. More than [`SLOTS`] when the receiver's word
    /// is damaged.
    pub(super) fn waiting<F: Fabric>(&self, fabric: &F, sent: u64) -> u64 {
        let waiting = sent.wrapping_sub(self.tail.cached(fabric));
        if waiting < SLOTS {
            return waiting;
        }
        sent.wrapping_sub(self.tail.fresh(fabric))
    }

    /// Sender: how many frees it has sent, found out from the ring.
    pub(super) fn recount<F: Fabric>(&self, fabric: &F) -> u64 {
        // Also publishes what a process that died had written and not published: it is written back
        // when it leaves the caches, and read back by the loads that count it.
        refresh_all(fabric, [self.slots.range(), self.tail.range()]);
        let tail = self.tail.cached(fabric);
        let written = |position| parse(position, self.slot(position).cached(fabric)).is_some();
        let count = (0..SLOTS).take_while(|n| written(tail.wrapping_add(*n))).count();
        tail.wrapping_add(count as u64)
    }

    /// Sender, which has `node_handle`: sends a free. There is room for it.
    pub(super) fn send<B: Backend>(
        &self,
        node_handle: &NodeHandle<B>,
        fabric: &B::Fabric,
        position: u64,
        offset: SharedOffset,
        incarnation: Incarnation,
    ) {
        let slot = node_handle.free_slot(self.slot(position));
        slot.publish(fabric, slot_word(position, offset, incarnation));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_slot_is_read_at_its_position_only(
            position in 0u64..1 << 60, other in 0u64..1 << 60, line in 0u64..(1 << 50), incarnation: u32,
        ) {
            let offset = SharedOffset::new(line * 64).unwrap();
            let incarnation = Incarnation(incarnation);
            let word = slot_word(position, offset, incarnation);
            let read = parse(position, word).unwrap();
            prop_assert_eq!(read.offset, offset);
            prop_assert!(read.is_for(incarnation) && !read.is_for(Incarnation(incarnation.0 ^ 1)));
            prop_assert_eq!(parse(other, word).is_some(), lap(other) == lap(position));
            prop_assert_eq!(parse(position.wrapping_add(SLOTS), word), None);
            prop_assert_eq!(parse(other, 0), None);
        }
    }
}
