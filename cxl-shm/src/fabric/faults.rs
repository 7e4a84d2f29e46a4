//! Faults of mapped memory: what a process of a region does when an access is answered with SIGBUS.
//!
//! The device reports an uncorrectable error (poison), a file was truncated, or a full file system has
//! no page for a hole. The kernel then sends SIGBUS to the thread that touched the page.
//!
//! - **FAULT-F1** The handler contains a fault inside a region that this process has mapped. Every
//!   other SIGBUS goes to the handler that was there before: one outside of all regions, one that a
//!   program sent, and one in a child made by `fork`. The handler takes no lock of the program,
//!   allocates nothing, and calls only `getpid`, `mmap` and `sigaction`.
//! - **FAULT-F2** A fault is recorded before the memory is replaced. So a thread that has read a zero
//!   of the replacement finds the fault recorded when it looks.
//! - **FAULT-F3** A fault in payload costs its range: a page, or what the kernel says was lost. The
//!   range becomes zeros that only this process sees. Stores into it reach nobody. This process
//!   believes no block there, and completes none.
//! - **FAULT-F4** A fault in metadata *cuts the process off* from the region. All of the mapping is
//!   replaced, then the mappings of the host tier, and then the places of the process in the registry
//!   of its host are marked as those of a dead process. Until the host tier is replaced its words
//!   refuse stores. So nothing that was concluded from zeros reaches the region or another process.
//!   To all others the process died at the moment of the fault: they recover it as any dead process.
//! - **FAULT-F5** More than [`RANGES_MAX`] separate ranges of payload count as a fault in metadata.
//!   What is metadata is not known before the superblock was read: until then everything is.
//! - **FAULT-F6** When the system refuses the replacement, the fault goes to the handler that was
//!   there before, which ends the process.
//! - **FAULT-F7** A process that is cut off still acts outside of the region: it tells its caller
//!   something, has a host fenced, writes to a drive. So a call whose end others rely on looks after
//!   its last read whether the process is cut off, and then says that instead. Such calls acquire a
//!   lock or a chunk, reserve or publish a block, issue a directive or say who has answered it, clear
//!   blocks for an agent, or have a host fenced.
#![expect(clippy::disallowed_types, reason = "words that a signal handler reads and writes")]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::units::Extent;

/// Separate ranges of payload that one process survives losing.
pub const RANGES_MAX: usize = 64;
/// Regions that one process has mapped at a time.
pub(super) const REGIONS_MAX: usize = 64;
/// Mappings of host tiers: one for each thread that is a member.
pub(super) const TIERS_MAX: usize = 1024;

/// Nobody's entry.
const EMPTY: u32 = 0;
/// Somebody fills the entry, or takes it back.
const CHANGING: u32 = 1;
/// The entry is in force.
const LIVE: u32 = 2;
/// A handler works on the entry.
const HANDLED: u32 = 3;

/// A range of payload that this process lost.
#[derive(Debug)]
struct LostRange {
    offset: AtomicU64,
    bytes: AtomicU64,
}

/// A mapped region, as the handler finds it.
#[derive(Debug)]
pub(super) struct RegionEntry {
    state: AtomicU32,
    pub(super) process: AtomicU32,
    pub(super) start: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    pub(super) page_bytes: AtomicUsize,
    pub(super) protection: AtomicU32,
    /// Where payload begins; all before it is metadata.
    payload_at: AtomicUsize,
    /// Faults so far, those in a known range too.
    faults: AtomicU64,
    is_cut_off: AtomicBool,
    /// Where the fault was that cut the process off.
    cut_at: AtomicU64,
    ranges: AtomicUsize,
    lost: [LostRange; RANGES_MAX],
}

/// A mapped host tier, as the handler finds it.
#[derive(Debug)]
pub(super) struct TierEntry {
    state: AtomicU32,
    /// Index of its region.
    region: AtomicUsize,
    pub(super) start: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    /// A second mapping of the same file, which is never replaced.
    pub(super) second_start: AtomicUsize,
    /// Offset of the registry's first word, in bytes.
    pub(super) places_at: AtomicUsize,
    /// Identity of this process in the registry.
    pub(super) identity: AtomicU64,
}

/// Of memory that is of no region.
pub(super) static NEVER: AtomicBool = AtomicBool::new(false);

static REGIONS: [RegionEntry; REGIONS_MAX] = [const { RegionEntry::new() }; REGIONS_MAX];
static TIERS: [TierEntry; TIERS_MAX] = [const { TierEntry::new() }; TIERS_MAX];

/// Whether the suites have turned the handler off.
#[cfg(feature = "sim")]
static CONTAINS_NOTHING: AtomicBool = AtomicBool::new(false);

