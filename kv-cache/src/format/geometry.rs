//! How large the cache's metadata is: chosen at format time, kept in the superblock.

use cxl_shm::units::{LINE_BYTES, PAGE_BYTES};

use super::{DRIVE_REQUESTS_MAX, DRIVE_SLOTS_MAX, DriveGeometry, Tables, halves};

/// "RLKVCACH", the first application word of the superblock.
const MAGIC: u64 = u64::from_le_bytes(*b"RLKVCACH");
/// Version of everything this crate keeps in a region.
const VERSION: u32 = 10;
/// Nodes of a region any of which can own all of it. Of more nodes each can own as much less.
const NODES_OWNING_ALL: u64 = 8;

/// Fewest descriptors of a node.
pub const DESCRIPTOR_SLOTS_MIN: u32 = 8;
/// Most descriptors of a node: with 32 nodes, every descriptor has a number of 31 bits.
pub const DESCRIPTOR_SLOTS_MAX: u32 = 1 << 26;
/// Fewest entries of a publication log.
pub const LOG_ENTRIES_MIN: u32 = 8;
/// Most entries of a publication log.
pub const LOG_ENTRIES_MAX: u32 = 1 << 24;

/// Sizes that every node has the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheGeometry {
    descriptor_slots: u32,
    share_slots: u32,
    log_entries: u32,
    drives: Option<DriveGeometry>,
}

/// Why sizes cannot be, or a region is not a cache's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// Not a possible number of descriptors.
    #[error(
        "{slots} descriptors a node: must be a power of two from {DESCRIPTOR_SLOTS_MIN} to \
         {DESCRIPTOR_SLOTS_MAX}"
    )]
    DescriptorSlots {
        /// Asked for.
        slots: u32,
    },
    /// Not a possible number of descriptors for a node's share.
    #[error(
        "{share_slots} descriptors for the share of a node: must be a power of two from \
         {DESCRIPTOR_SLOTS_MIN} to the {slots} descriptors of a node"
    )]
    ShareSlots {
        /// Asked for.
        share_slots: u32,
        /// Descriptors of a node.
        slots: u32,
    },
    /// Not a possible length of the publication log.
    #[error(
        "a publication log of {entries} entries: must be a power of two from {LOG_ENTRIES_MIN} \
         to {LOG_ENTRIES_MAX}"
    )]
    LogEntries {
        /// Asked for.
        entries: u32,
    },
    /// Not possible sizes for what hosts say of their drives.
    #[error(
        "a drive directory of {slots} entries, a drive log of {log_entries} and {request_slots} \
         requests: must be an even number from 2 to {DRIVE_SLOTS_MAX}, a power of two from 8 to \
         2^24, and a power of two up to {DRIVE_REQUESTS_MAX}"
    )]
    Drives {
        /// Asked for.
        slots: u32,
        /// Asked for.
        log_entries: u32,
        /// Asked for.
        request_slots: u32,
    },
    /// The region was formatted for something else.
    #[error("the region was not formatted for a KV cache; format it again with `rackline format`")]
    NotACache,
    /// The region was formatted by another version.
    #[error(
        "the region's cache format is version {found}, this program knows {VERSION}; use the \
         program that made it, or format it again with `rackline format --force`"
    )]
    OtherVersion {
        /// Version found.
        found: u32,
    },
    /// The nodes' areas have another size than these sizes need.
    #[error(
        "the region has {area_lines} lines for each node, the cache needs {needed_lines}; format \
         the region again with `rackline format --force`"
    )]
    AreaLines {
        /// Lines of an area.
        area_lines: u64,
        /// Lines that are needed.
        needed_lines: u64,
    },
}

impl CacheGeometry {
    /// Checked sizes: descriptors of a node, and entries of its publication log. Both are powers
    /// of two.
    ///
    /// # Errors
    /// [`GeometryError::DescriptorSlots`], [`GeometryError::LogEntries`].
    pub fn new(descriptor_slots: u32, log_entries: u32) -> Result<Self, GeometryError> {
        let slots = DESCRIPTOR_SLOTS_MIN..=DESCRIPTOR_SLOTS_MAX;
        if !slots.contains(&descriptor_slots) || !descriptor_slots.is_power_of_two() {
            return Err(GeometryError::DescriptorSlots { slots: descriptor_slots });
        }
        let entries = LOG_ENTRIES_MIN..=LOG_ENTRIES_MAX;
        if !entries.contains(&log_entries) || !log_entries.is_power_of_two() {
            return Err(GeometryError::LogEntries { entries: log_entries });
        }
        Ok(Self { descriptor_slots, share_slots: descriptor_slots, log_entries, drives: None })
    }

