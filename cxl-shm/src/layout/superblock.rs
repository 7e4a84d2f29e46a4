//! The superblock: two slots, a word that names the one in force, and a selector that says that
//! there is a region at all.
//!
//! The formatter writes the selector last, and nobody writes it again. What changes later (the
//! platform profile) is written whole into the other slot and published before the word names it,
//! so a crash in between leaves the old slot in force. It is a word and not a record because a
//! word never tears (MEM-M5): were it torn by the death of its writer, the region would be lost.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::failed_pages::failed_in;
use super::profile::{PlatformProfile, ProfileRecord};
use super::{Geometry, GeometryError, Layout};
use crate::crash::{self, CrashPoint};
use crate::fabric::refresh_all;
use crate::fabric::{
    Fabric, LineError, LineWords, OwnedArea, OwnedLine, PeerArea, PeerLine, PeerWord, PublishBatch,
    Record, unseal,
};
use crate::layout::ChunkState;
use crate::layout::records::ChunkEntry;
use crate::units::{Extent, LINE_BYTES, LineOffset, LineRange, PAGE_BYTES};

/// Version of the region format. Regions of another version are refused, never converted.
pub const FORMAT_VERSION: u32 = 9;

/// "RACKLINE" in the order of its bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"RACKLINE");
pub(super) const SELECTOR_AT: u64 = 2 * PAGE_BYTES;
/// The word that names the slot in force, in a line of its own.
pub(super) const CURRENT_AT: u64 = SELECTOR_AT + LINE_BYTES;
/// Lines of a slot: identity, extents, application, profile.
pub(super) const SLOT_LINES: u64 = 4;
/// Updates of the superblock that a reader outlasts before it gives up: each takes a lock, an
/// operator and seconds.
const UPDATES_OUTLASTED: u32 = 8;

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
    /// What `rackline qualify` measured; `None` until it has.
    pub profile: Option<PlatformProfile>,
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
        Self { uuid, geometry, lock_protocol: LockProtocol::default(), application, profile: None }
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
    zero: u32,
    reserved: [u64; 5],
}

impl Record for Selector {
    const KIND: u32 = u32::from_le_bytes(*b"SLCT");
}

impl Selector {
    fn new(version: u32) -> Self {
        Self { magic: MAGIC, version, zero: 0, reserved: [0; 5] }
    }
}

/// Why a region cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// Not even large enough for a superblock.
    #[error("{bytes} bytes are too few for a Rackline region")]
    TooSmall {
        /// Size of the memory.
        bytes: u64,
    },
    /// No superblock there.
    #[error("this is not a Rackline region; format it with `rackline format`")]
    NotOurs,
    /// A superblock of another version.
    #[error(
        "the region has format version {found}, this program knows {FORMAT_VERSION}; use the \
         program that made it, or format it again with `rackline format --force`"
    )]
    OtherVersion {
        /// Version found.
        found: u32,
    },
    /// The region was made for memory of another size.
    #[error(
        "the region was formatted for {formatted_bytes} bytes but the memory has {bytes}; give the \
         device its size back, or format the region again with `rackline format --force`"
    )]
    WrongSize {
        /// Size of the memory.
        bytes: u64,
        /// Size it was formatted for.
        formatted_bytes: u64,
    },
    /// A damaged superblock.
    #[error(
        "the superblock is damaged ({0}); format the region again with `rackline format --force`"
    )]
    Damaged(LineError),
    /// Its parts contradict each other.
    #[error(
        "the fields of the superblock contradict each other; format the region again with \
         `rackline format --force`"
    )]
    Inconsistent,
    /// Its geometry cannot be.
    #[error("the superblock is wrong: {0}; format the region again with `rackline format --force`")]
    Geometry(#[from] GeometryError),
    /// An access failed (FAULT-F4): what was read means nothing.
    #[error(
        "the memory of the region failed: the device reported an uncorrectable error in the \
         metadata, or the file was truncated; look for memory errors (`dmesg`, `cxl list \
         --media-errors`), then stop all processes of the region and format it"
    )]
    MemoryFailed,
}

/// Reads and validates the superblock.
///
/// # Errors
/// [`SuperblockError`]. Nothing read is used before it was checked.
pub fn read_superblock(fabric: &impl Fabric) -> Result<(Superblock, Layout), SuperblockError> {
    let read = read_selected(fabric);
    if fabric.is_cut_off() { Err(SuperblockError::MemoryFailed) } else { read }
}

