//! Typed lines and words: what may be published by this host, and what may only be observed.
//!
//! There is no way to write a line without publishing it, and no way to read one without a choice
//! between `fresh` (MEM-M3) and `cached`.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use crc_fast::CrcAlgorithm;

use super::{Fabric, LineWords};
use crate::units::{LINE_WORDS, LineOffset, LineRange, WordOffset};

/// Bytes of a line that a record fills; the last eight hold its version and its CRC.
const RECORD_BYTES: usize = 56;

/// A record that fills one line except for its seal: exactly 56 bytes, checked when first used.
///
/// The seal is {version u32, CRC-32C u32} over the bytes, the version, the kind and the offset of
/// the line: a torn, misplaced or foreign line is an error, never a value (MEM-M5).
///
/// # Example
/// ```
/// use bytemuck::{Pod, Zeroable};
/// use cxl_shm::fabric::Record;
///
/// #[derive(Clone, Copy, Debug, Pod, Zeroable)]
/// #[repr(C)]
/// struct Greeting {
///     words: [u64; 7],
/// }
///
/// impl Record for Greeting {
///     const KIND: u32 = 0x6865_6c6f;
/// }
/// ```
pub trait Record: Pod + fmt::Debug {
    /// Tells this kind of record from every other. Unique in the program.
    const KIND: u32;
}

/// Why a line is not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LineError {
    /// Nothing was ever written there.
    #[error("line {:#x} was never written", .at.bytes())]
    Blank {
        /// The line.
        at: LineOffset,
    },
    /// The seal does not fit: torn, misplaced, of another kind, or damaged.
    #[error("line {:#x} does not hold a valid record (CRC {found:#010x}, expected {expected:#010x})", .at.bytes())]
    Corrupt {
        /// The line.
        at: LineOffset,
        /// CRC in the line.
        found: u32,
        /// CRC of what is in the line.
        expected: u32,
    },
}

/// Seals `value` as version `version` of the record at `at`.
pub(crate) fn seal<T: Record>(at: LineOffset, value: &T, version: u32) -> LineWords {
    let mut words = words_of(value);
    let crc = crc_of(at, T::KIND, version, &words);
    words[LINE_WORDS - 1] = u64::from(version) | u64::from(crc) << 32;
    words
}

/// A line with `value`, and no seal yet.
fn words_of<T: Record>(value: &T) -> LineWords {
    const { assert!(size_of::<T>() == RECORD_BYTES, "a record fills its line but for the seal") };
    let mut words = [0; LINE_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytemuck::bytes_of(value).chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    words
}

/// What `words` say, whatever their seal.
fn value_of<T: Record>(words: &LineWords) -> T {
    let mut bytes = [0; RECORD_BYTES];
    for (eight, word) in bytes.chunks_exact_mut(8).zip(words) {
        eight.copy_from_slice(&word.to_le_bytes());
    }
    bytemuck::pod_read_unaligned(&bytes)
}

/// The record in `words`, read at `at`, and its version.
pub(crate) fn unseal<T: Record>(at: LineOffset, words: &LineWords) -> Result<(T, u32), LineError> {
    if words.iter().all(|word| *word == 0) {
        return Err(LineError::Blank { at });
    }
    let (version, found) = halves(words[LINE_WORDS - 1]);
    let expected = crc_of(at, T::KIND, version, words);
    if found != expected {
        return Err(LineError::Corrupt { at, found, expected });
    }
    Ok((value_of(words), version))
}

#[expect(clippy::cast_possible_truncation, reason = "takes the word apart into its halves")]
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn crc_of(at: LineOffset, kind: u32, version: u32, words: &LineWords) -> u32 {
    let mut bytes = [0; RECORD_BYTES + 16];
    for (eight, word) in bytes.chunks_exact_mut(8).zip(&words[..LINE_WORDS - 1]) {
        eight.copy_from_slice(&word.to_le_bytes());
    }
    bytes[RECORD_BYTES..RECORD_BYTES + 4].copy_from_slice(&version.to_le_bytes());
    bytes[RECORD_BYTES + 4..RECORD_BYTES + 8].copy_from_slice(&kind.to_le_bytes());
    bytes[RECORD_BYTES + 8..].copy_from_slice(&at.bytes().to_le_bytes());
    let (crc, _) = halves(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &bytes));
    crc
}

/// A line that this host, and no other, may write (MEM-M1).
///
/// Had only from an [`OwnedArea`]. Clones write the same line: the threads and processes of one
/// host must agree among themselves who writes, by a host-local lock.
pub struct OwnedLine<T> {
    at: LineOffset,
    record: PhantomData<fn() -> T>,
}

