//! What stands before the chunks of an encoded block, and seals them (DRIVE-E2).

use bytemuck::{Pod, Zeroable};
use crc_fast::{CrcAlgorithm, Digest};
use kv_cache::BlockKey;

use super::chunks::{self, ChunkError, Split};
use crate::format::Encoding;

/// Bytes before the chunks.
pub(super) const FRAME_BYTES: usize = 32;
/// "RDKE", read as a little-endian word.
const MAGIC: u32 = 0x454b_4452;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Frame {
    magic: u32,
    encoding: u32,
    stored_bytes: u32,
    bytes: u32,
    crc: u32,
    seal: u32,
    key: [u8; 8],
}

const _: () = assert!(size_of::<Frame>() == FRAME_BYTES);

/// What the page table says of an encoded block.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// What the block is known by.
    pub key: BlockKey,
    /// How its payload is written.
    pub encoding: Encoding,
    /// Bytes of the payload.
    pub bytes: u32,
    /// CRC-32C of the payload.
    pub crc: u32,
}

/// Why an encoded block is not decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are not those that were sealed.
    #[error("its encoded bytes are torn or damaged")]
    Seal,
    /// They are whole, and of another block.
    #[error("encoded bytes of another block are in its place")]
    Foreign,
    /// They are sealed, and no encoder writes them.
    #[error("its encoded bytes cannot be decoded: {0}")]
    Chunks(#[from] ChunkError),
    /// A later version of this program wrote them.
    #[error("its encoding has number {0}, which this program does not know")]
    Unknown(u8),
}

impl Expected {
    fn frame(&self, stored_bytes: u32) -> Frame {
        let Self { key, encoding, bytes, crc } = *self;
        let [first, ..]: [[u8; 8]; 3] = bytemuck::cast(key);
        let encoding = encoding.code().into();
        Frame { magic: MAGIC, encoding, stored_bytes, bytes, crc, seal: 0, key: first }
    }
}

/// Seals the chunks behind the first bytes of `stored`.
pub(super) fn seal(stored: &mut [u8], expected: &Expected) {
    let mut frame = expected.frame(u32::try_from(stored.len()).unwrap_or(0));
    let Some((head, chunks)) = stored.split_first_chunk_mut::<FRAME_BYTES>() else { return };
    frame.seal = checksum(&frame, chunks);
    head.copy_from_slice(bytemuck::bytes_of(&frame));
}

fn checksum(frame: &Frame, chunks: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytemuck::bytes_of(&Frame { seal: 0, ..*frame }));
    digest.update(chunks);
    u32::try_from(digest.finalize()).unwrap_or(0)
}

/// The chunks in the pages `stored`, of which those behind the chunks have no meaning.
///
/// # Errors
/// [`DecodeError::Seal`] and [`DecodeError::Foreign`].
pub(crate) fn check<'a>(stored: &'a [u8], expected: &Expected) -> Result<&'a [u8], DecodeError> {
    let (head, tail) = stored.split_first_chunk::<FRAME_BYTES>().ok_or(DecodeError::Seal)?;
    let frame: Frame = bytemuck::pod_read_unaligned(head);
    let length = (frame.stored_bytes as usize).checked_sub(FRAME_BYTES);
    let chunks = length.and_then(|length| tail.get(..length)).ok_or(DecodeError::Seal)?;
    if frame.magic != MAGIC || frame.seal != checksum(&frame, chunks) {
        return Err(DecodeError::Seal);
    }
    let wanted = Frame { seal: frame.seal, ..expected.frame(frame.stored_bytes) };
    if bytemuck::bytes_of(&frame) == bytemuck::bytes_of(&wanted) {
        Ok(chunks)
    } else {
        Err(DecodeError::Foreign)
    }
}

/// Decodes the pages `stored` into `payload`. The checksum of the payload is still to be checked.
///
/// # Errors
/// [`DecodeError`]. What is in `payload` then has no meaning.
pub fn decode(stored: &[u8], expected: &Expected, payload: &mut [u8]) -> Result<(), DecodeError> {
    let split = match expected.encoding {
        Encoding::Lz4 => Split::Whole,
        Encoding::Lz4Planes => Split::Planes,
        other @ (Encoding::Raw | Encoding::Unknown(_)) => {
            return Err(DecodeError::Unknown(other.code()));
        }
    };
    let chunks = check(stored, expected)?;
    Ok(chunks::decode(split, chunks, payload)?)
}