fn read_selected(fabric: &impl Fabric) -> Result<(Superblock, Layout), SuperblockError> {
    let bytes = fabric.bytes();
    if bytes < SELECTOR_AT + PAGE_BYTES {
        return Err(SuperblockError::TooSmall { bytes });
    }
    let selector = PeerLine::<Selector>::new(line(SELECTOR_AT)).fresh(fabric);
    let selector = match selector {
        Ok(selector) if selector.magic == MAGIC => selector,
        // A seal that does not fit most likely belongs to other data.
        Ok(_) | Err(_) => return Err(SuperblockError::NotOurs),
    };
    if selector.version != FORMAT_VERSION {
        return Err(SuperblockError::OtherVersion { found: selector.version });
    }
    let mut current = current_word().fresh(fabric);
    for _ in 0..UPDATES_OUTLASTED {
        let error = match read_slot(fabric, current) {
            Ok(read) => return Ok(read),
            Err(error) => error,
        };
        // A slot is written again only after the word has named the other one (MEM-M2): of a slot
        // that is named before and after, what is wrong is wrong for good.
        let now = current_word().fresh(fabric);
        if now == current {
            return Err(error);
        }
        current = now;
    }
    Err(SuperblockError::Inconsistent)
}

/// The word for the `sequence`th superblock of a region, the first of which is 1. The upper half
/// tells it from damage.
fn word_of(sequence: u32) -> u64 {
    u64::from(sequence) | u64::from(!sequence) << 32
}

/// The sequence number in a word; `None` when it is damaged.
fn sequence_of(word: u64) -> Option<u32> {
    let sequence = u32::try_from(word & u64::from(u32::MAX)).ok()?;
    (sequence > 0 && word == word_of(sequence)).then_some(sequence)
}

fn current_word() -> PeerWord {
    let word = PeerArea::new(LineRange::one(line(CURRENT_AT))).word(0);
    word.expect("a line has a first word")
}

/// The slot of the superblock numbered `sequence`: they take turns.
fn slot_of(sequence: u32) -> Slot {
    Slot { at: u64::from((sequence - 1) % 2) * PAGE_BYTES }
}

/// One of the two places of a superblock.
#[derive(Clone, Copy)]
struct Slot {
    at: u64,
}

impl Slot {
    fn identity(self) -> PeerLine<Identity> {
        PeerLine::new(line(self.at))
    }

    fn extents(self) -> PeerLine<Extents> {
        PeerLine::new(line(self.at + LINE_BYTES))
    }

    fn application(self) -> PeerLine<Application> {
        PeerLine::new(line(self.at + 2 * LINE_BYTES))
    }

    fn profile(self) -> PeerLine<ProfileRecord> {
        PeerLine::new(line(self.at + 3 * LINE_BYTES))
    }

    fn lines(self) -> LineRange {
        LineRange::new(line(self.at), SLOT_LINES).expect("a slot is near the start of the region")
    }

    /// Writes all of it into `batch`. The caller is the one writer: the formatter, or the holder
    /// of the profile's lock (MEM-M1).
    fn write<F: Fabric>(
        self,
        batch: &mut PublishBatch<'_, F>,
        superblock: &Superblock,
        layout: &Layout,
        sequence: u32,
    ) {
        let sequence = u64::from(sequence);
        let geometry = superblock.geometry;
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
        batch.line(self.identity().claim(), &identity);
        let extents = Extents {
            region_bytes: geometry.region_bytes,
            area_lines: geometry.area_lines,
            chunks_at: layout.metadata().bytes(),
            sequence,
            host_words: geometry.host_words,
            reserved: [0; 2],
        };
        batch.line(self.extents().claim(), &extents);
        let application = Application { words: superblock.application, sequence };
        batch.line(self.application().claim(), &application);
        let profile = ProfileRecord::new(superblock.profile.as_ref(), sequence);
        batch.line(self.profile().claim(), &profile);
    }
}

/// A sealed line of the superblock.
#[derive(Clone, Copy)]
pub(super) enum SlotLine {
    Identity,
    Extents,
    Application,
    Profile,
    Selector,
}

/// Whether `words`, read at `at`, are such a line.
pub(super) fn check_slot_line(
    which: SlotLine,
    at: LineOffset,
    words: &LineWords,
) -> Result<(), LineError> {
    match which {
        SlotLine::Identity => unseal::<Identity>(at, words).map(|_| ()),
        SlotLine::Extents => unseal::<Extents>(at, words).map(|_| ()),
        SlotLine::Application => unseal::<Application>(at, words).map(|_| ()),
        SlotLine::Profile => unseal::<ProfileRecord>(at, words).map(|_| ()),
        SlotLine::Selector => unseal::<Selector>(at, words).map(|_| ()),
    }
}

