//! Entries of a drive directory: 32 bytes each, two in a line.
//!
//! ```text
//! word 0-1  key, but its last 8 bytes
//! word 2    length in bytes u32 | depth in the prefix u16 | tag of the namespace u16
//! word 3    life of the agent u32 | CRC-32C u32, over words 0 to 2, the life and the entry's offset
//! ```
//!
//! An entry whose CRC does not fit is blank: so is one of zeros, and one that is being written.

use crc_fast::CrcAlgorithm;

use crate::format::halves;
use crate::identity::{IndexKey, NamespaceTag};

/// Entries in a line.
pub(crate) const ENTRIES_A_LINE: u64 = 2;
pub(crate) const ENTRY_WORDS: u64 = 4;

/// A block on a drive, as the directory of its host's node has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DriveEntry {
    pub(crate) key: IndexKey,
    pub(crate) bytes: u32,
    pub(crate) depth: u16,
    pub(crate) namespace: NamespaceTag,
    /// Which life of the node's agent wrote it.
    pub(crate) life: u32,
}

impl DriveEntry {
    /// The words of the entry that lies at `at_bytes` in the region.
    pub(crate) fn encode(&self, at_bytes: u64) -> [u64; 4] {
        let [high, low] = self.key.words();
        let place = u64::from(self.bytes)
            | u64::from(self.depth) << 32
            | u64::from(self.namespace.get()) << 48;
        let crc = crc_of([high, low, place], self.life, at_bytes);
        [high, low, place, u64::from(self.life) | u64::from(crc) << 32]
    }

    /// The entry in `words`, read at `at_bytes`; `None` when it is blank.
    pub(crate) fn decode(words: [u64; 4], at_bytes: u64) -> Option<Self> {
        let [high, low, place, tag] = words;
        let (life, found) = halves(tag);
        if life == 0 || crc_of([high, low, place], life, at_bytes) != found {
            return None;
        }
        let (bytes, upper) = halves(place);
        let [a, b, c, d] = upper.to_le_bytes();
        Some(Self {
            key: IndexKey::from_words([high, low]),
            bytes,
            depth: u16::from_le_bytes([a, b]),
            namespace: NamespaceTag::from_bits(u16::from_le_bytes([c, d])),
            life,
        })
    }
}

fn crc_of(words: [u64; 3], life: u32, at_bytes: u64) -> u32 {
    let mut bytes = [0; 36];
    let fields = [words[0], words[1], words[2], at_bytes];
    for (eight, field) in bytes.chunks_exact_mut(8).zip(fields) {
        eight.copy_from_slice(&field.to_le_bytes());
    }
    bytes[32..].copy_from_slice(&life.to_le_bytes());
    let (crc, _) = halves(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &bytes));
    crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(key: [u64; 2], life: u32) -> DriveEntry {
        let (key, namespace) = (IndexKey::from_words(key), NamespaceTag::from_bits(9));
        DriveEntry { key, bytes: 65536, depth: 7, namespace, life }
    }

    #[test]
    fn entries_are_bound_to_their_place_and_life() {
        let words = entry([1, 2], 3).encode(96);
        assert_eq!(DriveEntry::decode(words, 96), Some(entry([1, 2], 3)));
        assert_eq!(DriveEntry::decode(words, 128), None);
        assert_eq!(DriveEntry::decode([0; 4], 96), None);
        let none = entry([1, 2], 0).encode(96);
        assert_eq!(DriveEntry::decode(none, 96), None, "there is no life before the first");
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_noticed(key: [u64; 2], life in 1u32.., bit in 0usize..256) {
            let mut words = entry(key, life).encode(64);
            words[bit / 64] ^= 1 << (bit % 64);
            prop_assert_eq!(DriveEntry::decode(words, 64), None);
        }

        #[test]
        fn any_words_are_an_entry_or_none(words: [u64; 4]) {
            if let Some(entry) = DriveEntry::decode(words, 64) {
                prop_assert_eq!(entry.encode(64), words);
            }
        }
    }
}
