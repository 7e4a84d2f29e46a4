//! The superblock: two slots and a selector. A slot is written and published whole before the
//! selector names it, so a crash in between leaves the old one in force.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::{Geometry, GeometryError, Layout};
use crate::fabric::refresh_all;
use crate::fabric::{Fabric, LineError, OwnedArea, OwnedLine, PeerLine, PublishBatch, Record};
use crate::layout::ChunkState;
use crate::layout::records::ChunkEntry;
use crate::units::{LINE_BYTES, LineOffset, LineRange, PAGE_BYTES};

/// Version of the region format. Regions of another version are refused, never converted.
pub const FORMAT_VERSION: u32 = 2;

/// "RACKLINE" in the order of its bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"RACKLINE");
const SELECTOR_AT: u64 = 2 * PAGE_BYTES;

/// What the region is, as read from its superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Identity of this formatting of the region.
    pub uuid: [u64; 2],
    /// What the layout derives from.
    pub geometry: Geometry,
    /// How the locks between hosts work.
    pub lock_protocol: LockProtocol,
    /// Six words that belong to the layer above.
    pub application: [u64; 6],
}

/// How locks between hosts work: chosen when the region is formatted, the same for all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockProtocol {
    /// A lock manager grants slots. The default, as in the paper.
    #[default]
    Arbitrated,
    /// Lamport's bakery: first come, first served, without a manager.
    Bakery,
}

impl LockProtocol {
    fn code(self) -> u32 {
        match self {
            Self::Arbitrated => 0,
            Self::Bakery => 1,
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Arbitrated),
            1 => Some(Self::Bakery),
            _ => None,
        }
    }
}

impl fmt::Display for LockProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arbitrated => "arbitrated",
            Self::Bakery => "bakery",
        })
    }
}

impl Superblock {
    /// A region of `geometry`, with the default lock protocol.
    #[must_use]
    pub fn new(uuid: [u64; 2], geometry: Geometry, application: [u64; 6]) -> Self {
        Self { uuid, geometry, lock_protocol: LockProtocol::default(), application }
    }

    /// The uuid as people write it.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        uuid_text(self.uuid)
    }
}

/// A uuid in its usual form.
pub(crate) fn uuid_text(uuid: [u64; 2]) -> String {
    let [a, b] = uuid;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        a >> 16 & 0xffff,
        a & 0xffff,
        b >> 48,
        b & 0xffff_ffff_ffff
    )
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Identity {
    magic: u64,
    uuid: [u64; 2],
    version: u32,
    nodes: u32,
    locks: u32,
    lock_protocol: u32,
    chunk_bytes: u64,
    sequence: u64,
}

impl Record for Identity {
    const KIND: u32 = u32::from_le_bytes(*b"SUPR");
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Extents {
    region_bytes: u64,
    area_lines: u64,
    chunks_at: u64,
    sequence: u64,
    host_words: u64,
    reserved: [u64; 2],
}

impl Record for Extents {
    const KIND: u32 = u32::from_le_bytes(*b"EXTS");
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Application {
    words: [u64; 6],
    sequence: u64,
}

impl Record for Application {
    const KIND: u32 = u32::from_le_bytes(*b"APPL");
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Selector {
    magic: u64,
    version: u32,
    slot: u32,
    sequence: u64,
    reserved: [u64; 4],
}

impl Record for Selector {
    const KIND: u32 = u32::from_le_bytes(*b"SLCT");
}

/// Why a region cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperblockError {
    /// Not even large enough for a superblock.
    #[error("{bytes} bytes are too few for a Rackline region")]
    TooSmall {
        /// Size of the memory.
        bytes: u64,
    },
    /// No superblock there.
    #[error("this is not a Rackline region; make it one with `rackline format`")]
    NotOurs,
    /// A superblock of another version.
    #[error(
        "the region has format version {found}, this program knows {FORMAT_VERSION}; use the \
         program that made it, or make it anew with `rackline format --force`"
    )]
    OtherVersion {
        /// Version found.
        found: u32,
    },
    /// The region was made for memory of another size.
    #[error(
        "the region was formatted for {formatted_bytes} bytes but the memory has {bytes}; give \
         the device its size back, or make the region anew with `rackline format --force`"
    )]
    WrongSize {
        /// Size of the memory.
        bytes: u64,
        /// Size it was formatted for.
        formatted_bytes: u64,
    },
    /// A damaged superblock.
    #[error("the superblock is damaged ({0}); make the region anew with `rackline format --force`")]
    Damaged(LineError),
    /// Its parts contradict each other.
    #[error(
        "the superblock contradicts itself; make the region anew with `rackline format --force`"
    )]
    Inconsistent,
    /// Its geometry cannot be.
    #[error("the superblock is wrong: {0}; make the region anew with `rackline format --force`")]
    Geometry(#[from] GeometryError),
}

