//! Which blocks are encoded, and how.

use std::fmt;
use std::str::FromStr;

use kv_cache::BlockKey;

use super::chunks::{Compressor, Split};
use super::frame::{Expected, FRAME_BYTES, seal};
use super::thread_cpu_ns;
use crate::format::{Encoding, pages_of};
use crate::io::{Buffer, PAGE_BYTES};

/// Bytes of a sample of a payload. Two are taken.
const SAMPLE_BYTES: usize = 16 << 10;
/// After so many blocks in a row that did not pay, few are tried.
const UNPAID_MAX: u32 = 8;
/// Then one block in so many is tried.
const TRY_EVERY: u32 = 16;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EncodingChoice {
    /// No block is encoded.
    #[default]
    Raw,
    /// LZ4, where it saves a page.
    Lz4,
    /// LZ4 of the low and the high bytes of elements of 2 bytes, where it saves a page.
    Lz4Planes,
    /// What samples of the block say, where it saves as much as the options ask for.
    Auto,
}

const NAMES: [(&str, EncodingChoice); 4] = [
    ("raw", EncodingChoice::Raw),
    ("lz4", EncodingChoice::Lz4),
    ("lz4-planes", EncodingChoice::Lz4Planes),
    ("auto", EncodingChoice::Auto),
];

/// A name that no choice has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{0}\" is no encoding; write raw, lz4, lz4-planes or auto")]
pub struct UnknownEncodingChoice(String);

impl FromStr for EncodingChoice {
    type Err = UnknownEncodingChoice;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, choice)| *choice).ok_or_else(|| UnknownEncodingChoice(text.to_owned()))
    }
}

impl fmt::Display for EncodingChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = NAMES.iter().find(|(_, choice)| choice == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// How blocks are encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodingOptions {
    /// What is asked for.
    pub choice: EncodingChoice,
    /// What `auto` has to save of the pages of a block, in percent.
    pub least_saving_percent: u8,
}

/// A block as it was published.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a> {
    /// What it is known by.
    pub key: BlockKey,
    /// Its bytes.
    pub payload: &'a [u8],
    /// Their CRC-32C.
    pub crc: u32,
}

/// How a block is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// Raw: the payload itself is to be written.
    pub encoding: Encoding,
    /// Bytes that are to be written.
    pub stored_bytes: u32,
}

/// What an encoder did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EncoderFigures {
    /// Blocks that are written as they were published.
    pub raw_blocks: u64,
    /// Of these, blocks for which the caller had no time.
    pub hurried_blocks: u64,
    /// Blocks encoded by LZ4.
    pub lz4_blocks: u64,
    /// Blocks encoded by LZ4 of planes.
    pub lz4_planes_blocks: u64,
    /// Bytes of all blocks, as they were published, in whole pages of 4 KiB.
    pub bytes_before: u64,
    /// Bytes of all blocks as they are written, in whole pages of 4 KiB.
    pub bytes_after: u64,
    /// Nanoseconds that were computed, for blocks that did not pay too.
    pub cpu_ns: u64,
}