#[cfg(feature = "sim")]
pub(crate) fn contain_nothing() {
    CONTAINS_NOTHING.store(true, Ordering::SeqCst);
}

/// An entry of one of the tables.
trait Entry: Sized + 'static {
    fn state(&self) -> &AtomicU32;

    /// An entry of nobody, to be filled.
    fn take(table: &'static [Self]) -> Option<usize> {
        table.iter().position(|entry| {
            let order = Ordering::Acquire;
            entry.state().compare_exchange(EMPTY, CHANGING, order, Ordering::Relaxed).is_ok()
        })
    }

    /// From here on no handler works on the entry. Waits for one that does.
    fn close(&self) {
        let (order, state) = (Ordering::Acquire, self.state());
        while state.compare_exchange_weak(LIVE, CHANGING, order, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
    }
}

impl Entry for RegionEntry {
    fn state(&self) -> &AtomicU32 {
        &self.state
    }
}

impl Entry for TierEntry {
    fn state(&self) -> &AtomicU32 {
        &self.state
    }
}

impl RegionEntry {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(EMPTY),
            process: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            page_bytes: AtomicUsize::new(0),
            protection: AtomicU32::new(0),
            payload_at: AtomicUsize::new(usize::MAX),
            faults: AtomicU64::new(0),
            is_cut_off: AtomicBool::new(false),
            cut_at: AtomicU64::new(0),
            ranges: AtomicUsize::new(0),
            lost: [const { LostRange { offset: AtomicU64::new(0), bytes: AtomicU64::new(0) } };
                RANGES_MAX],
        }
    }

    /// The region that has `address`, for the handler alone until [`release`](Self::release).
    /// Waits while another thread's handler works on the region.
    pub(super) fn claim(address: usize) -> Option<(usize, &'static Self)> {
        #[cfg(feature = "sim")]
        if CONTAINS_NOTHING.load(Ordering::SeqCst) {
            return None;
        }
        let has = |entry: &Self| {
            let start = entry.start.load(Ordering::Acquire);
            address.checked_sub(start).is_some_and(|at| at < entry.bytes.load(Ordering::Acquire))
        };
        let (index, entry) = REGIONS.iter().enumerate().find(|(_, entry)| {
            matches!(entry.state.load(Ordering::Acquire), LIVE | HANDLED) && has(entry)
        })?;
        loop {
            let order = Ordering::Acquire;
            match entry.state.compare_exchange_weak(LIVE, HANDLED, order, Ordering::Relaxed) {
                Ok(_) if has(entry) => return Some((index, entry)),
                Ok(_) => {
                    entry.release();
                    return None;
                }
                Err(LIVE | HANDLED) => std::hint::spin_loop(),
                Err(_) => return None,
            }
        }
    }

    pub(super) fn release(&self) {
        self.state.store(LIVE, Ordering::Release);
    }

    /// Records the loss of `bytes` bytes of payload (FAULT-F2). False when it has to count as one of
    /// metadata (FAULT-F5). The caller has claimed the entry.
    pub(super) fn record(&self, offset: usize, bytes: usize) -> bool {
        if offset < self.payload_at.load(Ordering::Relaxed) {
            return false;
        }
        let (offset, bytes) = (offset as u64, bytes as u64);
        let ranges = self.ranges.load(Ordering::Relaxed);
        let known = self.lost[..ranges.min(RANGES_MAX)].iter().find(|lost| {
            let (start, length) =
                (lost.offset.load(Ordering::Relaxed), lost.bytes.load(Ordering::Relaxed));
            (start..=start + length).contains(&offset)
        });
        if let Some(lost) = known {
            let end = (offset + bytes).saturating_sub(lost.offset.load(Ordering::Relaxed));
            lost.bytes.fetch_max(end, Ordering::Release);
        } else if let Some(lost) = self.lost.get(ranges) {
            lost.offset.store(offset, Ordering::Relaxed);
            lost.bytes.store(bytes, Ordering::Relaxed);
            self.ranges.store(ranges + 1, Ordering::Release);
        } else {
            return false;
        }
        self.faults.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Records that the process is cut off, by a fault at `offset`.
    pub(super) fn record_cut(&self, offset: usize) {
        self.cut_at.store(offset as u64, Ordering::Relaxed);
        self.faults.fetch_add(1, Ordering::SeqCst);
        self.is_cut_off.store(true, Ordering::SeqCst);
    }
}

