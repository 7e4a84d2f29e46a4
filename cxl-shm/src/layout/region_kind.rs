//! What a region is made of.

use std::fmt;

/// What a region is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// A device-dax character device: memory that several hosts can share.
    Devdax,
    /// A regular file: memory, or a drive, of this host only.
    File,
}

impl fmt::Display for RegionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Devdax => "a devdax device",
            Self::File => "a regular file",
        })
    }
}