/// Reads the superblock that `current` names.
fn read_slot(fabric: &impl Fabric, current: u64) -> Result<(Superblock, Layout), SuperblockError> {
    let bytes = fabric.bytes();
    let sequence = sequence_of(current).ok_or(SuperblockError::Inconsistent)?;
    let slot = slot_of(sequence);
    refresh_all(fabric, [slot.lines()]);
    let identity = slot.identity().cached(fabric).map_err(SuperblockError::Damaged)?;
    let extents = slot.extents().cached(fabric).map_err(SuperblockError::Damaged)?;
    let application = slot.application().cached(fabric).map_err(SuperblockError::Damaged)?;
    let profile = slot.profile().cached(fabric).map_err(SuperblockError::Damaged)?;

    let sequences = [identity.sequence, extents.sequence, application.sequence, profile.sequence];
    let nodes = u16::try_from(identity.nodes).map_err(|_| SuperblockError::Inconsistent)?;
    if sequences != [u64::from(sequence); 4] || identity.magic != MAGIC {
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
    let profile = profile.profile().ok_or(SuperblockError::Inconsistent)?;
    let (uuid, application) = (identity.uuid, application.words);
    Ok((Superblock { uuid, geometry, lock_protocol, application, profile }, layout))
}

/// Replaces the platform profile. The caller holds [`PROFILE_LOCK`](super::PROFILE_LOCK).
///
/// After return every host that reads the superblock fresh sees the new profile. One that dies on
/// the way leaves the old one or the new one in force.
///
/// # Errors
/// [`SuperblockError`] when the superblock cannot be read; nothing is changed then.
pub fn replace_profile<F: Fabric>(
    fabric: &F,
    profile: Option<PlatformProfile>,
) -> Result<Superblock, SuperblockError> {
    // LOCK-L1: read freshly under the lock.
    let (superblock, layout) = read_superblock(fabric)?;
    let superblock = Superblock { profile, ..superblock };
    let next = sequence_of(current_word().cached(fabric))
        .and_then(|sequence| sequence.checked_add(1))
        .ok_or(SuperblockError::Inconsistent)?;
    let mut batch = PublishBatch::new(fabric);
    slot_of(next).write(&mut batch, &superblock, &layout, next);
    batch.publish();
    crash::reach(CrashPoint::SuperblockSlotWritten);
    current_word().claim().publish(fabric, word_of(next));
    crash::reach(CrashPoint::SuperblockReplaced);
    Ok(superblock)
}

/// Ends what a process of this host that died in [`replace_profile`] left in this host's caches,
/// before the lock passes on: written back later it would land on the work of the next holder
/// (MEM-M1). The slot in force is unchanged, or complete: whichever the word says.
pub(crate) fn flush_superblock(fabric: &impl Fabric) {
    // In any order: a word that was stored and not published names a slot that was published.
    let all = [slot_of(1).lines(), slot_of(2).lines(), current_word().range()];
    for lines in all {
        fabric.write_back(lines);
    }
    fabric.fence();
    for lines in all {
        fabric.read_back(lines);
    }
}

/// The few lines that tell whether the memory is still the same region, for a caller that looks
/// often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuperblockWatch {
    uuid: [u64; 2],
}

impl SuperblockWatch {
    /// Watches whether the memory is still the region `uuid`.
    pub(crate) fn new(uuid: [u64; 2]) -> Self {
        Self { uuid }
    }

    /// The lines to refresh before each look.
    pub(crate) fn lines(self) -> impl Iterator<Item = LineRange> {
        let slots = [1, 2].map(|sequence| LineRange::one(slot_of(sequence).identity().at()));
        [LineRange::one(line(SELECTOR_AT)), current_word().range()].into_iter().chain(slots)
    }

    /// Whether what the caches hold of these lines says for certain that it is. When not, it may be
    /// an update of the superblock: [`read_superblock`] tells.
    pub(crate) fn is_same(self, fabric: &impl Fabric) -> bool {
        let selector = PeerLine::<Selector>::new(line(SELECTOR_AT)).cached(fabric);
        let selected = selector
            .is_ok_and(|selector| selector.magic == MAGIC && selector.version == FORMAT_VERSION);
        let sequence = sequence_of(current_word().cached(fabric)).filter(|_| selected);
        let identity = sequence.and_then(|it| slot_of(it).identity().cached(fabric).ok());
        identity.is_some_and(|identity| identity.uuid == self.uuid)
    }
}

