//! The real memory: a shared mapping of devdax, hugetlbfs, `/dev/shm` or a memfd.
//!
//! No reference into the mapping is ever made: another process or host may write any byte at any
//! time. Words are accessed as relaxed atomics through raw pointers, payload by the copy kernel of
//! the DMA engine, which asks for an address here.
#![expect(unsafe_code, reason = "access to memory that other processes write")]
#![expect(clippy::disallowed_types, reason = "the one place where shared words are atomics")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::faults::{NEVER, RegionGuard, TierGuard, TierPlace};
use super::flush::{FlushError, FlushKind, MemoryFenceKind, ReadBack};
use super::{Fabric, HostMemory, LineWords, MovedLines, moved_lines, sigbus};
use crate::units::{Extent, LINE_BYTES, LineOffset, LineRange, WORD_BYTES, WordOffset};

#[cfg(target_arch = "aarch64")]
use super::flush_aarch64 as cpu;
#[cfg(target_arch = "x86_64")]
use super::flush_x86_64 as cpu;

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("the region format is little-endian and its offsets are 64 bits");

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The length does not fit the address space.
    #[error("{bytes} bytes do not fit the address space")]
    TooLong {
        /// Length asked for.
        bytes: u64,
    },
    /// The operating system refused.
    #[error("cannot map {bytes} bytes: {source}")]
    Map {
        /// Length asked for.
        bytes: u64,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No usable flush instruction.
    #[error(transparent)]
    Flush(#[from] FlushError),
    /// Memory errors of the mapping would end the process.
    #[error("cannot install the handler of SIGBUS that contains memory errors: {0}")]
    Handler(std::io::Error),
    /// More mappings than memory errors can be contained for.
    #[error("this process has too many regions mapped, or too many threads attached: close some")]
    TooMany,
}

/// A shared mapping of a file or device, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    /// While faults are contained. Dropped before the memory is unmapped.
    guard: Option<RegionGuard>,
    raw: MmapRaw,
}

impl Mapping {
    /// Maps `bytes` bytes of `file` from its start, shared, for reading and writing.
    ///
    /// The length is always given: `fstat` of a devdax says 0. Whether the file is that long is
    /// for the caller to check, since a devdax maps beyond its end and the touch is SIGBUS.
    ///
    /// # Errors
    /// [`MapError::TooLong`], [`MapError::Map`].
    pub fn shared(file: &File, bytes: u64) -> Result<Self, MapError> {
        let len = usize::try_from(bytes).map_err(|_| MapError::TooLong { bytes })?;
        let raw = MmapOptions::new()
            .len(len)
            .map_raw(file)
            .map_err(|source| MapError::Map { bytes, source })?;
        Ok(Self { guard: None, raw })
    }

    /// As [`shared`](Self::shared), for reading alone. A store into it ends the process (SIGSEGV).
    ///
    /// # Errors
    /// [`MapError::TooLong`], [`MapError::Map`].
    pub fn shared_read_only(file: &File, bytes: u64) -> Result<Self, MapError> {
        let len = usize::try_from(bytes).map_err(|_| MapError::TooLong { bytes })?;
        let raw = MmapOptions::new()
            .len(len)
            .map_raw_read_only(file)
            .map_err(|source| MapError::Map { bytes, source })?;
        Ok(Self { guard: None, raw })
    }

    /// From now on faults of this mapping are contained (FAULT-F1), in units of `page_bytes`: what
    /// parts of the mapping are aligned to. `is_written` says how it was mapped.
    ///
    /// # Errors
    /// [`MapError::Handler`], [`MapError::TooMany`].
    pub(crate) fn contain_faults(
        &mut self,
        page_bytes: u64,
        is_written: bool,
    ) -> Result<(), MapError> {
        sigbus::install().map_err(MapError::Handler)?;
        let page_bytes =
            usize::try_from(page_bytes).map_err(|_| MapError::TooLong { bytes: page_bytes })?;
        let writing = if is_written { libc::PROT_WRITE } else { 0 };
        let protection = (libc::PROT_READ | writing).cast_unsigned();
        let guard = RegionGuard::enter(self.start(), self.raw.len(), page_bytes, protection);
        self.guard = Some(guard.ok_or(MapError::TooMany)?);
        Ok(())
    }

    /// From now on faults at `offset` and behind it are of payload (FAULT-F5).
    pub(crate) fn set_payload_at(&self, offset: u64) {
        if let (Some(guard), Ok(offset)) = (&self.guard, usize::try_from(offset)) {
            guard.set_payload_at(offset);
        }
    }

    /// Where the fault was that cut this process off (FAULT-F4).
    pub(crate) fn cut_at(&self) -> Option<u64> {
        self.guard.as_ref().and_then(RegionGuard::cut_at)
    }