/// Reads and validates the superblock.
///
/// # Errors
/// [`SuperblockError`]. Nothing read is used before it was checked.
pub fn read_superblock(fabric: &impl Fabric) -> Result<(Superblock, Layout), SuperblockError> {
    let bytes = fabric.bytes();
    if bytes < SELECTOR_AT + PAGE_BYTES {
        return Err(SuperblockError::TooSmall { bytes });
    }
    let selector = PeerLine::<Selector>::new(line(SELECTOR_AT)).fresh(fabric);
    let selector = match selector {
        Ok(selector) if selector.magic == MAGIC => selector,
        // A seal that does not fit is most likely somebody else's data.
        Ok(_) | Err(_) => return Err(SuperblockError::NotOurs),
    };
    if selector.version != FORMAT_VERSION {
        return Err(SuperblockError::OtherVersion { found: selector.version });
    }
    let slot = match selector.slot {
        slot @ 0..=1 => u64::from(slot) * PAGE_BYTES,
        _ => return Err(SuperblockError::Inconsistent),
    };
    let identity = PeerLine::<Identity>::new(line(slot));
    let extents = PeerLine::<Extents>::new(line(slot + LINE_BYTES));
    let application = PeerLine::<Application>::new(line(slot + 2 * LINE_BYTES));
    refresh_all(fabric, [identity.range(), extents.range(), application.range()]);
    let identity = identity.cached(fabric).map_err(SuperblockError::Damaged)?;
    let extents = extents.cached(fabric).map_err(SuperblockError::Damaged)?;
    let application = application.cached(fabric).map_err(SuperblockError::Damaged)?;

    let sequences = [identity.sequence, extents.sequence, application.sequence];
    let nodes = u16::try_from(identity.nodes).map_err(|_| SuperblockError::Inconsistent)?;
    if sequences != [selector.sequence; 3] || identity.magic != MAGIC {
        return Err(SuperblockError::Inconsistent);
    }
    let geometry = Geometry {
        region_bytes: extents.region_bytes,
        nodes,
        locks: identity.locks,
        chunk_bytes: identity.chunk_bytes,
        area_lines: extents.area_lines,
        host_words: extents.host_words,
    };
    if geometry.region_bytes != bytes {
        let formatted_bytes = geometry.region_bytes;
        return Err(SuperblockError::WrongSize { bytes, formatted_bytes });
    }
    let layout = Layout::new(geometry)?;
    if layout.metadata().bytes() != extents.chunks_at {
        return Err(SuperblockError::Inconsistent);
    }
    let lock_protocol =
        LockProtocol::from_code(identity.lock_protocol).ok_or(SuperblockError::Inconsistent)?;
    let application = application.words;
    let superblock = Superblock { uuid: identity.uuid, geometry, lock_protocol, application };
    Ok((superblock, layout))
}

/// Why a region cannot be formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormatError {
    /// The geometry cannot be laid out.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The geometry is for memory of another size.
    #[error("the geometry is for {geometry_bytes} bytes, the memory has {bytes}")]
    WrongSize {
        /// Size of the memory.
        bytes: u64,
        /// Size in the geometry.
        geometry_bytes: u64,
    },
}

/// Makes the memory a region. All that was in it is lost; the caller has made sure that nobody
/// uses it. `progress` is told lines of metadata done and in all.
///
/// After return every host that opens the memory sees the new region. A crash on the way leaves
/// memory that is no region ([`SuperblockError::NotOurs`]).
///
/// # Errors
/// [`FormatError`]; nothing is changed then.
pub fn format_superblock<F: Fabric>(
    fabric: &F,
    superblock: &Superblock,
    mut progress: impl FnMut(u64, u64),
) -> Result<Layout, FormatError> {
    let bytes = fabric.bytes();
    let geometry = superblock.geometry;
    if geometry.region_bytes != bytes {
        return Err(FormatError::WrongSize { bytes, geometry_bytes: geometry.region_bytes });
    }
    let layout = Layout::new(geometry)?;

    // While the selector is blank the memory is no region, whatever else it holds.
    clear(fabric, LineRange::one(line(SELECTOR_AT)));
    let metadata = LineRange::covering(layout.metadata());
    const STEP_LINES: u64 = 16 << 10;
    for first in (0..metadata.lines()).step_by(usize::try_from(STEP_LINES).unwrap_or(1)) {
        let count = STEP_LINES.min(metadata.lines() - first);
        let part = OwnedArea::new(metadata).part(first, count);
        clear(fabric, part.expect("a step lies inside the metadata").range());
        progress(first + count, metadata.lines());
    }
    let mut batch = PublishBatch::new(fabric);
    for chunk in 0..layout.chunks() {
        let entry = layout.chunk_entry(crate::units::ChunkId(chunk));
        batch.line(OwnedLine::new(entry.at()), &ChunkEntry::new(ChunkState::Free));
    }
    let sequence = 1;
    let identity = Identity {
        magic: MAGIC,
        uuid: superblock.uuid,
        version: FORMAT_VERSION,
        nodes: u32::from(geometry.nodes),
        locks: geometry.locks,
        lock_protocol: superblock.lock_protocol.code(),
        chunk_bytes: geometry.chunk_bytes,
        sequence,
    };
    batch.line(OwnedLine::new(line(0)), &identity);
    let extents = Extents {
        region_bytes: geometry.region_bytes,
        area_lines: geometry.area_lines,
        chunks_at: layout.metadata().bytes(),
        sequence,
        host_words: geometry.host_words,
        reserved: [0; 2],
    };
    batch.line(OwnedLine::new(line(LINE_BYTES)), &extents);
    let application = Application { words: superblock.application, sequence };
    batch.line(OwnedLine::new(line(2 * LINE_BYTES)), &application);
    batch.publish();
    // M2: the slot is visible before the selector names it.
    let selector =
        Selector { magic: MAGIC, version: FORMAT_VERSION, slot: 0, sequence, reserved: [0; 4] };
    OwnedLine::new(line(SELECTOR_AT)).publish(fabric, &selector);
    Ok(layout)
}