/// Why a region cannot be formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
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
    progress: impl FnMut(u64, u64),
) -> Result<Layout, FormatError> {
    format_superblock_without(fabric, superblock, &[], progress)
}

/// As [`format_superblock`], of memory that failed in some parts: chunks that have such a part are out
/// of use from the start (FAULT-C4).
///
/// # Errors
/// [`FormatError`]; nothing is changed then.
pub fn format_superblock_without<F: Fabric>(
    fabric: &F,
    superblock: &Superblock,
    failed: &[Extent],
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
        let mut free = ChunkEntry::new(ChunkState::Free);
        for (_, pages) in
            failed.iter().flat_map(|lost| failed_in(&layout, *lost)).filter(|it| it.0.0 == chunk)
        {
            free = free.with_failed(Some(pages));
        }
        batch.line(OwnedLine::new(entry.at()), &free);
    }
    let first = 1;
    slot_of(first).write(&mut batch, superblock, &layout, first);
    // Nobody looks at it before the selector is there.
    batch.word(current_word().claim(), word_of(first));
    batch.publish();
    // MEM-M2: everything is visible before the selector says that it is a region.
    let selector = Selector::new(FORMAT_VERSION);
    OwnedLine::new(line(SELECTOR_AT)).publish(fabric, &selector);
    Ok(layout)
}

/// Makes a region look as one of another format version, for tests of programs that refuse it.
#[cfg(feature = "sim")]
#[doc(hidden)]
pub fn pretend_format_version(fabric: &impl Fabric, version: u32) {
    OwnedLine::new(line(SELECTOR_AT)).publish(fabric, &Selector::new(version));
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
#[path = "superblock_update_tests.rs"]
mod update_tests;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::verify::simulated::SimulatedRack;

    pub(super) fn geometry() -> Geometry {
        Geometry {
            region_bytes: 1 << 20,
            nodes: 2,
            locks: 8,
            chunk_bytes: 64 << 10,
            area_lines: 3,
            host_words: 5,
        }
    }

    fn formatted() -> (SimulatedRack, Superblock) {
        let geometry = geometry();
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
        let found = FORMAT_VERSION + 1;
        let later = Selector::new(found);
        OwnedLine::new(line(SELECTOR_AT)).publish(&rack.host(0), &later);
        let error = read_superblock(&rack.host(1)).unwrap_err();
        assert_eq!(error, SuperblockError::OtherVersion { found });
    }

    #[test]
    fn every_flipped_bit_of_the_superblock_is_noticed() {
        let ours = [CURRENT_AT, 0, LINE_BYTES, 2 * LINE_BYTES, 3 * LINE_BYTES].map(|at| (at, true));
        for (at, expected_ours) in ours.into_iter().chain([(SELECTOR_AT, false)]) {
            // Of the line of the word that names the slot, only the word means something.
            for byte in 0..if at == CURRENT_AT { 8 } else { LINE_BYTES } {
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
            area_lines: u64, host_words: u64, chunks_at: u64, current: u64, profile: [[u8; 8]; 7],
        ) {
            let rack = SimulatedRack::sticky(1, 1 << 20);
            let host = rack.host(0);
            let sequence = u64::from(slot) + 1;
            let at = slot_of(slot + 1);
            at.identity().claim().publish(&host, &Identity {
                magic: MAGIC, uuid: [0; 2], version, nodes, locks, lock_protocol: slot, chunk_bytes, sequence,
            });
            at.extents().claim().publish(&host, &Extents {
                region_bytes: 1 << 20, area_lines, chunks_at, sequence, host_words, reserved: [0; 2],
            });
            at.application().claim().publish(&host, &Application { words: [0; 6], sequence });
            let mut profile: ProfileRecord = bytemuck::cast(profile);
            profile.sequence = sequence;
            at.profile().claim().publish(&host, &profile);
            let word = if current % 4 == 0 { current } else { word_of(slot + 1) };
            current_word().claim().publish(&host, word);
            OwnedLine::new(line(SELECTOR_AT)).publish(&host, &Selector::new(version));
            if let Ok((superblock, layout)) = read_superblock(&host) {
                prop_assert!(layout.payload().end() <= superblock.geometry.region_bytes);
            }
        }
    }
}
