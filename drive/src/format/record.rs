//! Records of journals and tables: 72 bytes each.

use bytemuck::{Pod, Zeroable};
use kv_cache::{BlockKey, NamespaceTag};

use super::file_name::NUMBER_MAX;
use super::layered::{Encoding, Page, directory_pages};
use super::page::BODY_BYTES;
use super::pages_of;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 72;
/// Records in a sealed page.
pub(crate) const RECORDS_A_PAGE: usize = BODY_BYTES / RECORD_BYTES;

/// What happened, in a journal; or a block, in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Record {
    /// A block was written.
    Block(BlockRecord),
    /// The block whose extent begins at this page of the segment was removed.
    Removed { segment: u32, first_page: u32 },
    /// A segment was made.
    Opened { segment: u32 },
    /// A table has all blocks of the segment that were not removed before.
    Sealed { segment: u32, version: u32, table_pages: u32 },
    /// A segment is gone.
    Dropped { segment: u32 },
}

/// A block and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockRecord {
    pub(crate) key: BlockKey,
    pub(crate) tag: NamespaceTag,
    pub(crate) depth: u16,
    /// Length of the payload, as it was published.
    pub(crate) bytes: u32,
    /// Pages of 4 KiB of the payload as it is written: fewer where it is encoded.
    pub(crate) stored_pages: u32,
    /// CRC-32C of the payload, as it was published.
    pub(crate) crc: u32,
    pub(crate) segment: u32,
    /// Where its extent begins, in pages of the segment.
    pub(crate) first_page: u32,
    /// How many pages of layers it has: one is described here, several in the extent.
    pub(crate) layers: u16,
    /// The only page, or the first.
    pub(crate) page: Page,
}

impl BlockRecord {
    /// Pages of 4 KiB of the directory behind the payload.
    pub(crate) fn directory_pages(&self) -> u32 {
        directory_pages(self.layers)
    }

    /// Pages of 4 KiB of the whole extent.
    pub(crate) fn extent_pages(&self) -> u32 {
        self.directory_pages() + self.stored_pages
    }
}

const BLOCK: u8 = 1;
const REMOVED: u8 = 2;
const OPENED: u8 = 3;
const SEALED: u8 = 4;
const DROPPED: u8 = 5;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Raw {
    kind: u8,
    encoding: u8,
    layers: u16,
    segment: u32,
    /// First page of an extent, or version of a table.
    place: u32,
    /// Bytes of a payload, or pages of a table.
    length: u32,
    key: BlockKey,
    crc: u32,
    layout_version: u32,
    fingerprint: u64,
    first_token: u32,
    last_token: u32,
    depth: u16,
    tag: u16,
    layer: u16,
    /// Pages of the payload as it is written, or 0 where it is raw: as in version 1.
    encoded_pages: u16,
}

const _: () = assert!(size_of::<Raw>() == RECORD_BYTES);

/// At most 16,384 pages: no block is longer.
fn short(pages: u32) -> u16 {
    u16::try_from(pages).unwrap_or(0)
}

/// Pages of a payload as it is written. `None` when no version writes such a record: an encoded
/// payload is shorter than a raw one.
fn stored_pages(encoding: Encoding, bytes: u32, encoded_pages: u16) -> Option<u32> {
    match (encoding, u32::from(encoded_pages)) {
        (Encoding::Raw, 0) => Some(pages_of(bytes)),
        (Encoding::Raw, _) | (_, 0) => None,
        (_, pages) => (pages < pages_of(bytes)).then_some(pages),
    }
}

impl Record {
    pub(crate) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut raw = Raw::zeroed();
        match self {
            Self::Block(block) => {
                let BlockRecord { key, tag, depth, bytes, stored_pages, .. } = block;
                let BlockRecord { crc, segment, first_page, layers, page, .. } = block;
                let is_raw = page.encoding == Encoding::Raw;
                raw = Raw {
                    kind: BLOCK,
                    encoding: page.encoding.code(),
                    layers,
                    segment,
                    place: first_page,
                    length: bytes,
                    key,
                    crc,
                    layout_version: page.layout_version,
                    fingerprint: page.fingerprint,
                    first_token: page.first_token,
                    last_token: page.last_token,
                    depth,
                    tag: tag.get(),
                    layer: page.layer,
                    encoded_pages: if is_raw { 0 } else { short(stored_pages) },
                };
            }
            Self::Removed { segment, first_page } => {
                (raw.kind, raw.segment, raw.place) = (REMOVED, segment, first_page);
            }
            Self::Opened { segment } => (raw.kind, raw.segment) = (OPENED, segment),
            Self::Sealed { segment, version, table_pages } => {
                (raw.kind, raw.segment) = (SEALED, segment);
                (raw.place, raw.length) = (version, table_pages);
            }
            Self::Dropped { segment } => (raw.kind, raw.segment) = (DROPPED, segment),
        }
        bytemuck::cast(raw)
    }

    /// `None` when no version of this program writes such a record.
    pub(crate) fn read(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let raw: Raw = bytemuck::pod_read_unaligned(bytes);
        let segment = raw.segment;
        if segment > 2 * NUMBER_MAX || (raw.kind == SEALED && raw.place > 2 * NUMBER_MAX) {
            return None;
        }
        Some(match raw.kind {
            BLOCK => {
                let encoding = Encoding::of(raw.encoding);
                let stored_pages = stored_pages(encoding, raw.length, raw.encoded_pages)?;
                let page = Page {
                    fingerprint: raw.fingerprint,
                    layout_version: raw.layout_version,
                    layer: raw.layer,
                    first_token: raw.first_token,
                    last_token: raw.last_token,
                    encoding,
                    offset_bytes: 0,
                    bytes: raw.length,
                    crc: raw.crc,
                };
                let block = BlockRecord {
                    key: raw.key,
                    tag: NamespaceTag::from_bits(raw.tag),
                    depth: raw.depth,
                    bytes: raw.length,
                    stored_pages,
                    crc: raw.crc,
                    segment,
                    first_page: raw.place,
                    layers: raw.layers,
                    page,
                };
                // An extent ends in its segment.
                block.first_page.checked_add(block.extent_pages())?;
                Self::Block(block)
            }
            REMOVED => Self::Removed { segment, first_page: raw.place },
            OPENED => Self::Opened { segment },
            SEALED => Self::Sealed { segment, version: raw.place, table_pages: raw.length },
            DROPPED => Self::Dropped { segment },
            _ => return None,
        })
    }

    /// The records in a sealed page that has `count`. Those that cannot be read are `None`.
    pub(crate) fn all_in(page: &[u8], count: u32) -> impl Iterator<Item = Option<Self>> {
        let (records, _) = page[super::page::HEADER_BYTES..].as_chunks::<RECORD_BYTES>();
        records.iter().take(count as usize).map(Self::read)
    }
}