/// Encodes blocks, on the thread of its caller. It keeps less than 300 KiB of memory.
pub struct Encoder {
    options: EncodingOptions,
    compressor: Compressor,
    sample: Vec<u8>,
    unpaid: u32,
    figures: EncoderFigures,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Encoder {
    /// One with these options.
    #[must_use]
    pub fn new(options: EncodingOptions) -> Self {
        let (compressor, figures) = (Compressor::default(), EncoderFigures::default());
        Self { options, compressor, sample: vec![0; SAMPLE_BYTES], unpaid: 0, figures }
    }

    /// Whether it encodes any block.
    #[must_use]
    pub fn encodes(&self) -> bool {
        self.options.choice != EncodingChoice::Raw
    }

    /// What it did.
    #[must_use]
    pub const fn figures(&self) -> EncoderFigures {
        self.figures
    }

    /// Encodes a block to the beginning of `into`, with zeros up to the end of a page. Says how the
    /// block is to be written: as it is where encoding does not save enough (DRIVE-E3), and where the
    /// caller `hurries`. `into` needs as many whole pages as the payload takes.
    pub fn encode(&mut self, plain: &Plain<'_>, hurries: bool, into: &mut Buffer) -> Encoded {
        let bytes = u32::try_from(plain.payload.len()).unwrap_or(0);
        let raw = Encoded { encoding: Encoding::Raw, stored_bytes: bytes };
        let encoded = if hurries || !self.encodes() {
            self.figures.hurried_blocks += u64::from(hurries && self.encodes());
            None
        } else {
            let before_ns = thread_cpu_ns();
            let encoded = into.bytes_mut().and_then(|into| self.try_encode(plain, bytes, into));
            self.figures.cpu_ns += thread_cpu_ns().saturating_sub(before_ns);
            encoded
        };
        let encoded = encoded.unwrap_or(raw);
        self.count(bytes, encoded);
        encoded
    }

    fn try_encode(&mut self, plain: &Plain<'_>, bytes: u32, into: &mut [u8]) -> Option<Encoded> {
        let pages = pages_of(bytes);
        let (encoding, least_percent) = match self.options.choice {
            EncodingChoice::Raw => return None,
            EncodingChoice::Lz4 => (Encoding::Lz4, 0),
            EncodingChoice::Lz4Planes => (Encoding::Lz4Planes, 0),
            EncodingChoice::Auto => {
                let tries = self.unpaid < UNPAID_MAX || self.unpaid.is_multiple_of(TRY_EVERY);
                self.unpaid = self.unpaid.wrapping_add(1);
                let found = if tries { self.best_of_samples(plain.payload) } else { None };
                (found?, self.options.least_saving_percent)
            }
        };
        let least = (u64::from(pages) * u64::from(least_percent)).div_ceil(100).max(1);
        let most = u64::from(pages).checked_sub(least)? * u64::from(PAGE_BYTES);
        let most = usize::try_from(most).ok()?;
        let (_, room) = into.get_mut(..most)?.split_at_mut_checked(FRAME_BYTES)?;
        let chunks = self.compressor.encode(split_of(encoding)?, plain.payload, room)?;
        self.unpaid = 0;
        let stored = FRAME_BYTES + chunks;
        let Plain { key, crc, .. } = *plain;
        seal(&mut into[..stored], &Expected { key, encoding, bytes, crc });
        into[stored..stored.next_multiple_of(PAGE_BYTES as usize)].fill(0);
        Some(Encoded { encoding, stored_bytes: u32::try_from(stored).ok()? })
    }

    /// The encoding that saves most of two samples. `None` when none saves half of what is asked for:
    /// LZ4 finds more in a whole payload than in a sample.
    fn best_of_samples(&mut self, payload: &[u8]) -> Option<Encoding> {
        let Self { compressor, sample, options, .. } = self;
        let quarter = (payload.len() / 4) & !1;
        let starts = if payload.len() < 4 * SAMPLE_BYTES { [0, 0] } else { [quarter, 3 * quarter] };
        let parts = starts.map(|at| &payload[at..payload.len().min(at + SAMPLE_BYTES)]);
        let sampled: usize = parts.iter().map(|part| part.len()).sum();
        let mut encoded = |encoding: Encoding| {
            let split = split_of(encoding)?;
            let sizes = parts.map(|part| compressor.encode(split, part, sample));
            Some((
                sizes[0].unwrap_or(parts[0].len()) + sizes[1].unwrap_or(parts[1].len()),
                encoding,
            ))
        };
        let best = [encoded(Encoding::Lz4), encoded(Encoding::Lz4Planes)];
        let (bytes, encoding) = best.into_iter().flatten().min_by_key(|(bytes, _)| *bytes)?;
        let saved = sampled.saturating_sub(bytes);
        (saved * 200 > sampled * usize::from(options.least_saving_percent)).then_some(encoding)
    }

    fn count(&mut self, bytes: u32, encoded: Encoded) {
        let Self { figures, .. } = self;
        match encoded.encoding {
            Encoding::Lz4 => figures.lz4_blocks += 1,
            Encoding::Lz4Planes => figures.lz4_planes_blocks += 1,
            Encoding::Raw | Encoding::Unknown(_) => figures.raw_blocks += 1,
        }
        let whole = |bytes| u64::from(pages_of(bytes)) * u64::from(PAGE_BYTES);
        figures.bytes_before += whole(bytes);
        figures.bytes_after += whole(encoded.stored_bytes);
    }
}

const fn split_of(encoding: Encoding) -> Option<Split> {
    match encoding {
        Encoding::Lz4 => Some(Split::Whole),
        Encoding::Lz4Planes => Some(Split::Planes),
        Encoding::Raw | Encoding::Unknown(_) => None,
    }
}