    /// The same sizes, where a node is expected to use `share_slots` of its descriptors: a power of
    /// two. Each reader has so many reader words for a node. Further descriptors share words with
    /// those: a hold of one of them protects the others from eviction, too.
    ///
    /// # Errors
    /// [`GeometryError::ShareSlots`].
    pub fn with_share(self, share_slots: u32) -> Result<Self, GeometryError> {
        let slots = self.descriptor_slots;
        let possible = DESCRIPTOR_SLOTS_MIN..=slots;
        if !possible.contains(&share_slots) || !share_slots.is_power_of_two() {
            return Err(GeometryError::ShareSlots { share_slots, slots });
        }
        Ok(Self { share_slots, ..self })
    }

    /// The same sizes, with room for what hosts say of their drives, or with none.
    #[must_use]
    pub fn with_drives(self, drives: Option<DriveGeometry>) -> Self {
        Self { drives, ..self }
    }

    /// Sizes for a region of `region_bytes` shared by `nodes` nodes, with blocks of `block_bytes`
    /// or more.
    ///
    /// Of up to 8 nodes each can own all blocks of the pool; of more nodes each can own 8 times its
    /// share. A node has reader words of its own for twice its share. A reader can be 65,536 log
    /// entries behind, in a small pool a quarter of these, before it reads the segment again.
    #[must_use]
    pub fn suggest(region_bytes: u64, nodes: u16, block_bytes: u64) -> Self {
        let slot_bytes = block_bytes.max(1).next_multiple_of(PAGE_BYTES);
        let blocks = region_bytes / slot_bytes;
        let nodes = u64::from(nodes.max(1));
        let part = |times: u64| (blocks.saturating_mul(times) / nodes).clamp(1, blocks.max(1));
        let (share_slots, descriptor_slots) =
            (slots_for(part(2)), slots_for(part(NODES_OWNING_ALL)));
        let log_entries = (share_slots / 4).clamp(64, 1 << 16);
        Self { descriptor_slots, share_slots, log_entries, drives: None }
    }

    /// Descriptors of a node.
    #[must_use]
    pub fn descriptor_slots(&self) -> u32 {
        self.descriptor_slots
    }

    /// Most blocks that a node can own at once (INDEX-S3).
    #[must_use]
    pub fn blocks_max(&self) -> u64 {
        u64::from(self.descriptor_slots) * 3 / 4
    }

    /// Descriptors of a node for which a reader has words of their own.
    pub(crate) fn share_slots(&self) -> u32 {
        self.share_slots
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables::new(self.descriptor_slots, self.share_slots)
    }

    /// Sizes of what hosts say of their drives; `None` when the region has no room for that.
    #[must_use]
    pub fn drives(&self) -> Option<DriveGeometry> {
        self.drives
    }

    /// Entries of a node's publication log.
    #[must_use]
    pub fn log_entries(&self) -> u32 {
        self.log_entries
    }

    /// The superblock's application words that say so.
    #[must_use]
    pub fn encode(&self) -> [u64; 6] {
        let sizes = u64::from(self.descriptor_slots) | u64::from(self.log_entries) << 32;
        let [drives, requests] = DriveGeometry::encode(self.drives);
        [MAGIC, u64::from(VERSION), sizes, u64::from(self.share_slots), drives, requests]
    }

    /// Sizes from the superblock's application words, checked to fit the areas of `nodes` nodes,
    /// of `area_lines` each.
    ///
    /// # Errors
    /// [`GeometryError`].
    pub fn decode(
        application: [u64; 6],
        nodes: u16,
        area_lines: u64,
    ) -> Result<Self, GeometryError> {
        let [magic, version, sizes, share, drives @ ..] = application;
        if magic != MAGIC {
            return Err(GeometryError::NotACache);
        }
        if version != u64::from(VERSION) {
            let found = u32::try_from(version).unwrap_or(u32::MAX);
            return Err(GeometryError::OtherVersion { found });
        }
        let (slots, entries) = halves(sizes);
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        let drives = DriveGeometry::decode(drives)?;
        let geometry = Self::new(slots, entries)?.with_share(share)?.with_drives(drives);
        let needed_lines = geometry.area_lines(nodes);
        if area_lines != needed_lines {
            return Err(GeometryError::AreaLines { area_lines, needed_lines });
        }
        Ok(geometry)
    }

