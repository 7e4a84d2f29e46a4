//! The root of a folder: one sealed page, replaced as a whole.

use bytemuck::{Pod, Zeroable};

use super::CarriedOut;
use super::file_name::{JOURNAL_MAX, NUMBER_MAX};
use super::page::{HEADER_BYTES, PageError, PageKind, Seal};
use crate::io::PAGE_BYTES;

/// Stands for the store of a folder whose manifest was made anew: nothing else in the folder names it.
pub(crate) const STORE_UNKNOWN: [u8; 16] = [0; 16];

/// What is in force. What it does not name is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Manifest {
    /// Identity of this folder, in the seal of each of its pages.
    pub(crate) folder: [u8; 16],
    /// Identity of the store that the folder is a part of, or [`STORE_UNKNOWN`].
    pub(crate) store: [u8; 16],
    /// Identity of the host that writes to the folder.
    pub(crate) host: [u8; 16],
    /// Counts the manifests of the folder.
    pub(crate) generation: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) journal: u64,
    /// How many pages of the journal count.
    pub(crate) journal_pages: u32,
    /// No segment had this number or a higher one.
    pub(crate) next_segment: u32,
    /// Bytes written to the drive, since the folder was made.
    pub(crate) written_bytes: u64,
    /// How long the folder was open, since it was made.
    pub(crate) open_ms: u64,
    pub(crate) carried_out: CarriedOut,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Body {
    store: [u8; 16],
    host: [u8; 16],
    segment_bytes: u64,
    journal: u64,
    journal_pages: u32,
    next_segment: u32,
    written_bytes: u64,
    open_ms: u64,
    carried_out: CarriedOut,
}

const BODY: std::ops::Range<usize> = HEADER_BYTES..HEADER_BYTES + size_of::<Body>();

impl Manifest {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let Self { store, host, segment_bytes, journal, journal_pages, next_segment, .. } = self;
        let Self { folder, generation, written_bytes, open_ms, carried_out, .. } = self;
        let body = Body {
            store,
            host,
            segment_bytes,
            journal,
            journal_pages,
            next_segment,
            written_bytes,
            open_ms,
            carried_out,
        };
        let mut bytes = vec![0; PAGE_BYTES as usize];
        bytes[BODY].copy_from_slice(bytemuck::bytes_of(&body));
        Seal { kind: PageKind::Manifest, folder, file: 0, page: 0 }.put(&mut bytes, 1, generation);
        bytes
    }

    /// Whether a folder can have come to these numbers. Each of them has a next number.
    pub(crate) fn is_possible(&self) -> bool {
        let Self { generation, journal, written_bytes, open_ms, .. } = *self;
        let highest = generation.max(journal).max(written_bytes).max(open_ms);
        highest <= 2 * JOURNAL_MAX && self.next_segment <= 2 * NUMBER_MAX
    }

    /// # Errors
    /// [`PageError`].
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, PageError> {
        let (Seal { folder, file, page, .. }, generation) = Seal::of(PageKind::Manifest, bytes)?;
        if (file, page) != (0, 0) {
            return Err(PageError::Foreign);
        }
        let Body { store, host, segment_bytes, journal, journal_pages, .. } =
            bytemuck::pod_read_unaligned(&bytes[BODY]);
        let Body { next_segment, written_bytes, open_ms, carried_out, .. } =
            bytemuck::pod_read_unaligned(&bytes[BODY]);
        Ok(Self {
            folder,
            store,
            host,
            generation,
            segment_bytes,
            journal,
            journal_pages,
            next_segment,
            written_bytes,
            open_ms,
            carried_out,
        })
    }
}
