//! The content of a drive, and single changes of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Names, PAGE_BYTES};

/// What a crash left of a drive.
#[derive(Clone, Debug)]
pub struct CrashImage(pub(super) Image);

/// A file, whatever its names are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct FileNumber(pub(super) u64);

#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub(super) names: Names,
    pub(super) files: BTreeMap<FileNumber, File>,
}

/// A change that a crash keeps or loses as a whole.
#[derive(Clone, Debug)]
pub(super) enum Unit {
    File(FileNumber, Change),
    Name(NameChange),
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Bytes within a page.
    Write(u64, Vec<u8>),
    /// The file has at least this length.
    Length(u64),
    /// Zeros are allocated up to here, and the file has that length.
    Reserve(u64),
    /// This page is not allocated any more.
    Hole(u64),
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Is(String, FileNumber),
    Gone(String),
    Moved { from: String, to: String, number: FileNumber },
}

/// A page; all zeros without memory of its own.
type Page = Option<Arc<[u8]>>;

#[derive(Clone, Debug, Default)]
pub(super) struct File {
    pub(super) length: u64,
    /// The pages that are allocated.
    pages: BTreeMap<u64, Page>,
}

const PAGE: u64 = PAGE_BYTES as u64;

impl File {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut file = Self { length: bytes.len() as u64, ..Self::default() };
        for (at, part) in (0..).zip(bytes.chunks(PAGE_BYTES as usize)) {
            file.apply(&Change::Write(at * PAGE, part.to_vec()));
        }
        file
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.length).unwrap_or(usize::MAX)];
        self.read(0, &mut bytes);
        bytes
    }

    pub(super) fn allocated(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Reads bytes that are within the length.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        let end = offset + bytes.len() as u64;
        for (page, content) in self.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let Some(content) = content else { continue };
            let (from, to) = ((page * PAGE).max(offset), ((page + 1) * PAGE).min(end));
            let place = |at: u64, base: u64| usize::try_from(at - base).unwrap_or(usize::MAX);
            bytes[place(from, offset)..place(to, offset)]
                .copy_from_slice(&content[place(from, page * PAGE)..place(to, page * PAGE)]);
        }
    }

    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Write(at, bytes) => {
                let page = self.pages.entry(at / PAGE).or_default();
                let mut content =
                    page.as_ref().map_or_else(|| vec![0; PAGE_BYTES as usize], |it| it.to_vec());
                let start = usize::try_from(at % PAGE).unwrap_or(usize::MAX);
                content[start..start + bytes.len()].copy_from_slice(bytes);
                *page = Some(content.into());
            }
            Change::Length(length) => self.length = self.length.max(*length),
            Change::Reserve(length) => {
                self.length = self.length.max(*length);
                for page in 0..length.div_ceil(PAGE) {
                    self.pages.entry(page).or_default();
                }
            }
            Change::Hole(page) => {
                self.pages.remove(page);
            }
        }
    }
}