impl TierEntry {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(EMPTY),
            region: AtomicUsize::new(usize::MAX),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            second_start: AtomicUsize::new(0),
            places_at: AtomicUsize::new(0),
            identity: AtomicU64::new(0),
        }
    }

    /// Calls `handle` with each mapping of a host tier of the region, which stays mapped meanwhile.
    pub(super) fn each_of(region: usize, mut handle: impl FnMut(&Self)) {
        for entry in &TIERS {
            if entry.region.load(Ordering::Acquire) != region {
                continue;
            }
            let order = Ordering::Acquire;
            if entry.state.compare_exchange(LIVE, HANDLED, order, Ordering::Relaxed).is_ok() {
                if entry.region.load(Ordering::Acquire) == region {
                    handle(entry);
                }
                entry.state.store(LIVE, Ordering::Release);
            }
        }
    }
}

/// A region in the table, as long as this lives.
#[derive(Debug)]
pub(super) struct RegionGuard {
    index: usize,
}

impl RegionGuard {
    /// Enters a mapping of `bytes` bytes into the table. `None` when the table is full.
    pub(super) fn enter(
        start: usize,
        bytes: usize,
        page_bytes: usize,
        protection: u32,
    ) -> Option<Self> {
        let index = RegionEntry::take(&REGIONS)?;
        let entry = &REGIONS[index];
        entry.process.store(std::process::id(), Ordering::Relaxed);
        entry.start.store(start, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry.page_bytes.store(page_bytes, Ordering::Relaxed);
        entry.protection.store(protection, Ordering::Relaxed);
        entry.payload_at.store(usize::MAX, Ordering::Relaxed);
        entry.faults.store(0, Ordering::Relaxed);
        entry.is_cut_off.store(false, Ordering::Relaxed);
        entry.ranges.store(0, Ordering::Relaxed);
        entry.state.store(LIVE, Ordering::Release);
        Some(Self { index })
    }

    fn entry(&self) -> &'static RegionEntry {
        &REGIONS[self.index]
    }

    /// From here on faults at `offset` and behind it are of payload.
    pub(super) fn set_payload_at(&self, offset: usize) {
        self.entry().payload_at.store(offset, Ordering::Release);
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off_word().load(Ordering::Relaxed)
    }

    /// The word that says so, for what lives no longer than this.
    pub(super) fn cut_off_word(&self) -> &'static AtomicBool {
        &self.entry().is_cut_off
    }

    /// Where the fault was that cut the process off.
    pub(super) fn cut_at(&self) -> Option<u64> {
        let entry = self.entry();
        entry.is_cut_off.load(Ordering::SeqCst).then(|| entry.cut_at.load(Ordering::Relaxed))
    }

    pub(super) fn faults(&self) -> u64 {
        self.entry().faults.load(Ordering::Relaxed)
    }

    /// The ranges of payload that this process lost.
    pub(super) fn lost_ranges(&self) -> Vec<Extent> {
        let entry = self.entry();
        let ranges = entry.ranges.load(Ordering::Acquire).min(RANGES_MAX);
        let extent = |lost: &LostRange| {
            let bytes = lost.bytes.load(Ordering::Acquire);
            Extent::new(lost.offset.load(Ordering::Relaxed), bytes)
        };
        entry.lost[..ranges].iter().filter_map(extent).collect()
    }
}

impl Drop for RegionGuard {
    fn drop(&mut self) {
        // In a child made by `fork` a handler of the parent may have been at work: nobody ends it.
        if self.entry().process.load(Ordering::Relaxed) == std::process::id() {
            self.entry().close();
        }
        self.entry().state.store(EMPTY, Ordering::Release);
    }
}

/// A mapping of a host tier in the table, as long as this lives.
#[derive(Debug)]
pub(super) struct TierGuard {
    index: usize,
    process: u32,
}

/// What the handler has to know of a host tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct TierPlace {
    pub(super) start: usize,
    pub(super) bytes: usize,
    pub(super) second_start: usize,
    pub(super) places_at: usize,
    pub(super) identity: u64,
}

impl TierGuard {
    /// Enters a mapping of the host tier of `region` into the table. `None` when the table is full.
    pub(super) fn enter(region: &RegionGuard, place: TierPlace) -> Option<Self> {
        let index = TierEntry::take(&TIERS)?;
        let entry = &TIERS[index];
        entry.start.store(place.start, Ordering::Relaxed);
        entry.bytes.store(place.bytes, Ordering::Relaxed);
        entry.second_start.store(place.second_start, Ordering::Relaxed);
        entry.places_at.store(place.places_at, Ordering::Relaxed);
        entry.identity.store(place.identity, Ordering::Relaxed);
        entry.region.store(region.index, Ordering::Release);
        entry.state.store(LIVE, Ordering::Release);
        Some(Self { index, process: std::process::id() })
    }
}

impl Drop for TierGuard {
    fn drop(&mut self) {
        let entry = &TIERS[self.index];
        if self.process == std::process::id() {
            entry.close();
        }
        entry.region.store(usize::MAX, Ordering::Relaxed);
        entry.state.store(EMPTY, Ordering::Release);
    }
}
