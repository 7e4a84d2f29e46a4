//! Names of the files in a folder.

use std::fmt;

/// The root.
pub(crate) const MANIFEST: &str = "manifest";
/// The root that takes its place.
pub(crate) const MANIFEST_NEW: &str = "manifest.new";

/// Highest number of a segment, and of a version of its table, from which a folder counts on when it
/// finds a file of that name. No folder is used for so long: another program made a file with a higher
/// number. Names, records and manifests may have twice as much, so each number has next ones.
pub(crate) const NUMBER_MAX: u32 = u32::MAX / 4;
/// The same of journals, and of commits.
pub(crate) const JOURNAL_MAX: u64 = u64::MAX / 4;

/// A file of a store, by what it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum FileName {
    /// What happened.
    Journal(u64),
    /// Extents of a segment.
    Data(u32),
    /// Blocks of a segment, and which version of that table.
    Table(u32, u32),
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Journal(journal) => write!(f, "journal-{journal}"),
            Self::Data(segment) => write!(f, "segment-{segment}.data"),
            Self::Table(segment, version) => write!(f, "segment-{segment}.table-{version}"),
        }
    }
}

impl FileName {
    /// `None` when a file of that name is of somebody else.
    pub(crate) fn read(name: &str) -> Option<Self> {
        let found = if let Some(journal) = name.strip_prefix("journal-") {
            Self::Journal(journal.parse().ok()?)
        } else {
            let (segment, part) = name.strip_prefix("segment-")?.split_once('.')?;
            let segment = segment.parse().ok()?;
            match part.strip_prefix("table-") {
                Some(version) => Self::Table(segment, version.parse().ok()?),
                None if part == "data" => Self::Data(segment),
                None => return None,
            }
        };
        let is_possible = match found {
            Self::Journal(journal) => journal <= 2 * JOURNAL_MAX,
            Self::Data(segment) => segment <= 2 * NUMBER_MAX,
            Self::Table(segment, version) => segment.max(version) <= 2 * NUMBER_MAX,
        };
        // Zeros and signs in front make other names of the same number.
        (is_possible && found.to_string() == name).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in [FileName::Journal(7), FileName::Data(0), FileName::Table(12, 3)] {
            assert_eq!(FileName::read(&name.to_string()), Some(name));
        }
        let others = [
            "journal-",
            "journal-01",
            "segment-1",
            "segment-1.data2",
            "manifest",
            "segment-+1.data",
            "segment-1.table-x",
            "lock",
            "journal-18446744073709551615",
            "segment-4294967295.data",
            "segment-4294967295.table-1",
            "segment-1.table-4294967295",
        ];
        for other in others {
            assert_eq!(FileName::read(other), None, "{other}");
        }
    }
}