fn clear<F: Fabric>(fabric: &F, lines: LineRange) {
    for line in lines.iter() {
        fabric.write_line(line, &[0; 8]);
    }
    fabric.publish(lines);
}

fn line(at: u64) -> LineOffset {
    LineOffset::new(at).expect("the superblock's lines are at multiples of 64")
}

impl fmt::Display for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Geometry { region_bytes, nodes, locks, chunk_bytes, .. } = self.geometry;
        write!(
            f,
            "region {} of {region_bytes} bytes, {nodes} nodes, {locks} locks, chunks of {chunk_bytes} bytes",
            self.uuid_text()
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fabric::simulated::SimulatedRack;

    fn formatted() -> (SimulatedRack, Superblock) {
        let geometry = Geometry {
            region_bytes: 1 << 20,
            nodes: 2,
            locks: 8,
            chunk_bytes: 64 << 10,
            area_lines: 3,
            host_words: 5,
        };
        let rack = SimulatedRack::sticky(2, geometry.region_bytes);
        let superblock = Superblock::new([1, 2], geometry, [3; 6]);
        format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
        (rack, superblock)
    }

    #[test]
    fn another_host_reads_what_was_formatted() {
        let (rack, superblock) = formatted();
        let (read, layout) = read_superblock(&rack.host(1)).unwrap();
        assert_eq!(read, superblock);
        assert_eq!(layout, Layout::new(superblock.geometry).unwrap());
    }

    #[test]
    fn another_version_is_refused() {
        let (rack, _) = formatted();
        let later = Selector { magic: MAGIC, version: 9, slot: 0, sequence: 1, reserved: [0; 4] };
        OwnedLine::new(line(SELECTOR_AT)).publish(&rack.host(0), &later);
        let error = read_superblock(&rack.host(1)).unwrap_err();
        assert_eq!(error, SuperblockError::OtherVersion { found: 9 });
    }

    #[test]
    fn every_flipped_bit_of_the_superblock_is_noticed() {
        for (at, expected_ours) in [(SELECTOR_AT, false), (0, true), (LINE_BYTES, true)] {
            for byte in 0..LINE_BYTES {
                let (rack, _) = formatted();
                rack.flip_bit(at + byte, 5);
                let error = read_superblock(&rack.host(1)).unwrap_err();
                assert_eq!(error != SuperblockError::NotOurs, expected_ours, "{at} {byte}");
            }
        }
    }

    #[test]
    fn memory_of_zeros_is_no_region() {
        let rack = SimulatedRack::sticky(1, 1 << 20);
        assert_eq!(read_superblock(&rack.host(0)), Err(SuperblockError::NotOurs));
        let tiny = SimulatedRack::sticky(1, 64);
        let error = read_superblock(&tiny.host(0)).unwrap_err();
        assert_eq!(error, SuperblockError::TooSmall { bytes: 64 });
    }

    proptest! {
        #[test]
        fn no_sealed_superblock_makes_us_panic(
            version in 0u32..3, slot in 0u32..4, nodes: u32, locks: u32, chunk_bytes: u64,
            area_lines: u64, host_words: u64, chunks_at: u64,
        ) {
            let rack = SimulatedRack::sticky(1, 1 << 20);
            let host = rack.host(0);
            let at = u64::from(slot % 2) * PAGE_BYTES;
            let sequence = 1;
            OwnedLine::new(line(at)).publish(&host, &Identity {
                magic: MAGIC, uuid: [0; 2], version, nodes, locks, lock_protocol: slot, chunk_bytes, sequence,
            });
            OwnedLine::new(line(at + LINE_BYTES)).publish(&host, &Extents {
                region_bytes: 1 << 20, area_lines, chunks_at, sequence, host_words, reserved: [0; 2],
            });
            OwnedLine::new(line(at + 2 * LINE_BYTES))
                .publish(&host, &Application { words: [0; 6], sequence });
            OwnedLine::new(line(SELECTOR_AT)).publish(&host, &Selector {
                magic: MAGIC, version, slot, sequence, reserved: [0; 4],
            });
            if let Ok((superblock, layout)) = read_superblock(&host) {
                prop_assert!(layout.payload().end() <= superblock.geometry.region_bytes);
            }
        }
    }
}