    #[inline]
    fn is_cut_off(&self) -> bool {
        self.guard.as_ref().is_some_and(RegionGuard::is_cut_off)
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.raw.len() as u64
    }

    /// Address of `extent` in this process, for a DMA engine. Valid while the mapping lives.
    /// `None` when the extent is not wholly inside.
    #[must_use]
    pub fn address(&self, extent: Extent) -> Option<*mut u8> {
        if extent.end() > self.bytes() {
            return None;
        }
        let offset = usize::try_from(extent.offset()).ok()?;
        Some(self.raw.as_mut_ptr().wrapping_add(offset))
    }

    /// Where it starts in this process, as the kernel's lists of mappings name it.
    pub(crate) fn start(&self) -> usize {
        self.raw.as_mut_ptr().addr()
    }

    /// Touches every page of `extent` for writing without changing a byte, so that a later first
    /// touch costs nothing (1.9 us a page in /dev/shm).
    ///
    /// # Errors
    /// The system's error, `ENOSPC` or `ENOMEM` when the memory is not there.
    ///
    /// # Panics
    /// When the extent is not inside the mapping.
    pub fn prefault(&self, extent: Extent) -> std::io::Result<()> {
        let start = self.address(extent).expect("the caller pre-faults a part of its own mapping");
        let bytes = usize::try_from(extent.bytes()).map_err(std::io::Error::other)?;
        // SAFETY: the range lies in our live mapping (checked by `address`); populating it reads
        // and writes no byte that the program can see.
        let outcome = unsafe { libc::madvise(start.cast(), bytes, libc::MADV_POPULATE_WRITE) };
        if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Asks for huge pages where the file system gives them on request: a tmpfs that is mounted
    /// with `huge=advise`. On others it changes nothing, and so does a kernel without them.
    pub(crate) fn ask_for_huge_pages(&self) {
        let (start, bytes) = (self.raw.as_mut_ptr(), self.raw.len());
        // SAFETY: the range is our live mapping; the advice changes no byte. A refusal is no error:
        // the pages are small then.
        let _ = unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
    }

    /// Bytes that this process reaches through huge pages of a tmpfs, as smaps of proc(5) says.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn huge_bytes(&self) -> std::io::Result<u64> {
        let start = format!("{:x}-", self.start());
        let smaps = BufReader::new(File::open("/proc/self/smaps")?);
        let mut is_ours = false;
        for line in smaps.lines() {
            let line = line?;
            is_ours |= line.starts_with(&start);
            if let (true, Some(size)) = (is_ours, line.strip_prefix("ShmemPmdMapped:")) {
                let kib = size.trim().trim_end_matches(" kB").parse::<u64>();
                return kib.map(|kib| kib << 10).map_err(std::io::Error::other);
            }
        }
        Err(std::io::Error::other("/proc/self/smaps does not have the mapping"))
    }

    #[inline]
    fn word(&self, offset_bytes: u64) -> *mut u64 {
        let inside = offset_bytes.checked_add(WORD_BYTES).is_some_and(|end| end <= self.bytes());
        assert!(inside, "word {offset_bytes:#x} is outside the mapping of {} bytes", self.bytes());
        debug_assert!(offset_bytes.is_multiple_of(WORD_BYTES), "words are aligned (MEM-M5)");
        // In range, so it fits an address.
        #[expect(clippy::cast_possible_truncation, reason = "usize is 64 bits, checked above")]
        self.raw.as_mut_ptr().wrapping_add(offset_bytes as usize).cast::<u64>()
    }

    #[inline]
    fn load(&self, offset_bytes: u64, order: Ordering) -> u64 {
        let word = self.word(offset_bytes);
        // SAFETY: in range and aligned (see `word`); the mapping lives as long as `self`; every
        // process accesses shared words as 8-byte atomics only (MEM-M5).
        unsafe { AtomicU64::from_ptr(word) }.load(order)
    }

    #[inline]
    fn store(&self, offset_bytes: u64, value: u64, order: Ordering) {
        let word = self.word(offset_bytes);
        // SAFETY: as in `load`.
        unsafe { AtomicU64::from_ptr(word) }.store(value, order);
    }

