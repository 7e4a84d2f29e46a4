//! Reader words: what a reader node says of a block. Each node has an array for the
//! segment of each node, with one word per slot of the share that its owner is expected to use.
//! Slots beyond the share have the words of those within it: what a word says is said of all its
//! blocks. So a hold may keep a block that nobody holds, and never the other way round.
//!
//! ```text
//! held 1 bit | length of the hold u15, in 64 ms | number of the hold u16 | recency tick u32
//! ```
//!
//! A hold and the recency tick stand apart: a touch leaves the hold unchanged (EVICT-H4). Every
//! hold has another *number* than the one before it on the same word, and keeps the number when it
//! ends. So the owner tells a new hold from one that it has been watching for long (EVICT-H5).
//!
//! The number has 16 bits. An owner that looks again after exactly a multiple of 65,536 holds takes
//! the hold for the former one. That hold may expire too early, which costs a miss.
//!
//! A *tick* is a position in the log of the block's owner, as far as the reader had followed it
//! when it used the block. It is the owner's own count of time, so no two clocks are ever compared.
//! It has the low 32 bits of the position. The value 0 says that the block was never used, so
//! position 0, and every other position whose low half is 0, counts as the next one ([`tick_of`]).
//! Ticks wrap, so they are never compared. Their [ages](age) are, which follow from the head of the
//! log.

use cxl_shm::fabric::{Fabric, OwnedArea, OwnedWord, PeerArea, PeerWord};
use cxl_shm::units::{LINE_WORDS, LineRange, NodeId};

use super::halves;

/// Unit of the length of a hold.
const UNIT_MS: u64 = 64;
const UNITS_MAX: u64 = (1 << 15) - 1;
/// Longest hold that a reader word can say, in milliseconds: about 35 minutes.
pub const HOLD_MS_MAX: u64 = UNITS_MAX * UNIT_MS;

/// What a reader word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReaderWord {
    /// Somebody on the reader's host wants the block to stay.
    pub(crate) held: bool,
    units: u16,
    number: u16,
    /// When the block was used there last; 0 when never.
    pub(crate) tick: u32,
}

/// A hold as its owner tells it from others on the same word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HoldMark(u32);

impl ReaderWord {
    pub(crate) fn from_word(word: u64) -> Self {
        let (tick, high) = halves(word);
        let [a, b, c, d] = high.to_le_bytes();
        let units = u16::from_le_bytes([c, d]);
        Self {
            held: units >> 15 != 0,
            units: units & 0x7fff,
            number: u16::from_le_bytes([a, b]),
            tick,
        }
    }

    pub(crate) fn word(self) -> u64 {
        let high = self.units | u16::from(self.held) << 15;
        u64::from(high) << 48 | u64::from(self.number) << 32 | u64::from(self.tick)
    }

    /// The reader word once it is held for `hold_ms` from now on. A hold that is longer stays as
    /// long.
    pub(crate) fn hold(self, hold_ms: u64) -> Self {
        let units = hold_ms.div_ceil(UNIT_MS).clamp(1, UNITS_MAX);
        let units = u16::try_from(units).unwrap_or(u16::MAX >> 1);
        let units = if self.held { units.max(self.units) } else { units };
        Self { held: true, units, number: self.number.wrapping_add(1), ..self }
    }

    /// The reader word once nobody holds it any more.
    pub(crate) fn release(self) -> Self {
        Self { held: false, ..self }
    }

    /// The reader word once the block was used at `tick`. One that was used a little later already,
    /// as another process of the host tells that has followed the log further, stays as it is.
    pub(crate) fn touch(self, tick: u32) -> Self {
        let is_late = self.tick != 0 && self.tick.wrapping_sub(tick) < LATE_MAX;
        Self { tick: if is_late { self.tick } else { tick }, ..self }
    }

    /// The hold, if there is one, and how long it lasts, in milliseconds.
    pub(crate) fn mark(self) -> Option<(HoldMark, u64)> {
        let mark = HoldMark(u32::from(self.number) << 16 | u32::from(self.units));
        self.held.then_some((mark, u64::from(self.units) * UNIT_MS))
    }
}

/// By how many entries of the owner's log one process of a host may be behind another, at most,
/// when both tell their uses of a block: a few rings of the longest log.
const LATE_MAX: u32 = 1 << 26;

/// The tick of a position in a log; never 0.
pub(crate) fn tick_of(position: u64) -> u32 {
    let (tick, _) = halves(position);
    tick.max(1)
}

