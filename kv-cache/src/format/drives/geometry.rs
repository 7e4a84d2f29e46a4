//! How much room a region has for what its hosts say of their drives.

use crate::format::geometry::GeometryError;
use crate::format::halves;

/// Most entries of a node's drive directory.
pub const DRIVE_SLOTS_MAX: u32 = 1 << 30;
/// Most lines of requests of a node to another.
pub const DRIVE_REQUESTS_MAX: u32 = 1 << 12;
/// Fewest and most entries of a drive log.
const LOG_ENTRIES: std::ops::RangeInclusive<u32> = 8..=1 << 24;
/// Entries of all directories together that [`DriveGeometry::suggest`] makes at most: each costs the
/// region 32 bytes, and each host 36.
const SUGGESTED_SLOTS: u64 = 1 << 27;

/// Words of a host's table before its rows.
pub(crate) const TABLE_HEADER_WORDS: usize = 8;
/// Words of a row of a host's table.
pub(crate) const ROW_WORDS: usize = 3;
/// Engines of a host that can say when they compute.
pub(crate) const FORWARD_ROWS: usize = 64;
/// Words of what an engine says: a cache line.
pub(crate) const FORWARD_ROW_WORDS: usize = 8;

/// Sizes of the parts of a node's area that are about drives, the same for every node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriveGeometry {
    slots: u32,
    log_entries: u32,
    request_slots: u32,
}

impl DriveGeometry {
    /// Checked sizes: entries of a node's drive directory, entries of its drive log, and lines of
    /// requests that a node has for each node.
    ///
    /// # Errors
    /// [`GeometryError::Drives`].
    pub fn new(slots: u32, log_entries: u32, request_slots: u32) -> Result<Self, GeometryError> {
        let are_slots = (2..=DRIVE_SLOTS_MAX).contains(&slots) && slots.is_multiple_of(2);
        let is_log = LOG_ENTRIES.contains(&log_entries) && log_entries.is_power_of_two();
        let is_ring =
            (1..=DRIVE_REQUESTS_MAX).contains(&request_slots) && request_slots.is_power_of_two();
        if are_slots && is_log && is_ring {
            Ok(Self { slots, log_entries, request_slots })
        } else {
            Err(GeometryError::Drives { slots, log_entries, request_slots })
        }
    }

    /// Sizes for drives of `drive_bytes` a node with blocks of `block_bytes` or more, in a region of
    /// `nodes` nodes; `None` for drives without a byte.
    ///
    /// All directories together have at most 2^27 entries, whatever the drives have: 4 GiB of the
    /// region. Blocks beyond that are not announced to other hosts.
    #[must_use]
    pub fn suggest(drive_bytes: u64, block_bytes: u64, nodes: u16) -> Option<Self> {
        let most = SUGGESTED_SLOTS / u64::from(nodes.max(1));
        let blocks = (drive_bytes / block_bytes.max(1)).min(most);
        let slots = u32::try_from(blocks.next_multiple_of(2)).unwrap_or(DRIVE_SLOTS_MAX);
        let log_entries = (slots / 4).next_power_of_two().clamp(64, 1 << 16);
        let request_slots = (slots / 64).next_power_of_two().clamp(8, 1 << 10);
        (slots > 0).then_some(Self { slots, log_entries, request_slots })
    }

    /// Entries of a node's drive directory: blocks on its drives that other hosts can learn of.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Entries of a node's drive log.
    #[must_use]
    pub fn log_entries(&self) -> u32 {
        self.log_entries
    }

    /// Requests of a node to another that may be unanswered.
    #[must_use]
    pub fn request_slots(&self) -> u32 {
        self.request_slots
    }

    /// Rows of a host's table at most, in a region of `nodes` nodes: half as many again as there
    /// are entries, so that searches in it are short.
    pub(crate) fn rows_max(&self, nodes: u16) -> usize {
        let entries = usize::from(nodes) * self.slots as usize;
        (entries + entries / 2).max(8)
    }

    /// Words of a host's table of blocks on drives.
    pub(crate) fn table_words(&self, nodes: u16) -> usize {
        TABLE_HEADER_WORDS + self.rows_max(nodes) * ROW_WORDS
    }

    /// Words that a host tier has for its table, and for what its engines say.
    pub(crate) fn host_words(&self, nodes: u16) -> usize {
        self.table_words(nodes) + FORWARD_ROWS * FORWARD_ROW_WORDS
    }

    /// The superblock's words of no drives, or of these.
    pub(crate) fn encode(drives: Option<Self>) -> [u64; 2] {
        drives.map_or([0; 2], |it| {
            let sizes = u64::from(it.slots) | u64::from(it.log_entries) << 32;
            [sizes, u64::from(it.request_slots)]
        })
    }

    /// What the superblock's words say.
    pub(crate) fn decode(words: [u64; 2]) -> Result<Option<Self>, GeometryError> {
        if words == [0; 2] {
            return Ok(None);
        }
        let (slots, log_entries) = halves(words[0]);
        let request_slots = u32::try_from(words[1]).unwrap_or(u32::MAX);
        Self::new(slots, log_entries, request_slots).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert!(DriveGeometry::new(2, 8, 1).is_ok());
        for (slots, log_entries, requests) in
            [(0, 8, 1), (3, 8, 1), (2, 4, 1), (2, 9, 1), (2, 8, 0), (2, 8, 3), (2, 8, 1 << 13)]
        {
            assert!(DriveGeometry::new(slots, log_entries, requests).is_err(), "{slots}");
        }
    }

    #[test]
    fn a_full_host_table_has_room_and_costs_little() {
        let drives = DriveGeometry::suggest(8 << 40, 64 << 10, 8).unwrap();
        let entries = 8 * drives.slots() as usize;
        assert_eq!(entries, 1 << 27, "as many as are suggested at most");
        assert!(drives.table_words(8) * 8 <= 48 * entries, "at most 48 bytes a block");
        assert!(drives.rows_max(8) * 3 / 4 > entries);
    }

    proptest! {
        #[test]
        fn suggestions_are_possible(bytes in 0u64..1 << 50, block in 1u64..1 << 26, nodes in 0u16..33) {
            match DriveGeometry::suggest(bytes, block, nodes) {
                None => prop_assert!(bytes < block),
                Some(it) => {
                    prop_assert_eq!(DriveGeometry::new(it.slots, it.log_entries, it.request_slots), Ok(it));
                    prop_assert_eq!(DriveGeometry::decode(DriveGeometry::encode(Some(it))), Ok(Some(it)));
                }
            }
        }
    }
}