    #[inline]
    fn compare_exchange(&self, offset_bytes: u64, current: u64, new: u64) -> Result<u64, u64> {
        let word = self.word(offset_bytes);
        // SAFETY: as in `load`.
        let word = unsafe { AtomicU64::from_ptr(word) };
        word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    #[inline]
    fn count(&self, offset_bytes: u64, value: u64) {
        let word = self.word(offset_bytes);
        // SAFETY: as in `load`.
        let word = unsafe { AtomicU64::from_ptr(word) };
        word.fetch_add(value, Ordering::Relaxed);
    }
}

/// [`Fabric`] over a shared mapping. Cheap to clone: clones share the mapping.
#[derive(Clone, Debug)]
pub struct MappedFabric {
    mapping: Arc<Mapping>,
    flush: FlushKind,
    read_back: ReadBack,
}

impl MappedFabric {
    /// The fabric over `mapping`, with the best flush instruction of this processor and in
    /// read-back mode.
    ///
    /// # Errors
    /// [`MapError::Flush`] when there is no such instruction.
    pub fn new(mapping: Mapping) -> Result<Self, MapError> {
        let flush = FlushKind::detect()?;
        Ok(Self { mapping: Arc::new(mapping), flush, read_back: ReadBack::Needed })
    }

    /// The same memory, published with or without read-back. Without is right only where a fence
    /// is known to wait for the device: [`Visibility`](crate::region::Visibility) decides.
    #[must_use]
    pub fn with_read_back(self, read_back: ReadBack) -> Self {
        Self { read_back, ..self }
    }

    /// Whether a publish reads its lines back.
    #[must_use]
    pub fn read_back_mode(&self) -> ReadBack {
        self.read_back
    }

    /// The mapping below, for DMA engines.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The instruction in use.
    #[must_use]
    pub fn flush_kind(&self) -> FlushKind {
        self.flush
    }

    /// A fence of any kind, for litmus programs.
    pub fn fence_of(&self, kind: MemoryFenceKind) {
        cpu::fence_of(kind);
    }

    /// Asks for a line as a prefetcher would, for litmus programs.
    pub fn prefetch(&self, at: LineOffset) {
        cpu::prefetch(self.line(at));
    }

    /// The processor's counter, after everything before and before everything after.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        cpu::ticks()
    }

    /// Stores a line with one instruction; false where the processor has none.
    pub fn write_whole_line(&self, at: LineOffset, words: &LineWords) -> bool {
        let has = cpu::has_whole_lines();
        if has {
            let line = self.line(at);
            // SAFETY: an aligned line inside the live mapping (see `line`); the instruction is
            // there.
            unsafe { cpu::store_whole_line(line, *words) };
        }
        has
    }

    /// Loads a line with one instruction; `None` where the processor has none.
    #[must_use]
    pub fn read_whole_line(&self, at: LineOffset) -> Option<LineWords> {
        if !cpu::has_whole_lines() {
            return None;
        }
        let line = self.line(at);
        // SAFETY: as in `write_whole_line`.
        Some(unsafe { cpu::load_whole_line(line) })
    }

    /// Address of a line: aligned by its type, and wholly inside the live mapping, whose length
    /// is one of pages.
    fn line(&self, at: LineOffset) -> *mut u8 {
        let inside = at.bytes().checked_add(LINE_BYTES).is_some_and(|end| end <= self.bytes());
        assert!(inside, "{at:?} is outside the mapping of {} bytes", self.bytes());
        self.mapping.word(at.bytes()).cast()
    }

    fn flush(&self, lines: LineRange) {
        if lines.lines() == 0 {
            return;
        }
        let inside = lines.end_bytes() <= self.mapping.bytes();
        assert!(inside, "{lines:?} is outside the mapping of {} bytes", self.mapping.bytes());
        let start = self.mapping.word(lines.start().bytes()).cast::<u8>();
        // SAFETY: aligned by its type, inside the live mapping (checked above); the kind was
        // detected on this processor.
        unsafe { cpu::flush(self.flush, start, lines.lines()) };
    }
}

impl Fabric for MappedFabric {
    fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    #[inline]
    fn load(&self, at: WordOffset) -> u64 {
        self.mapping.load(at.bytes(), Ordering::Relaxed)
    }

    #[inline]
    fn store(&self, at: WordOffset, value: u64) {
        self.mapping.store(at.bytes(), value, Ordering::Relaxed);
    }

    fn read_line(&self, at: LineOffset) -> LineWords {
        let mut offset_bytes = at.bytes();
        [(); 8].map(|()| {
            let word = self.mapping.load(offset_bytes, Ordering::Relaxed);
            offset_bytes += WORD_BYTES;
            word
        })
    }

