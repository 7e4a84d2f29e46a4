//! Encoded blocks in the index: their lengths, and what they take.

use super::{Located, PAGE_BYTES};
use crate::format::Encoding;

/// Encodings and lengths that are kept at once: 12 bits.
const LENGTHS_MAX: usize = 1 << 12;

/// Encodings and lengths of encoded blocks. The blocks of a model have one length, so an entry of the
/// index has no room for it, and names it by a number.
#[derive(Default)]
pub(super) struct Lengths(Vec<(Encoding, u32)>);

impl Lengths {
    /// The number of an encoding and length, which gets one if there is room.
    pub(super) fn number(&mut self, encoding: Encoding, bytes: u32) -> Option<u32> {
        let known = self.0.iter().position(|it| *it == (encoding, bytes));
        if known.is_none() && self.0.len() < LENGTHS_MAX {
            self.0.push((encoding, bytes));
        }
        let number = known.unwrap_or(self.0.len().checked_sub(1)?);
        (self.0.get(number) == Some(&(encoding, bytes))).then(|| u32::try_from(number).ok())?
    }

    /// The 26 bits of an entry for the length of an encoded block.
    pub(super) fn write(&mut self, at: &Located) -> Option<u32> {
        let number = self.number(at.encoding, at.bytes)?;
        Some(at.stored_pages.checked_sub(1)? << 12 | number)
    }

    /// Encoding, length, and pages as they are written, of these 26 bits.
    pub(super) fn read(&self, bits: u32) -> (Encoding, u32, u32) {
        let number = bits as usize % LENGTHS_MAX;
        let (encoding, bytes) = self.0.get(number).copied().unwrap_or((Encoding::Raw, 0));
        (encoding, bytes, (bits >> 12) + 1)
    }
}

/// What encoded blocks take, of those that are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EncodedBlocks {
    /// How many they are.
    pub blocks: u64,
    /// Bytes of their payload as it is written, in whole pages of 4 KiB.
    pub bytes: u64,
    /// Bytes that their payload would take as it was published, in whole pages of 4 KiB.
    pub raw_bytes: u64,
}

impl EncodedBlocks {
    pub(super) fn add(&mut self, at: &Located) {
        if at.encoding != Encoding::Raw {
            let (bytes, raw_bytes) = Self::bytes_of(at);
            self.blocks += 1;
            self.bytes += bytes;
            self.raw_bytes += raw_bytes;
        }
    }

    pub(super) fn remove(&mut self, at: &Located) {
        if at.encoding != Encoding::Raw {
            let (bytes, raw_bytes) = Self::bytes_of(at);
            self.blocks -= 1;
            self.bytes -= bytes;
            self.raw_bytes -= raw_bytes;
        }
    }

    fn bytes_of(at: &Located) -> (u64, u64) {
        let of = |pages: u32| u64::from(pages) * u64::from(PAGE_BYTES);
        (of(at.stored_pages), of(at.bytes.div_ceil(PAGE_BYTES)))
    }
}
