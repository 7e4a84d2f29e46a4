//! The device: the only thing that all hosts share.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Random;
use super::failed_memory::FailedLine;
use super::line_map::LineHash;
use crate::fabric::LineWords;
use crate::units::{LINE_WORDS, LineOffset, WordOffset};

type Lines = HashMap<LineOffset, LineWords, LineHash>;

/// What a device holds at one moment. Clones are cheap.
#[derive(Clone, Debug)]
pub struct DeviceImage {
    pub(super) bytes: u64,
    /// What was there before `lines`.
    before: Option<Arc<Lines>>,
    lines: Arc<Lines>,
}

impl DeviceImage {
    /// What it holds of a line.
    pub(super) fn line(&self, line: LineOffset) -> LineWords {
        let before = || self.before.as_ref().and_then(|before| before.get(&line));
        self.lines.get(&line).or_else(before).copied().unwrap_or_default()
    }
}

/// Memory of zeros, or of an image, in which only written lines take space.
#[derive(Debug)]
pub(super) struct Device {
    lines: Lines,
    image: Option<Arc<Lines>>,
    poisoned: HashSet<LineOffset, LineHash>,
    /// Lines of metadata that cannot be read.
    failed: HashMap<LineOffset, FailedLine, LineHash>,
    garbage: Random,
}

impl Device {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            lines: HashMap::default(),
            image: None,
            poisoned: HashSet::default(),
            failed: HashMap::default(),
            garbage: Random::new(seed ^ 0x706f_6973_6f6e),
        }
    }

    /// Starts with what `image` holds.
    pub(super) fn with_image(seed: u64, image: &DeviceImage) -> Self {
        let image = match &image.before {
            None => Arc::clone(&image.lines),
            Some(before) => {
                let mut lines = Lines::clone(before);
                lines.extend(image.lines.iter());
                Arc::new(lines)
            }
        };
        Self { image: Some(image), ..Self::new(seed) }
    }

    /// What it holds now.
    pub(super) fn image(&self, bytes: u64) -> DeviceImage {
        DeviceImage { bytes, before: self.image.clone(), lines: Arc::new(self.lines.clone()) }
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
        let before = || self.image.as_ref().and_then(|image| image.get(&line));
        self.lines.get(&line).or_else(before).copied().unwrap_or_default()
    }

    /// Writes a whole line. A poisoned line takes nothing any more, and neither does one that cannot
    /// be read, unless a write makes it good again.
    pub(super) fn write(&mut self, line: LineOffset, words: &LineWords) {
        let is_lost = self.failed.get(&line).is_some_and(|failed| !failed.heals);
        if is_lost || self.poisoned.contains(&line) {
            return;
        }
        self.failed.remove(&line);
        self.lines.insert(line, *words);
    }

    pub(super) fn poison(&mut self, line: LineOffset) {
        self.poisoned.insert(line);
    }

    /// From now on the line cannot be read.
    pub(super) fn fail(&mut self, line: LineOffset, failed: FailedLine) {
        self.failed.insert(line, failed);
    }

    /// How the line fails, when it cannot be read.
    pub(super) fn failed(&self, line: LineOffset) -> Option<FailedLine> {
        self.failed.get(&line).copied()
    }

    pub(super) fn has_failed_lines(&self) -> bool {
        !self.failed.is_empty()
    }

    pub(super) fn flip_bit(&mut self, byte_offset: u64, bit: u32) {
        assert!(bit < 8, "a byte has bits 0 to 7, not {bit}");
        let at = WordOffset::new(byte_offset - byte_offset % 8)
            .expect("rounded down to a multiple of 8");
        let mut words = self.peek(at.line());
        words[at.index_in_line()] ^= 1_u64 << (byte_offset % 8 * 8 + u64::from(bit));
        self.lines.insert(at.line(), words);
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
    fn what_is_written_over_an_image_leaves_the_image_alone() {
        let (one, other) = (LineOffset::new(0).unwrap(), LineOffset::new(64).unwrap());
        let mut first = Device::new(0);
        first.write(one, &[1; LINE_WORDS]);
        let image = first.image(128);
        let mut second = Device::with_image(0, &image);
        second.write(other, &[2; LINE_WORDS]);
        second.flip_bit(0, 1);
        assert_eq!(second.peek(one)[0], 3);
        let third = Device::with_image(0, &second.image(128));
        assert_eq!((third.peek(one)[1], third.peek(other)[0]), (1, 2));
        assert_eq!(Device::with_image(0, &image).peek(one), [1; LINE_WORDS]);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_made_good_by_a_write_or_never() {
        for heals in [false, true] {
            let mut device = Device::new(0);
            let line = LineOffset::new(64).unwrap();
            device.write(line, &[1; LINE_WORDS]);
            device.fail(line, FailedLine { heals, takes_page: false });
            assert!(device.failed(line).is_some() && device.has_failed_lines());
            device.write(line, &[2; LINE_WORDS]);
            assert_eq!(device.failed(line).is_none(), heals);
            assert_eq!(device.peek(line), [1 + u64::from(heals); LINE_WORDS]);
        }
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
