//! Publication logs: what a node published and removed, in order, for the replicas of others.
//!
//! Each node has a ring of entries, and a *head* that counts all entries there ever were. Entry `n`
//! lies at `n` modulo the length of the ring:
//!
//! ```text
//! word 0-1 key
//! word 2   slot u32 | generation u32
//! word 3   kind u8 | 0 u24 | CRC-32C u32, over words 0 to 2, the kind, n and the entry's offset
//! ```
//!
//! - **INDEX-G1** Entries are published before the head that counts them.
//! - **INDEX-G2** A reader was overrun when it is more than a ring behind, or when the CRC of an
//!   entry does not match the expected number. It scans the segment instead. It reads the position
//!   to continue from before the scan, so nothing falls between the two.
//! - **INDEX-G3** An owner that does not know what it announced lately moves the head on by more
//!   than a ring. That sends every reader to the segment.
//! - **INDEX-G4** A log only ever gives hints. A wrong hint costs a miss.

use crc_fast::CrcAlgorithm;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, OwnedArea, OwnedWord, PeerArea, PublishBatch};
use cxl_shm::units::{LineRange, WORD_BYTES};

use super::descriptor::Descriptor;
use super::halves;
use crate::identity::IndexKey;

/// Entries in a line.
pub(crate) const ENTRIES_A_LINE: u64 = 2;
const ENTRY_WORDS: u64 = 4;

const PUBLISHED: u8 = 1;
const REMOVED: u8 = 2;

/// What happened to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogKind {
    Published,
    Removed,
}

/// One entry of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogEntry {
    pub(crate) kind: LogKind,
    pub(crate) key: IndexKey,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl LogEntry {
    /// Says that `block` is gone.
    pub(crate) fn removed(block: &Descriptor) -> Self {
        let Descriptor { handle, key, .. } = *block;
        let (slot, generation) = (handle.slot(), handle.generation());
        Self { kind: LogKind::Removed, key: key.index(), slot, generation }
    }

    /// The words of entry `number`, lying at `at_bytes` in the region.
    fn encode(&self, number: u64, at_bytes: u64) -> [u64; 4] {
        let [high, low] = self.key.words();
        let kind = match self.kind {
            LogKind::Published => PUBLISHED,
            LogKind::Removed => REMOVED,
        };
        let place = u64::from(self.slot) | u64::from(self.generation) << 32;
        let words = [high, low, place];
        let crc = crc_of(&words, kind, number, at_bytes);
        [high, low, place, u64::from(kind) | u64::from(crc) << 32]
    }

    /// The entry in `words`, read at `at_bytes`, if it is entry `number`.
    fn decode(words: [u64; 4], number: u64, at_bytes: u64) -> Option<Self> {
        let [high, low, place, tag] = words;
        let (kind_word, found) = halves(tag);
        let kind = u8::try_from(kind_word).ok()?;
        if crc_of(&[high, low, place], kind, number, at_bytes) != found {
            return None;
        }
        let kind = match kind {
            PUBLISHED => LogKind::Published,
            REMOVED => LogKind::Removed,
            _ => return None,
        };
        let (slot, generation) = halves(place);
        Some(Self { kind, key: IndexKey::from_words([high, low]), slot, generation })
    }
}

fn crc_of(words: &[u64; 3], kind: u8, number: u64, at_bytes: u64) -> u32 {
    let mut bytes = [0; 41];
    let fields = [words[0], words[1], words[2], number, at_bytes];
    for (eight, field) in bytes.chunks_exact_mut(8).zip(fields) {
        eight.copy_from_slice(&field.to_le_bytes());
    }
    bytes[40] = kind;
    let (crc, _) = halves(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &bytes));
    crc
}

/// How far a reader is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behind {
    /// This many entries, all still in the ring.
    By(u64),
    /// More than a ring, or the head went back: the log says nothing any more.
    Overrun,
}

/// What lies between the position of a reader and a head, in a ring of `entries`.
pub(crate) fn behind(position: u64, head: u64, entries: u64) -> Behind {
    match head.wrapping_sub(position) {
        count if count <= entries => Behind::By(count),
        _ => Behind::Overrun,
    }
}

/// A node's log as its readers see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerLog {
    ring: PeerArea,
}

impl PeerLog {
    pub(crate) fn new(ring: PeerArea) -> Self {
        Self { ring }
    }

    /// Length of the ring.
    pub(crate) fn entries(&self) -> u64 {
        self.ring.lines() * ENTRIES_A_LINE
    }

    /// The lines of `count` entries from number `first` on, at most a ring of them, to be
    /// refreshed in a batch.
    pub(crate) fn ranges(&self, first: u64, count: u64) -> impl Iterator<Item = LineRange> + use<> {
        let start = first % self.entries();
        let before_end = count.min(self.entries() - start);
        let ring = self.ring;
        [(start, before_end), (0, count - before_end)].into_iter().filter_map(move |(at, count)| {
            let first_line = at / ENTRIES_A_LINE;
            let end_line = (at + count).div_ceil(ENTRIES_A_LINE);
            let part = ring.part(first_line, end_line - first_line).map(|part| part.range());
            part.filter(|_| count > 0)
        })
    }

