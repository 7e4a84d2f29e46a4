//! What lies in a folder of a drive: sealed pages, records, the manifest, names of files.
//!
//! ```text
//! manifest                the root: which journal is in force, and how much of it
//! journal-J               what happened to segments and blocks, appended in sealed pages
//! segment-S.data          extents of blocks
//! segment-S.table-T       the blocks of a full segment, in sealed pages
//! ```
//!
//! `docs/format.md` draws all of it.

mod carried_out;
mod file_name;
mod layered;
mod manifest;
mod page;
mod record;

pub use carried_out::CarriedOut;
pub(crate) use file_name::{FileName, JOURNAL_MAX, MANIFEST, MANIFEST_NEW, NUMBER_MAX};
pub use layered::{ALL_LAYERS, Encoding, Page};
pub(crate) use layered::{LAYERS_MAX, read_directory, write_directory};
pub(crate) use manifest::{Manifest, STORE_UNKNOWN};
#[cfg(test)]
pub(crate) use page::HEADER_BYTES;
pub(crate) use page::{PageError, PageKind, Seal, seal_pages};
pub(crate) use record::{BlockRecord, RECORD_BYTES, RECORDS_A_PAGE, Record};

/// Version of all that is written. A later version is refused.
pub(crate) const SCHEMA: u32 = 2;
/// Oldest version that is read. Version 1 has no encoded blocks, and is otherwise the same.
pub(crate) const SCHEMA_OLDEST: u32 = 1;

/// Pages of 4 KiB that so many bytes take.
pub(crate) const fn pages_of(bytes: u32) -> u32 {
    bytes.div_ceil(crate::io::PAGE_BYTES)
}