    /// Bytes of metadata of one node in a region of `nodes` nodes.
    #[must_use]
    pub fn area_bytes(&self, nodes: u16) -> u64 {
        self.area_lines(nodes) * LINE_BYTES
    }
}

/// Slots for so many blocks: only three quarters of a segment are ever filled.
fn slots_for(blocks: u64) -> u32 {
    let slots = (blocks.saturating_mul(4) / 3 + 1).min(u64::from(DESCRIPTOR_SLOTS_MAX));
    u32::try_from(slots).unwrap_or(DESCRIPTOR_SLOTS_MAX).next_power_of_two().max(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_survive_the_superblock() {
        let geometry = CacheGeometry::new(1024, 256).unwrap().with_share(64).unwrap();
        let drives = Some(DriveGeometry::new(1024, 64, 8).unwrap());
        for drives in [None, drives] {
            let geometry = geometry.with_drives(drives);
            let lines = geometry.area_lines(4);
            assert_eq!(CacheGeometry::decode(geometry.encode(), 4, lines), Ok(geometry));
        }
        let mut words = geometry.with_drives(drives).encode();
        words[5] = 0;
        let error = CacheGeometry::decode(words, 4, geometry.area_lines(4)).unwrap_err();
        assert!(matches!(error, GeometryError::Drives { .. }));
        let words = geometry.encode();
        let error = CacheGeometry::decode(words, 4, geometry.area_lines(4) + 1).unwrap_err();
        assert!(matches!(error, GeometryError::AreaLines { .. }));
        assert_eq!(CacheGeometry::decode([0; 6], 4, 0), Err(GeometryError::NotACache));
        let other = [words[0], 1, words[2], words[3], 0, 0];
        let error = CacheGeometry::decode(other, 4, geometry.area_lines(4)).unwrap_err();
        assert_eq!(error, GeometryError::OtherVersion { found: 1 });
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(CacheGeometry::new(1000, 256).is_err());
        assert!(CacheGeometry::new(1 << 27, 256).is_err());
        assert!(CacheGeometry::new(4, 256).is_err());
        assert!(CacheGeometry::new(1024, 4).is_err());
        assert!(CacheGeometry::new(1024, 255).is_err());
        let geometry = CacheGeometry::new(1024, 256).unwrap();
        for share_slots in [0, 4, 100, 2048] {
            assert!(geometry.with_share(share_slots).is_err(), "{share_slots}");
        }
    }

    proptest! {
        #[test]
        fn any_words_decode_or_are_refused(words: [u64; 6], nodes in 1u16..40, lines: u64) {
            if let Ok(geometry) = CacheGeometry::decode(words, nodes, lines) {
                prop_assert_eq!(geometry.encode(), words);
            }
        }

        #[test]
        fn suggestions_are_possible(region in 0u64..1 << 48, nodes in 0u16..40, block in 0u64..1 << 30) {
            let suggested = CacheGeometry::suggest(region, nodes, block);
            let checked = CacheGeometry::new(suggested.descriptor_slots, suggested.log_entries);
            let checked = checked.and_then(|it| it.with_share(suggested.share_slots));
            prop_assert_eq!(checked, Ok(suggested));
        }
    }

    #[test]
    fn a_suggestion_costs_little_of_the_pool() {
        let geometry = CacheGeometry::suggest(64 << 30, 4, 64 << 10);
        assert!(geometry.area_bytes(4) * 4 < (64 << 30) / 100, "{geometry:?}");
        // Every node can own all of it.
        assert!(geometry.blocks_max() >= 1 << 20);
    }

    #[test]
    fn one_node_can_own_a_large_pool_at_a_cost_that_the_record_names() {
        // docs/decisions: 1 TiB of blocks of 64 KiB.
        let (region, block) = (1u64 << 40, 64u64 << 10);
        for (nodes, blocks, most_permille) in
            [(8u16, region / block, 21), (32, region / block / 4, 33)]
        {
            let geometry = CacheGeometry::suggest(region, nodes, block);
            assert!(geometry.blocks_max() >= blocks, "{geometry:?}");
            let bytes = geometry.area_bytes(nodes) * u64::from(nodes);
            assert!(bytes * 1000 <= region * most_permille, "{nodes} nodes: {bytes} bytes");
        }
    }
}