    /// Where entry `number` is: bytes from the start of the region.
    pub(crate) fn at_bytes(&self, number: u64) -> u64 {
        let first = number % self.entries() * ENTRY_WORDS;
        self.ring.range().start().bytes() + first * WORD_BYTES
    }

    /// Entry `number` as this host's caches hold it; `None` when it is another, or torn.
    pub(crate) fn cached(&self, fabric: &impl Fabric, number: u64) -> Option<LogEntry> {
        let first = number % self.entries() * ENTRY_WORDS;
        let mut words = [0; 4];
        for (index, word) in (first..).zip(&mut words) {
            *word = self.ring.word(index)?.cached(fabric);
        }
        LogEntry::decode(words, number, self.at_bytes(number))
    }
}

/// This node's log, written under the heap lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnLog {
    head: OwnedWord,
    ring: OwnedArea,
}

impl OwnLog {
    pub(crate) fn new(head: OwnedWord, ring: OwnedArea) -> Self {
        Self { head, ring }
    }

    /// How many entries there ever were.
    pub(crate) fn head(&self, fabric: &impl Fabric) -> u64 {
        self.head.own(fabric)
    }

    /// Announces `entries`. After return every replica that looks at the head learns of them.
    pub(crate) fn append<F: Fabric>(&self, fabric: &F, entries: &[LogEntry]) {
        self.append_with(fabric, PublishBatch::new(fabric), entries);
    }

    /// Publishes `batch` and `entries` with one fence, and then announces the entries. A reader that
    /// follows them finds what is in `batch`: it reads no entry before the head counts the entry.
    pub(crate) fn append_with<'f, F: Fabric>(
        &self,
        fabric: &'f F,
        mut batch: PublishBatch<'f, F>,
        entries: &[LogEntry],
    ) {
        if entries.is_empty() {
            // A batch that is dropped is published.
            return;
        }
        let head = self.head.own(fabric);
        let mut next = head;
        for entry in entries {
            let first = next % self.entries() * ENTRY_WORDS;
            let at_bytes = self.word(first).at().bytes();
            for (index, word) in (first..).zip(entry.encode(next, at_bytes)) {
                batch.word(self.word(index), word);
            }
            next = next.wrapping_add(1);
        }
        batch.publish();
        crash::reach(CrashPoint::PublishLogged);
        // INDEX-G1.
        self.head.publish(fabric, next);
        crash::reach(CrashPoint::PublishAnnounced);
    }

    /// Starts loading the head into this host's caches, where it cannot become stale (MEM-M1).
    pub(crate) fn prefetch_head<F: Fabric>(&self, fabric: &F) {
        fabric.prefetch_owned(self.head.at().line());
    }

    /// Starts loading the line of the next entry: [`append`](Self::append) reads it.
    pub(crate) fn prefetch_next<F: Fabric>(&self, fabric: &F) {
        let next = self.head.own(fabric) % self.entries() * ENTRY_WORDS;
        fabric.prefetch_owned(self.word(next).at().line());
    }

    /// Sends every reader to the segment (INDEX-G3).
    pub(crate) fn skip<F: Fabric>(&self, fabric: &F) {
        let head = self.head.own(fabric);
        self.head.publish(fabric, head.wrapping_add(self.entries() + 1));
    }

    fn entries(&self) -> u64 {
        self.ring.lines() * ENTRIES_A_LINE
    }

    fn word(&self, index: u64) -> OwnedWord {
        self.ring.word(index).expect("an index modulo the ring is in the ring")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_are_bound_to_their_number_and_place() {
        let kind = LogKind::Removed;
        let entry = LogEntry { kind, key: IndexKey::from_words([1, 2]), slot: 3, generation: 4 };
        let words = entry.encode(17, 64);
        assert_eq!(LogEntry::decode(words, 17, 64), Some(entry));
        assert_eq!(LogEntry::decode(words, 17 + 8, 64), None, "an entry of the last round");
        assert_eq!(LogEntry::decode(words, 17, 96), None);
        assert_eq!(LogEntry::decode([0; 4], 0, 64), None, "an entry never written");
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_noticed(key: [u64; 2], slot: u32, generation: u32, number: u64, bit in 0usize..256) {
            let entry =
                LogEntry { kind: LogKind::Published, key: IndexKey::from_words(key), slot, generation };
            let mut words = entry.encode(number, 64);
            words[bit / 64] ^= 1 << (bit % 64);
            prop_assert_eq!(LogEntry::decode(words, number, 64), None);
        }

        #[test]
        fn any_words_are_an_entry_or_none(words: [u64; 4], number: u64) {
            if let Some(entry) = LogEntry::decode(words, number, 64) {
                prop_assert_eq!(entry.encode(number, 64), words);
            }
        }
    }

    #[test]
    fn a_reader_knows_when_it_was_overrun() {
        assert_eq!(behind(5, 5, 8), Behind::By(0));
        assert_eq!(behind(5, 13, 8), Behind::By(8));
        assert_eq!(behind(5, 14, 8), Behind::Overrun);
        assert_eq!(behind(5, 4, 8), Behind::Overrun, "the head went back");
        assert_eq!(behind(u64::MAX, 2, 8), Behind::By(3), "the count wraps");
    }
}