impl<T: Record> OwnedLine<T> {
    #[doc(hidden)]
    pub fn new(at: LineOffset) -> Self {
        Self { at, record: PhantomData }
    }

    /// Where the line is.
    #[must_use]
    pub fn at(&self) -> LineOffset {
        self.at
    }

    /// Writes and publishes `value` as the next version (MEM-M2). After return every host that
    /// reads the line fresh sees it.
    #[track_caller]
    pub fn publish(&self, fabric: &impl Fabric, value: &T) {
        self.write(fabric, value);
        fabric.publish(LineRange::one(self.at));
    }

    /// Starts loading the line into this host's caches, ahead of the next [`publish`](Self::publish),
    /// which reads it. Nobody else writes it, so it cannot become stale there.
    pub fn prefetch(&self, fabric: &impl Fabric) {
        fabric.prefetch_owned(self.at);
    }

    /// Our own last value, from our caches: nobody else writes it, so it cannot be stale.
    ///
    /// # Errors
    /// [`LineError`] when none was written, or the line is damaged.
    pub fn own(&self, fabric: &impl Fabric) -> Result<T, LineError> {
        unseal(self.at, &fabric.read_line(self.at)).map(|(value, _)| value)
    }

    /// A value of ours in whose write a process died: what the line says, once `mend` has put it
    /// right, if that is what its seal was made for. For writes that change little: who reads tries
    /// the few values that there can be.
    pub fn own_mended(&self, fabric: &impl Fabric, mend: impl FnOnce(&mut T)) -> Option<T> {
        let mut words = fabric.read_line(self.at);
        let mut value = value_of(&words);
        mend(&mut value);
        words[..LINE_WORDS - 1].copy_from_slice(&words_of(&value)[..LINE_WORDS - 1]);
        unseal(self.at, &words).ok().map(|(value, _)| value)
    }

    /// The line as its readers see it.
    #[must_use]
    pub fn peer(&self) -> PeerLine<T> {
        PeerLine { at: self.at, record: PhantomData }
    }

    #[track_caller]
    #[doc(hidden)]
    pub fn write(&self, fabric: &impl Fabric, value: &T) {
        fabric.write_line(self.at, &self.image(fabric, value));
    }

    /// What the line becomes when `value` is written as the next version.
    pub(crate) fn image(&self, fabric: &impl Fabric, value: &T) -> LineWords {
        let last = halves(fabric.read_line(self.at)[LINE_WORDS - 1]).0;
        seal(self.at, value, last.wrapping_add(1))
    }
}

/// A line that some other host writes: it can only be observed.
pub struct PeerLine<T> {
    at: LineOffset,
    record: PhantomData<fn() -> T>,
}

impl<T: Record> PeerLine<T> {
    pub(crate) fn new(at: LineOffset) -> Self {
        Self { at, record: PhantomData }
    }

    /// Where the line is.
    #[must_use]
    pub fn at(&self) -> LineOffset {
        self.at
    }

    /// Refreshes the line, then reads it (MEM-M3): at least what was published before the call.
    ///
    /// # Errors
    /// [`LineError`]; a line that is being written reads as corrupt for a moment.
    #[track_caller]
    pub fn fresh(&self, fabric: &impl Fabric) -> Result<T, LineError> {
        fabric.refresh(LineRange::one(self.at));
        self.cached(fabric)
    }

    /// Reads what this host's caches hold, however old. For lines that were refreshed in a batch,
    /// and for hints.
    ///
    /// # Errors
    /// [`LineError`].
    pub fn cached(&self, fabric: &impl Fabric) -> Result<T, LineError> {
        unseal(self.at, &fabric.read_line(self.at)).map(|(value, _)| value)
    }

    /// The line as a range, to refresh several in one batch.
    #[must_use]
    pub fn range(&self) -> LineRange {
        LineRange::one(self.at)
    }

    #[doc(hidden)]
    /// The line as its owner sees it. Only for code that argues why this host owns it (MEM-M1).
    pub fn claim(&self) -> OwnedLine<T> {
        OwnedLine::new(self.at)
    }
}

/// A word that this host, and no other, may write: a single-writer register (MEM-M1, MEM-M5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnedWord {
    at: WordOffset,
}

impl OwnedWord {
    /// Stores and publishes (MEM-M2).
    #[track_caller]
    pub fn publish(&self, fabric: &impl Fabric, value: u64) {
        fabric.store(self.at, value);
        fabric.publish(LineRange::one(self.at.line()));
    }

    /// Our own last value.
    pub fn own(&self, fabric: &impl Fabric) -> u64 {
        fabric.load(self.at)
    }

    /// The word as its readers see it.
    #[must_use]
    pub fn peer(&self) -> PeerWord {
        PeerWord { at: self.at }
    }

