//! Chunks of LZ4: each by itself, so that a decoder needs no more memory than one.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

/// Bytes of a part of a chunk. With fewer than 64 KiB the table of LZ4 fits the first cache.
pub(super) const PART_BYTES: usize = 60 << 10;
const WORD_BYTES: usize = 4;
/// In the word of a part: its bytes are stored as they are.
const STORED: u32 = 1 << 31;
/// A part of which LZ4 saves less than one byte in so many is stored.
const LEAST_SAVING: usize = 16;

/// The parts that a chunk is split into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Split {
    /// One: the bytes in their order.
    Whole,
    /// Two: the low bytes of elements of 2 bytes, and the high ones.
    Planes,
}

impl Split {
    /// Bytes of the payload in a chunk.
    const fn chunk_bytes(self) -> usize {
        match self {
            Self::Whole => PART_BYTES,
            Self::Planes => 2 * PART_BYTES,
        }
    }
}

/// Compresses. Keeps its memory from block to block.
pub(super) struct Compressor {
    table: CompressTable,
    planes: [Vec<u8>; 2],
    compressed: Vec<u8>,
}

impl Default for Compressor {
    fn default() -> Self {
        Self {
            table: CompressTable::small(),
            planes: [(); 2].map(|()| vec![0; PART_BYTES]),
            compressed: vec![0; get_maximum_output_size(PART_BYTES)],
        }
    }
}

impl Compressor {
    /// Writes the chunks of `payload` to `out`, and says how many bytes they have. `None` when `out` is
    /// too short for them.
    pub(super) fn encode(&mut self, split: Split, payload: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut at = 0;
        for chunk in payload.chunks(split.chunk_bytes()) {
            match split {
                Split::Whole => at = self.put(chunk, out, at)?,
                Split::Planes => {
                    let mut planes = std::mem::take(&mut self.planes);
                    let (low, high) = divide(chunk, &mut planes);
                    let put = self.put(low, out, at);
                    let put = put.and_then(|at| self.put(high, out, at));
                    self.planes = planes;
                    at = put?;
                }
            }
        }
        Some(at)
    }

    /// Writes a part to `out`, from `at` on, and says where it ends.
    fn put(&mut self, part: &[u8], out: &mut [u8], at: usize) -> Option<usize> {
        let Self { table, compressed: memory, .. } = self;
        let compressed = compress_into_with_table(part, memory, table).ok();
        let least = part.len() - part.len() / LEAST_SAVING;
        let compressed = compressed.filter(|bytes| *bytes < least);
        let (bytes, flag) = match compressed {
            Some(bytes) => (self.compressed.get(..bytes)?, 0),
            None => (part, STORED),
        };
        let word = u32::try_from(bytes.len()).ok()? | flag;
        let end = at + WORD_BYTES + bytes.len();
        let (head, tail) = out.get_mut(at..end)?.split_at_mut(WORD_BYTES);
        head.copy_from_slice(&word.to_le_bytes());
        tail.copy_from_slice(bytes);
        Some(end)
    }
}

/// The low and the high bytes of elements of 2 bytes. The last byte of an odd chunk is a low one.
fn divide<'p>(chunk: &[u8], planes: &'p mut [Vec<u8>; 2]) -> (&'p [u8], &'p [u8]) {
    let [low, high] = planes;
    let (elements, rest) = chunk.as_chunks::<2>();
    for ([low_byte, high_byte], (low, high)) in elements.iter().zip(low.iter_mut().zip(&mut *high))
    {
        (*low, *high) = (*low_byte, *high_byte);
    }
    if let [last] = rest {
        low[elements.len()] = *last;
    }
    (&low[..elements.len() + rest.len()], &high[..elements.len()])
}

/// Puts the two planes of a chunk together.
fn join(low: &[u8], high: &[u8], chunk: &mut [u8]) {
    let (elements, rest) = chunk.as_chunks_mut::<2>();
    for (element, (low, high)) in elements.iter_mut().zip(low.iter().zip(high)) {
        *element = [*low, *high];
    }
    if let ([last], Some(byte)) = (rest, low.last()) {
        *last = *byte;
    }
}

/// Why chunks are not decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// They end before the payload does.
    #[error("they end before the payload does")]
    TooShort,
    /// They go on behind the payload.
    #[error("they go on behind the payload")]
    TooLong,
    /// A part has another length than it should, or is not of LZ4.
    #[error("a part of a chunk is not of LZ4")]
    Part,
}

/// Decodes `chunks` into `payload`, all of it (DRIVE-E1).
pub(super) fn decode(split: Split, chunks: &[u8], payload: &mut [u8]) -> Result<(), ChunkError> {
    let mut left = chunks;
    let mut planes = match split {
        Split::Whole => [const { Vec::new() }; 2],
        Split::Planes => [(); 2].map(|()| vec![0; PART_BYTES]),
    };
    for chunk in payload.chunks_mut(split.chunk_bytes()) {
        match split {
            Split::Whole => match take(&mut left, chunk.len())? {
                Part::Stored(bytes) => chunk.copy_from_slice(bytes),
                Part::Compressed(bytes) => decompress(bytes, chunk)?,
            },
            Split::Planes => {
                let [low, high] = &mut planes;
                let (low_bytes, high_bytes) = (chunk.len().div_ceil(2), chunk.len() / 2);
                let low = plane(&mut left, &mut low[..low_bytes])?;
                let high = plane(&mut left, &mut high[..high_bytes])?;
                join(low, high, chunk);
            }
        }
    }
    if left.is_empty() { Ok(()) } else { Err(ChunkError::TooLong) }
}

enum Part<'a> {
    Stored(&'a [u8]),
    Compressed(&'a [u8]),
}

/// The next part, which has `bytes` when it is decoded.
fn take<'a>(left: &mut &'a [u8], bytes: usize) -> Result<Part<'a>, ChunkError> {
    let (head, tail) = left.split_first_chunk::<WORD_BYTES>().ok_or(ChunkError::TooShort)?;
    let word = u32::from_le_bytes(*head);
    let length = (word & !STORED) as usize;
    let part = tail.get(..length).ok_or(ChunkError::TooShort)?;
    *left = &tail[length..];
    match (word & STORED != 0, length == bytes) {
        (true, true) => Ok(Part::Stored(part)),
        (true, false) => Err(ChunkError::Part),
        (false, _) => Ok(Part::Compressed(part)),
    }
}

/// The next plane: where it is stored, or decoded in `memory`.
fn plane<'c: 'm, 'm>(left: &mut &'c [u8], memory: &'m mut [u8]) -> Result<&'m [u8], ChunkError> {
    match take(left, memory.len())? {
        Part::Stored(bytes) => Ok(bytes),
        Part::Compressed(bytes) => {
            decompress(bytes, memory)?;
            Ok(memory)
        }
    }
}

fn decompress(bytes: &[u8], memory: &mut [u8]) -> Result<(), ChunkError> {
    match decompress_into(bytes, memory) {
        Ok(written) if written == memory.len() => Ok(()),
        Ok(_) | Err(_) => Err(ChunkError::Part),
    }
}
