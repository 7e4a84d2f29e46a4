//! A sealed page: 4 KiB that say what they are, and whether they are whole.

use bytemuck::{Pod, Zeroable};
use crc_fast::CrcAlgorithm;

use super::{SCHEMA, SCHEMA_OLDEST};
use crate::io::PAGE_BYTES;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 64;
/// Bytes behind the header.
pub(super) const BODY_BYTES: usize = PAGE_BYTES as usize - HEADER_BYTES;

/// What a page is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum PageKind {
    /// The root.
    Manifest = 0x4d4b_4452,
    /// A page of a journal.
    Journal = 0x4a4b_4452,
    /// A page of a segment's table.
    Table = 0x544b_4452,
    /// Where the layers of a block are in its extent.
    Directory = 0x444b_4452,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    kind: u32,
    schema: u32,
    /// CRC-32C of the page with zeros here.
    crc: u32,
    count: u32,
    file: u64,
    generation: u64,
    folder: [u8; 16],
    page: u32,
    zeros: [u8; 12],
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// Which page of which file of which folder a page is. A page that was copied elsewhere has a seal
/// that does not fit its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seal {
    pub(crate) kind: PageKind,
    /// Identity of the folder.
    pub(crate) folder: [u8; 16],
    /// Number of the journal or segment.
    pub(crate) file: u64,
    /// Its number in the file.
    pub(crate) page: u32,
}

/// Why a page is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum PageError {
    /// Its bytes are not those that were sealed.
    #[error("damaged: its checksum differs")]
    Damaged,
    /// It is whole, and another page.
    #[error("another page is in its place")]
    Foreign,
    /// It is whole, and of another version.
    #[error("its format has version {0}, and this program reads versions 1 to {SCHEMA}")]
    Version(u32),
}

impl Seal {
    /// Seals `bytes`, one page, whose body holds `count` records.
    pub(crate) fn put(&self, bytes: &mut [u8], count: u32, generation: u64) {
        let mut header = Header {
            kind: self.kind as u32,
            schema: SCHEMA,
            crc: 0,
            count,
            file: self.file,
            generation,
            folder: self.folder,
            page: self.page,
            zeros: [0; 12],
        };
        bytes[..HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&header));
        header.crc = checksum(bytes);
        bytes[..HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&header));
    }

    /// Records in `bytes`, one page, and its generation.
    ///
    /// # Errors
    /// [`PageError`].
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(u32, u64), PageError> {
        let mut header: Header = bytemuck::pod_read_unaligned(&bytes[..HEADER_BYTES]);
        let crc = std::mem::take(&mut header.crc);
        let mut blank = bytes.to_vec();
        blank[..HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&header));
        if crc != checksum(&blank) {
            return Err(PageError::Damaged);
        }
        if !(SCHEMA_OLDEST..=SCHEMA).contains(&header.schema) {
            return Err(PageError::Version(header.schema));
        }
        let same = header.kind == self.kind as u32
            && header.folder == self.folder
            && header.file == self.file
            && header.page == self.page
            && header.zeros == [0; 12];
        if same { Ok((header.count, header.generation)) } else { Err(PageError::Foreign) }
    }

    /// The seal of a whole page of this kind, wherever it is from, and its generation.
    ///
    /// # Errors
    /// [`PageError`].
    pub(crate) fn of(kind: PageKind, bytes: &[u8]) -> Result<(Self, u64), PageError> {
        let header: Header = bytemuck::pod_read_unaligned(&bytes[..HEADER_BYTES]);
        let Header { file, folder, page, .. } = header;
        let seal = Self { kind, folder, file, page };
        seal.check(bytes).map(|(_, generation)| (seal, generation))
    }
}

/// Pages with `records` of `record_bytes` each, sealed one after another from `first` on.
pub(crate) fn seal_pages(
    first: Seal,
    generation: u64,
    record_bytes: usize,
    records: impl Iterator<Item = impl AsRef<[u8]>>,
) -> Vec<u8> {
    let page_bytes = PAGE_BYTES as usize;
    let room = BODY_BYTES / record_bytes;
    let mut bytes = Vec::new();
    let mut seal = first;
    let mut count = 0;
    let mut close = |bytes: &mut Vec<u8>, count: &mut usize| {
        let start = bytes.len() / page_bytes * page_bytes;
        let start = if bytes.len() == start { start - page_bytes } else { start };
        bytes.resize(start + page_bytes, 0);
        seal.put(&mut bytes[start..], u32::try_from(*count).unwrap_or(0), generation);
        seal.page += 1;
        *count = 0;
    };
    for record in records {
        if count == room {
            close(&mut bytes, &mut count);
        }
        if count == 0 {
            bytes.resize(bytes.len() + HEADER_BYTES, 0);
        }
        bytes.extend_from_slice(record.as_ref());
        count += 1;
    }
    if count > 0 {
        close(&mut bytes, &mut count);
    }
    bytes
}

fn checksum(bytes: &[u8]) -> u32 {
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(crc).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEAL: Seal = Seal { kind: PageKind::Journal, folder: [7; 16], file: 3, page: 5 };

    #[test]
    fn a_page_is_known_by_its_seal() {
        let pages = seal_pages(SEAL, 9, 72, (0..120_u8).map(|at| [at; 72]));
        // 56 records fit a page.
        assert_eq!(pages.len(), 3 * PAGE_BYTES as usize);
        let page = |at: usize| &pages[at * PAGE_BYTES as usize..(at + 1) * PAGE_BYTES as usize];
        assert_eq!(SEAL.check(page(0)), Ok((56, 9)));
        assert_eq!(Seal { page: 7, ..SEAL }.check(page(2)), Ok((8, 9)));
        assert_eq!(page(1)[HEADER_BYTES], 56);
        assert_eq!(Seal::of(PageKind::Journal, page(1)), Ok((Seal { page: 6, ..SEAL }, 9)));
        for other in [
            Seal { kind: PageKind::Table, ..SEAL },
            Seal { folder: [8; 16], ..SEAL },
            Seal { file: 4, ..SEAL },
            Seal { page: 6, ..SEAL },
        ] {
            assert_eq!(other.check(page(0)), Err(PageError::Foreign));
        }
    }

    #[test]
    fn each_flipped_bit_is_seen() {
        let mut page = seal_pages(SEAL, 9, 72, [[1; 72]].iter());
        for bit in 0..PAGE_BYTES as usize * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SEAL.check(&page), Err(PageError::Damaged), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(SEAL.check(&page), Ok((1, 9)));
        assert!(SEAL.check(&[0; PAGE_BYTES as usize]).is_err());
    }
}