    /// Where the word is.
    #[must_use]
    pub fn at(&self) -> WordOffset {
        self.at
    }
}

/// A word that some other host writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerWord {
    at: WordOffset,
}

impl PeerWord {
    /// Refreshes the word's line, then loads it (MEM-M3).
    #[track_caller]
    pub fn fresh(&self, fabric: &impl Fabric) -> u64 {
        fabric.refresh(LineRange::one(self.at.line()));
        fabric.load(self.at)
    }

    /// Loads what this host's caches hold.
    pub fn cached(&self, fabric: &impl Fabric) -> u64 {
        fabric.load(self.at)
    }

    /// The word's line, to refresh several in one batch.
    #[must_use]
    pub fn range(&self) -> LineRange {
        LineRange::one(self.at.line())
    }

    #[doc(hidden)]
    /// The word as its owner sees it. Only for code that argues why this host owns it (MEM-M1).
    pub fn claim(self) -> OwnedWord {
        OwnedWord { at: self.at }
    }
}

/// A run of lines that this host writes. Had only from a node handle, a lock guard or the
/// formatter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnedArea {
    lines: LineRange,
}

impl OwnedArea {
    #[doc(hidden)]
    pub fn new(lines: LineRange) -> Self {
        Self { lines }
    }

    /// Lines of a memory without a region, which a test gives to one host.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn in_test(lines: LineRange) -> Self {
        Self::new(lines)
    }

    /// Number of lines.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines.lines()
    }

    /// The lines as a range.
    #[must_use]
    pub fn range(&self) -> LineRange {
        self.lines
    }

    /// Line `index`; `None` outside the area.
    #[must_use]
    pub fn line<T: Record>(&self, index: u64) -> Option<OwnedLine<T>> {
        line_at(self.lines, index).map(OwnedLine::new)
    }

    /// Word `index`, eight to a line; `None` outside the area.
    #[must_use]
    pub fn word(&self, index: u64) -> Option<OwnedWord> {
        word_at(self.lines, index).map(|at| OwnedWord { at })
    }

    /// `lines` lines from line `first` on; `None` when they do not lie inside.
    #[must_use]
    pub fn part(&self, first: u64, lines: u64) -> Option<Self> {
        part_of(self.lines, first, lines).map(Self::new)
    }

    /// The same lines as their readers see them.
    #[must_use]
    pub fn peer(&self) -> PeerArea {
        PeerArea { lines: self.lines }
    }
}

/// A run of lines that one host writes and all hosts may read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerArea {
    lines: LineRange,
}

impl PeerArea {
    #[doc(hidden)]
    pub fn new(lines: LineRange) -> Self {
        Self { lines }
    }

    /// Number of lines.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines.lines()
    }

    /// The lines as a range.
    #[must_use]
    pub fn range(&self) -> LineRange {
        self.lines
    }

    /// Line `index`; `None` outside the area.
    #[must_use]
    pub fn line<T: Record>(&self, index: u64) -> Option<PeerLine<T>> {
        line_at(self.lines, index).map(PeerLine::new)
    }

    /// Word `index`, eight to a line; `None` outside the area.
    #[must_use]
    pub fn word(&self, index: u64) -> Option<PeerWord> {
        word_at(self.lines, index).map(|at| PeerWord { at })
    }

    /// `lines` lines from line `first` on; `None` when they do not lie inside.
    #[must_use]
    pub fn part(&self, first: u64, lines: u64) -> Option<Self> {
        part_of(self.lines, first, lines).map(Self::new)
    }

    #[doc(hidden)]
    /// The area as its owner sees it. Only for code that argues why this host owns it (MEM-M1).
    pub fn claim(self) -> OwnedArea {
        OwnedArea::new(self.lines)
    }
}

fn line_at(lines: LineRange, index: u64) -> Option<LineOffset> {
    part_of(lines, index, 1).map(LineRange::start)
}

fn word_at(lines: LineRange, index: u64) -> Option<WordOffset> {
    let words = LINE_WORDS as u64;
    let in_line = usize::try_from(index % words).ok()?;
    line_at(lines, index / words)?.word(in_line)
}

fn part_of(lines: LineRange, first: u64, count: u64) -> Option<LineRange> {
    if first.checked_add(count)? > lines.lines() {
        return None;
    }
    LineRange::new(LineOffset::new(lines.start().bytes() + first * 64)?, count)
}

impl<T> fmt::Debug for OwnedLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedLine({:#x})", self.at.bytes())
    }
}

impl<T> fmt::Debug for PeerLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerLine({:#x})", self.at.bytes())
    }
}

impl<T> Clone for OwnedLine<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for OwnedLine<T> {}
impl<T> Clone for PeerLine<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for PeerLine<T> {}
