//! Pages of a block: one layer, one range of tokens, one encoding.
//!
//! A block without layers is one page, which its record describes. The extent of a block with
//! several pages ends with a directory of them, in sealed pages of its own behind the payload.

use bytemuck::{Pod, Zeroable};

use super::page::{BODY_BYTES, HEADER_BYTES, PageError, PageKind, Seal, seal_pages};
use crate::io::PAGE_BYTES;

/// Pages that a block may have.
pub(crate) const LAYERS_MAX: u16 = 3 * ENTRIES_A_PAGE;

/// The layer of a page that has all of them.
pub const ALL_LAYERS: u16 = u16::MAX;

/// How the payload of a block is written. [`crate::encoding`] says what each means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// As it was published.
    Raw,
    /// Compressed by LZ4.
    Lz4,
    /// Split into low and high bytes of elements of 2 bytes, and each part compressed by LZ4.
    Lz4Planes,
    /// Written by a later version of this program. Blocks of it are misses.
    Unknown(u8),
}

impl Encoding {
    /// The number in the page table.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Lz4 => 1,
            Self::Lz4Planes => 2,
            Self::Unknown(code) => code,
        }
    }

    pub(crate) const fn of(code: u8) -> Self {
        match code {
            0 => Self::Raw,
            1 => Self::Lz4,
            2 => Self::Lz4Planes,
            code => Self::Unknown(code),
        }
    }
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Raw => f.write_str("raw"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Lz4Planes => f.write_str("lz4-planes"),
            Self::Unknown(code) => write!(f, "unknown {code}"),
        }
    }
}

/// One page of a block: what it is, and where in the payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Page {
    /// Stands for model, layout, types and rank.
    pub fingerprint: u64,
    /// Version of the order of the bytes.
    pub layout_version: u32,
    /// Which layer, counted from 0, or [`ALL_LAYERS`].
    pub layer: u16,
    /// Its first token, counted in the prompt.
    pub first_token: u32,
    /// Its last token.
    pub last_token: u32,
    /// How its bytes are written: as those of all pages of the block.
    pub encoding: Encoding,
    /// Where it begins in the payload, which is not encoded.
    pub offset_bytes: u32,
    /// Its length.
    pub bytes: u32,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

const ENTRY_BYTES: usize = 48;
const ENTRIES_A_PAGE: u16 = 84;
const _: () = assert!(BODY_BYTES / ENTRY_BYTES == ENTRIES_A_PAGE as usize);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Entry {
    fingerprint: u64,
    layout_version: u32,
    layer: u16,
    encoding: u8,
    zero: u8,
    first_token: u32,
    last_token: u32,
    offset_bytes: u32,
    bytes: u32,
    crc: u32,
    zeros: [u8; 12],
}

const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);

/// Pages of 4 KiB that the directory of a block with so many pages takes.
pub(crate) const fn directory_pages(pages: u16) -> u32 {
    if pages <= 1 { 0 } else { pages.div_ceil(ENTRIES_A_PAGE) as u32 }
}

/// The directory of `pages`, to be written at `first_page` of `segment`.
pub(crate) fn write_directory(
    folder: [u8; 16],
    segment: u32,
    first_page: u32,
    pages: &[Page],
) -> Vec<u8> {
    let seal = Seal { kind: PageKind::Directory, folder, file: segment.into(), page: first_page };
    let entries = pages.iter().map(|page| {
        let Page { fingerprint, layout_version, layer, first_token, last_token, .. } = *page;
        let Page { encoding, offset_bytes, bytes, crc, .. } = *page;
        let (encoding, zero, zeros) = (encoding.code(), 0, [0; 12]);
        bytemuck::cast::<_, [u8; ENTRY_BYTES]>(Entry {
            fingerprint,
            layout_version,
            layer,
            encoding,
            zero,
            first_token,
            last_token,
            offset_bytes,
            bytes,
            crc,
            zeros,
        })
    });
    seal_pages(seal, 0, ENTRY_BYTES, entries)
}

/// The pages that the directory in `bytes` describes, from `first_page` of `segment`.
pub(crate) fn read_directory(
    folder: [u8; 16],
    segment: u32,
    first_page: u32,
    bytes: &[u8],
) -> Result<Vec<Page>, PageError> {
    let mut found = Vec::new();
    for (page, bytes) in (first_page..).zip(bytes.chunks_exact(PAGE_BYTES as usize)) {
        let seal = Seal { kind: PageKind::Directory, folder, file: segment.into(), page };
        let (count, _) = seal.check(bytes)?;
        let (entries, _) = bytes[HEADER_BYTES..].as_chunks::<ENTRY_BYTES>();
        for entry in entries.iter().take(count as usize) {
            let entry: Entry = bytemuck::pod_read_unaligned(entry);
            found.push(Page {
                fingerprint: entry.fingerprint,
                layout_version: entry.layout_version,
                layer: entry.layer,
                first_token: entry.first_token,
                last_token: entry.last_token,
                encoding: Encoding::of(entry.encoding),
                offset_bytes: entry.offset_bytes,
                bytes: entry.bytes,
                crc: entry.crc,
            });
        }
    }
    Ok(found)
}
