//! Damage to lines of a region: words of all kinds at places of all kinds, in many cases with a seal that
//! fits, so that the damage reaches the code behind the check of the seal.

use std::ops::Range;

use arbitrary::{Result, Unstructured};
use cxl_shm::fabric::{Fabric, LineWords};
use cxl_shm::units::{LINE_BYTES, LineOffset, LineRange, WORD_BYTES};

const LINE_WORDS: usize = 8;
/// The word with the version of a record and, in its upper half, the checksum.
const SEAL: usize = LINE_WORDS - 1;

/// Lines of a region that an input damages.
#[derive(Debug)]
pub(super) struct DamagedLines<'a, F> {
    device: &'a F,
    lines: Range<u64>,
    /// Most of the metadata is blank: half of the edits go where something is.
    written: Vec<u64>,
    sealed: bool,
}

impl<'a, F: Fabric> DamagedLines<'a, F> {
    pub(super) fn of(device: &'a F, lines: Range<u64>) -> Self {
        let is_written = |line: &u64| device.read_line(at(*line)).iter().any(|word| *word != 0);
        let written = lines.clone().filter(is_written).collect();
        Self { device, lines, written, sealed: false }
    }

    /// Whether a changed line got a seal that fits.
    pub(super) fn sealed(&self) -> bool {
        self.sealed
    }

    /// Makes one change of the input.
    pub(super) fn edit(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let line = self.choose(input)?;
        let other = self.choose(input)?;
        let before = self.device.read_line(at(line));
        let elsewhere = self.device.read_line(at(other));
        let after = if input.ratio(1, 8)? {
            // A whole line from elsewhere, also with a seal for this place.
            if input.arbitrary()? {
                self.sealed = true;
                sealed_again(other, &elsewhere, line, &elsewhere)
            } else {
                elsewhere
            }
        } else {
            let word = input.choose_index(LINE_WORDS)?;
            let mut after = before;
            after[word] = value(input, before[word], elsewhere[word])?;
            if word != SEAL && input.ratio(3, 4)? {
                self.sealed = true;
                after = sealed_again(line, &before, line, &after);
            }
            after
        };
        self.device.write_line(at(line), &after);
        self.device.publish(LineRange::one(at(line)));
        Ok(())
    }

    fn choose(&self, input: &mut Unstructured<'_>) -> Result<u64> {
        if input.arbitrary()? && !self.written.is_empty() {
            return Ok(*input.choose(&self.written)?);
        }
        input.int_in_range(self.lines.start..=self.lines.end - 1)
    }
}

/// A value for a word that was `before`.
pub(super) fn value(input: &mut Unstructured<'_>, before: u64, elsewhere: u64) -> Result<u64> {
    let small: u8 = input.arbitrary()?;
    Ok(match input.int_in_range(0..=8)? {
        0 => 0,
        1 => small.into(),
        2 => u64::MAX - u64::from(small),
        3 => input.arbitrary()?,
        4 => before ^ 1 << (small % 64),
        5 => before.wrapping_add(small.into()),
        6 => before.wrapping_sub(small.into()),
        7 => before ^ u64::from(input.arbitrary::<u32>()?) << (small % 64),
        // Offsets, tickets and counts that make sense elsewhere.
        _ => elsewhere,
    })
}

/// `after` for line `to`, with a seal that fits as well as that of `before` at line `from` did.
///
/// A seal is a CRC over words, place and kind. The kind is not in the line. It need not be known: the
/// CRCs of two records of one length and kind differ as the CRCs of two records of another kind do.
fn sealed_again(from: u64, before: &LineWords, to: u64, after: &LineWords) -> LineWords {
    let change = crc_without_kind(from, before) ^ crc_without_kind(to, after);
    let mut sealed = *after;
    sealed[SEAL] = (after[SEAL] & u64::from(u32::MAX)) | ((before[SEAL] >> 32) ^ change) << 32;
    sealed
}

fn crc_without_kind(line: u64, words: &LineWords) -> u64 {
    let mut bytes: Vec<u8> = words[..SEAL].iter().flat_map(|word| word.to_le_bytes()).collect();
    let version = words[SEAL] & u64::from(u32::MAX);
    // The kind is zero here.
    bytes.extend(version.to_le_bytes());
    bytes.extend((line * LINE_BYTES).to_le_bytes());
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes)
}

fn at(line: u64) -> LineOffset {
    LineOffset::new(line * LINE_BYTES).unwrap_or_else(|| panic!("{line} is far from the end"))
}

/// The line of a byte.
pub(super) const fn line_number(bytes: u64) -> u64 {
    bytes / LINE_BYTES
}

const _: () = assert!(LINE_BYTES == LINE_WORDS as u64 * WORD_BYTES);

#[cfg(test)]
mod tests {
    use cxl_shm::layout::{SuperblockError, read_superblock};
    use cxl_shm::verify::simulated::Settings;

    use super::super::region::geometry;
    use super::*;
    use crate::rack::{Cluster, Mutant, lock_protocol};

    #[test]
    fn a_line_that_is_sealed_again_is_accepted() {
        let (geometry, application) = geometry();
        let settings = Settings::sticky(1, geometry.region_bytes);
        let cluster =
            Cluster::format(settings, geometry, lock_protocol(0), application, Mutant::NONE);
        let host = cluster.rack.host(0);
        // The line of the first superblock that keeps the words of the layer above.
        let line = 2;
        let before = host.read_line(at(line));
        let mut after = before;
        after[3] ^= 0x55;
        host.write_line(at(line), &after);
        host.publish(LineRange::one(at(line)));
        assert!(matches!(read_superblock(&host), Err(SuperblockError::Damaged(_))));
        host.write_line(at(line), &sealed_again(line, &before, line, &after));
        host.publish(LineRange::one(at(line)));
        let (superblock, _) = read_superblock(&host).unwrap();
        let mut expected = application;
        expected[3] ^= 0x55;
        assert_eq!(superblock.application, expected);
    }
}
