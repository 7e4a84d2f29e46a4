//! The device: the only thing that all hosts share.

use std::collections::{HashMap, HashSet};

use super::Random;
use super::line_map::LineHash;
use crate::fabric::LineWords;
use crate::units::{LINE_WORDS, LineOffset, WordOffset};

/// Memory of zeros in which only written lines take space.
#[derive(Debug)]
pub(super) struct Device {
    lines: HashMap<LineOffset, LineWords, LineHash>,
    poisoned: HashSet<LineOffset, LineHash>,
    garbage: Random,
}

impl Device {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            lines: HashMap::default(),
            poisoned: HashSet::default(),
            garbage: Random::new(seed ^ 0x706f_6973_6f6e),
        }
    }

    /// What a host that fetches the line gets: garbage when the line is poisoned.
    pub(super) fn read(&mut self, line: LineOffset) -> LineWords {
        if !self.poisoned.contains(&line) {
            return self.peek(line);
        }
        // All ones is what a failed read looks like on most platforms; noise is the worst case.
        if self.garbage.one_in(2) {
            return [u64::MAX; LINE_WORDS];
        }
        [(); LINE_WORDS].map(|()| self.garbage.next_u64())
    }

    /// What the cells of the line hold, poisoned or not.
    pub(super) fn peek(&self, line: LineOffset) -> LineWords {
        self.lines.get(&line).copied().unwrap_or_default()
    }

    /// Writes a whole line. A poisoned line takes nothing any more.
    pub(super) fn write(&mut self, line: LineOffset, words: &LineWords) {
        if !self.poisoned.contains(&line) {
            self.lines.insert(line, *words);
        }
    }

    pub(super) fn poison(&mut self, line: LineOffset) {
        self.poisoned.insert(line);
    }

    pub(super) fn flip_bit(&mut self, byte_offset: u64, bit: u32) {
        assert!(bit < 8, "a byte has bits 0 to 7, not {bit}");
        let at = WordOffset::new(byte_offset - byte_offset % 8)
            .expect("rounded down to a multiple of 8");
        let line = self.lines.entry(at.line()).or_default();
        line[at.index_in_line()] ^= 1_u64 << (byte_offset % 8 * 8 + u64::from(bit));
    }
}

/// The bytes of a line in memory order.
pub(super) fn bytes_of(words: &LineWords) -> [u8; LINE_WORDS * 8] {
    let mut bytes = [0; LINE_WORDS * 8];
    for (eight, word) in bytes.chunks_exact_mut(8).zip(words) {
        eight.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Replaces the bytes of a line from `start` on.
pub(super) fn splice(words: &mut LineWords, start: usize, part: &[u8]) {
    let mut bytes = bytes_of(words);
    bytes[start..start + part.len()].copy_from_slice(part);
    for (word, eight) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splicing_changes_these_bytes_and_no_other() {
        let mut words = [0x1111_1111_1111_1111; LINE_WORDS];
        splice(&mut words, 7, &[0xaa, 0xbb, 0xcc]);
        let mut expected = [0x11; 64];
        expected[7..10].copy_from_slice(&[0xaa, 0xbb, 0xcc]);
        assert_eq!(bytes_of(&words), expected);
        assert_eq!(words[0], 0xaa11_1111_1111_1111);
    }

    #[test]
    fn a_flipped_bit_is_the_bit_that_was_named() {
        let mut device = Device::new(0);
        let line = LineOffset::new(64).unwrap();
        device.flip_bit(64 + 9, 3);
        assert_eq!(bytes_of(&device.peek(line))[9], 0b1000);
        device.flip_bit(64 + 9, 3);
        assert_eq!(device.peek(line), [0; LINE_WORDS]);
    }

    #[test]
    fn a_poisoned_line_reads_as_garbage_and_takes_no_writes() {
        let mut device = Device::new(0);
        let line = LineOffset::new(0).unwrap();
        device.write(line, &[5; LINE_WORDS]);
        device.poison(line);
        device.write(line, &[6; LINE_WORDS]);
        assert_eq!(device.peek(line), [5; LINE_WORDS]);
        let reads: Vec<_> = (0..20).map(|_| device.read(line)).collect();
        assert!(reads.iter().all(|words| *words != [5; LINE_WORDS]));
        assert!(reads.contains(&[u64::MAX; LINE_WORDS]));
    }
}