/// How long ago `tick` was when the head of the log is at `head`, in entries of the log; `None`
/// when it says never. Right as long as that is less than 2^32.
pub(crate) fn age(tick: u32, head: u64) -> Option<u32> {
    (tick != 0).then(|| tick_of(head).wrapping_sub(tick))
}

/// The reader words of one node, as any host may read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerReaderWords {
    array: PeerArea,
    slots: u32,
}

impl PeerReaderWords {
    pub(crate) fn new(array: PeerArea, slots: u32) -> Self {
        Self { array, slots }
    }

    /// All of them.
    pub(crate) fn range(&self) -> LineRange {
        self.array.range()
    }

    /// The lines of the words for `owner`'s segment.
    pub(super) fn range_of(&self, owner: NodeId) -> LineRange {
        let words = LINE_WORDS as u64;
        let first = index(self.slots, owner, 0) / words;
        let lines = u64::from(self.slots).div_ceil(words);
        let part = self.array.part(first, lines);
        part.expect("every slot has a reader word").range()
    }

    /// The word for a slot of `owner`'s segment.
    pub(crate) fn word(&self, owner: NodeId, slot: u32) -> PeerWord {
        self.array.word(index(self.slots, owner, slot)).expect("every slot has a reader word")
    }
}

/// The reader words of this node, written under the heap lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnReaderWords {
    array: OwnedArea,
    slots: u32,
}

impl OwnReaderWords {
    pub(crate) fn new(array: OwnedArea, slots: u32) -> Self {
        Self { array, slots }
    }

    /// The word for a slot of `owner`'s segment.
    pub(crate) fn word(&self, owner: NodeId, slot: u32) -> OwnedWord {
        self.array.word(index(self.slots, owner, slot)).expect("every slot has a reader word")
    }

    /// What this host last said of a slot of `owner`'s segment.
    pub(crate) fn own(&self, fabric: &impl Fabric, owner: NodeId, slot: u32) -> ReaderWord {
        ReaderWord::from_word(self.word(owner, slot).own(fabric))
    }
}

fn index(slots: u32, owner: NodeId, slot: u32) -> u64 {
    // A power of two.
    owner.index() as u64 * u64::from(slots) + u64::from(slot & (slots - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn touches_leave_holds_alone_and_holds_leave_touches() {
        let held = ReaderWord::default().touch(7).hold(1000);
        let touched = held.touch(9);
        assert_eq!((touched.mark(), touched.tick), (held.mark(), 9));
        assert_eq!(touched.touch(8), touched, "a late touch changes nothing");
        let released = touched.release();
        assert_eq!((released.mark(), released.tick), (None, 9));
        assert_ne!(released.hold(1000).mark(), held.mark(), "another hold");
    }

    #[test]
    fn a_shorter_hold_does_not_shorten_a_longer_one() {
        let long = ReaderWord::default().hold(60_000);
        let (_, hold_ms) = long.hold(1).mark().unwrap();
        assert!(hold_ms >= 60_000);
        let (_, hold_ms) = long.release().hold(1).mark().unwrap();
        assert_eq!(hold_ms, 64);
        let (_, hold_ms) = long.hold(u64::MAX).mark().unwrap();
        assert_eq!(hold_ms, HOLD_MS_MAX);
    }

    #[test]
    fn ages_are_right_whatever_the_head_is() {
        for head in [1, 100, 1 << 31, (1 << 31) + 7, (1 << 32) - 1, 1 << 32, (1 << 32) + 9, 5 << 40]
        {
            assert_eq!(age(0, head), None, "never, at {head}");
            for ago in [0, 1, 50, 1 << 20, 3 << 30] {
                let Some(position) = u64::checked_sub(head, ago) else { continue };
                let found = u64::from(age(tick_of(position), head).unwrap());
                // Position 0 and its like count as the next.
                assert!(found.abs_diff(ago) <= 1, "{found}, and {ago} ago at {head}");
            }
            let used = ReaderWord::default().touch(tick_of(head));
            assert_eq!(age(used.tick, head), Some(0), "the first use, at {head}");
            // Not touched for so long that it might seem later.
            for ago in [1 << 30, 1 << 31, 3 << 30] {
                let before = ReaderWord::default().touch(tick_of(head.wrapping_sub(ago)));
                assert_eq!(age(before.touch(tick_of(head)).tick, head), Some(0));
            }
        }
    }

    proptest! {
        #[test]
        fn reader_words_survive_their_words(word: u64) {
            prop_assert_eq!(ReaderWord::from_word(word).word(), word);
        }
    }
}