    fn write_line(&self, at: LineOffset, words: &LineWords) {
        for (offset_bytes, word) in (at.bytes()..at.bytes() + LINE_BYTES).step_by(8).zip(words) {
            self.mapping.store(offset_bytes, *word, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is_cut_off(&self) -> bool {
        self.mapping.is_cut_off()
    }

    #[inline]
    fn faults(&self) -> u64 {
        self.mapping.guard.as_ref().map_or(0, RegionGuard::faults)
    }

    fn lost_ranges(&self) -> Vec<Extent> {
        self.mapping.guard.as_ref().map_or_else(Vec::new, RegionGuard::lost_ranges)
    }

    fn write_back(&self, lines: LineRange) {
        self.flush(lines);
        moved_lines::note(|moved| moved.written_back += lines.lines());
    }

    fn invalidate(&self, lines: LineRange) {
        self.flush(lines);
        moved_lines::note(|moved| moved.dropped += lines.lines());
    }

    fn fence(&self) {
        cpu::fence();
    }

    fn prefetch_owned(&self, at: LineOffset) {
        self.prefetch(at);
    }

    fn read_back(&self, lines: LineRange) {
        if self.read_back == ReadBack::NotNeeded {
            return;
        }
        // The flush dropped the line, so the load goes to the device and returns behind our write
        // (MEM-M2). A later store of this thread cannot overtake a load on x86-64; later loads that
        // matter come after the fence of their own refresh.
        for line in lines.iter() {
            std::hint::black_box(self.mapping.load(line.bytes(), Ordering::Relaxed));
        }
        #[cfg(target_arch = "aarch64")]
        cpu::fence();
        moved_lines::note(|moved| moved.read_back += lines.lines());
    }

    fn take_moved(&self) -> MovedLines {
        moved_lines::take()
    }
}

/// [`HostMemory`] over a shared mapping of a file in the host's DRAM. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MappedHostMemory {
    /// Whether these words take no more stores of this process (FAULT-F4).
    cut_off: &'static AtomicBool,
    /// Where this memory is a host tier of a region. Dropped before the memory is unmapped.
    _of_region: Option<Arc<OfRegion>>,
    mapping: Arc<Mapping>,
}

/// What ties a host tier to the region of its process.
#[derive(Debug)]
struct OfRegion {
    // Before the mappings, so that no handler uses them any more.
    _guard: TierGuard,
    _region: Arc<Mapping>,
    _tier: Arc<Mapping>,
    _second: Mapping,
}

impl MappedHostMemory {
    /// The words of `mapping`.
    #[must_use]
    pub fn new(mapping: Mapping) -> Self {
        Self { cut_off: &NEVER, _of_region: None, mapping: Arc::new(mapping) }
    }

    /// The same words, as a host tier of the region that `fabric` has mapped: when this process is cut
    /// off from the region, it is cut off from these words too, and the entries of `identity` in the
    /// registry at word `places_at` become those of a dead process (FAULT-F4). `second` is another
    /// mapping of the same file.
    ///
    /// # Errors
    /// [`MapError::TooMany`].
    pub(crate) fn of_region(
        self,
        fabric: &MappedFabric,
        second: Mapping,
        places_at: usize,
        identity: u64,
    ) -> Result<Self, MapError> {
        let Some(region) = &fabric.mapping.guard else { return Ok(self) };
        let place = TierPlace {
            start: self.mapping.start(),
            bytes: self.mapping.raw.len(),
            second_start: second.start(),
            places_at: places_at * 8,
            identity,
        };
        let guard = TierGuard::enter(region, place).ok_or(MapError::TooMany)?;
        let of_region = OfRegion {
            _guard: guard,
            _region: Arc::clone(&fabric.mapping),
            _tier: Arc::clone(&self.mapping),
            _second: second,
        };
        let cut_off = region.cut_off_word();
        Ok(Self { cut_off, _of_region: Some(Arc::new(of_region)), ..self })
    }

    #[inline]
    fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }
}

impl HostMemory for MappedHostMemory {
    fn words(&self) -> usize {
        self.mapping.raw.len() / 8
    }

    #[inline]
    fn load(&self, index: usize) -> u64 {
        self.mapping.load(index as u64 * WORD_BYTES, Ordering::SeqCst)
    }

    #[inline]
    fn store(&self, index: usize, value: u64) {
        if !self.is_cut_off() {
            self.mapping.store(index as u64 * WORD_BYTES, value, Ordering::SeqCst);
        }
    }

    #[inline]
    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        if self.is_cut_off() {
            // Nobody else sees what this process does any more, and a loop of it has to end.
            return Ok(current);
        }
        self.mapping.compare_exchange(index as u64 * WORD_BYTES, current, new)
    }

    #[inline]
    fn count(&self, index: usize, value: u64) {
        if !self.is_cut_off() {
            self.mapping.count(index as u64 * WORD_BYTES, value);
        }
    }

    #[inline]
    fn counted(&self, index: usize) -> u64 {
        self.mapping.load(index as u64 * WORD_BYTES, Ordering::Relaxed)
    }
}
