//! A rack in one process: hosts with private caches over one device, deterministic under a seed.
//!
//! The same protocol sources that run on mapped memory run here, where every host really has a
//! cache of its own, where anything that caches, links and hosts may do is done, and where one
//! seed replays a failure. [`Schedule`] runs several hosts and processes; without one, operations
//! are plain calls that never block.
//!
//! # Faults that are modelled
//!
//! - **Stale hits.** A cached line answers loads however old it is.
//! - **Whole-line write-back.** A dirty line leaves the cache whole, so a second writing host
//!   brings old words back (MEM-M1). [`SimulatedRack::conflicts`] names such lines.
//! - **Flushes without a fence.** A flush takes effect some time between its issue and the next
//!   fence of its thread; until then loads may hit the old copy (MEM-M3).
//! - **Busy caches** (adversarial mode): spontaneous write-back, eviction, prefetch within pages
//!   that the host touched. Prefetch also stands for loads that a processor executes early: with
//!   no snoops nothing takes their values back.
//! - **Lazy caches** (sticky mode): nothing ever happens by itself.
//! - **Posted writes.** A fence does not wait for the device; different lines land in any order.
//! - **Torn lines.** Reading or writing a line is interrupted between any two words (MEM-M5).
//! - **DMA** past the caches or through them, in any order of lines, others between (MEM-M9).
//! - **Host crash.** Any subset of the dirty and posted lines lands, the DRAM is lost.
//! - **Process crash.** Between any two operations; caches and DRAM of the host stay. Its unfenced
//!   flushes complete or not.
//! - **Pauses** of a host or a process for any time, while its cache continues misbehaving.
//! - **Time** that advances while nobody runs, and clocks that start anywhere.
//! - **Poisoned lines** and **flipped bits** on the device. Payload reads as garbage
//!   ([`SimulatedRack::poison`]). Metadata cuts the process off that asks for it, as the handler of
//!   SIGBUS does ([`SimulatedRack::fail`]).
//!
//! # Faults that are not modelled, and why
//!
//! - **Order within a host** (store buffers, weak processors). Within a host memory is coherent,
//!   and its tier is atomics in DRAM: loom checks those.
//! - **Half a line on the device.** CXL.mem moves 64 bytes at once. Torn lines arise above that.
//! - **Misdirected writes.** No such device is known. What one would leave behind fails the seal
//!   of the line, which covers the offset; flipped bits test the seal.
//! - **Loss of the device.** The memory is volatile: what is left is to format it again.
//! - **Machine checks of payload.** A poisoned line of payload reads as garbage here. Real memory
//!   errors are in `tests/memory_faults.rs` of several crates.
//! - **Devices that snoop** (back-invalidation). They only do more than what is assumed.
//! - **A DMA engine that outlives its process.** Drivers stop engines when their process ends.
//!   A test that wants this runs the transfer in a task of its own.
//! - **Wild writes** of a broken program. Every offset is checked by the fabric instead.

mod actor;
mod cache;
mod clock;
mod device;
mod dma;
mod failed_memory;
mod host;
mod host_memory;
mod inject;
mod interposed;
pub(in crate::verify) mod line_map;
mod machine;
mod misbehaviour;
mod observe;
mod posted;
mod random;
pub mod schedule;
mod settings;
mod sites;
mod trace;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub use clock::SimulatedClock;
pub use device::DeviceImage;
pub use dma::DmaCache;
pub use failed_memory::{CutOff, FailedLine};
pub use host::SimulatedHost;
pub use host_memory::SimulatedHostMemory;
pub use interposed::{Access, Interposed, Interposer};
pub use random::Random;
pub use schedule::{Crash, Faults, Outcome, Report, Schedule, ScheduleError, ScheduleFailure};
pub use settings::{CacheMode, Settings};
pub use sites::{Site, SiteOp};
pub use trace::{Event, EventKind};

use crate::units::{LINE_BYTES, LineOffset, LineRange};
use device::Device;
use machine::Machine;
use schedule::Point;

/// Hosts with private caches over one device. Clones are the same rack.
#[derive(Clone)]
pub struct SimulatedRack {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    machine: Mutex<Machine>,
    /// A running schedule came to its end.
    ended: Condvar,
}

impl SimulatedRack {
    /// A rack whose caches do nothing by themselves. See [`CacheMode::Sticky`].
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[must_use]
    pub fn sticky(hosts: usize, bytes: u64) -> Self {
        Self::with(Settings::sticky(hosts, bytes))
    }

    /// A rack whose caches do what they like. See [`CacheMode::Adversarial`].
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[must_use]
    pub fn adversarial(hosts: usize, bytes: u64, seed: u64) -> Self {
        Self::with(Settings::adversarial(hosts, bytes, seed))
    }

    /// A rack.
    ///
    /// # Panics
    /// When there are no hosts, or the memory is not a multiple of 64 bytes.
    #[must_use]
    pub fn with(settings: Settings) -> Self {
        let device = Device::new(settings.seed);
        Self::over(settings, device)
    }

    /// A rack whose device holds `image` at the start, and all of whose caches are empty.
    ///
    /// # Panics
    /// As [`with`](Self::with), and when the image is of memory of another size.
    #[must_use]
    pub fn with_image(settings: Settings, image: &DeviceImage) -> Self {
        assert_eq!(settings.bytes, image.bytes, "the image is of other memory");
        let device = Device::with_image(settings.seed, image);
        Self::over(settings, device)
    }

    fn over(settings: Settings, device: Device) -> Self {
        assert!(settings.hosts > 0, "a rack has at least one host");
        assert!(settings.bytes.is_multiple_of(LINE_BYTES), "the memory consists of whole lines");
        let machine = Mutex::new(Machine::new(&settings, device));
        Self { inner: Arc::new(Inner { settings, machine, ended: Condvar::new() }) }
    }

    /// What it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.inner.settings.hosts
    }

    /// Size of the shared memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.settings.bytes
    }

    /// The memory as host `host` sees it.
    ///
    /// # Panics
    /// When there is no such host.
    #[must_use]
    pub fn host(&self, host: usize) -> SimulatedHost {
        self.check_host(host);
        SimulatedHost { rack: self.clone(), host }
    }

    /// `words` words in the DRAM of host `host`. Every call for a host gives the same words.
    ///
    /// # Panics
    /// When there is no such host.
    #[must_use]
    pub fn host_memory(&self, host: usize, words: usize) -> SimulatedHostMemory {
        self.check_host(host);
        let memory = &mut self.lock().hosts[host].memory;
        memory.resize(memory.len().max(words), 0);
        SimulatedHostMemory { rack: self.clone(), host, words }
    }

    /// The clock of host `host`.
    ///
    /// # Panics
    /// When there is no such host.
    #[must_use]
    pub fn clock(&self, host: usize) -> SimulatedClock {
        self.check_host(host);
        SimulatedClock { rack: self.clone(), host }
    }

    /// Begins an operation of `host`: a scheduling point, then whatever the caches do by
    /// themselves. `None` for a task that has crashed: it does nothing any more.
    fn enter(&self, host: usize, line: Option<LineOffset>) -> Option<MutexGuard<'_, Machine>> {
        let mut machine = schedule::point(self, Point::Operation)?;
        machine.misbehave(host, line);
        Some(machine)
    }

    /// Goes on with an operation that was interrupted so that others see half of it.
    fn enter_again(&self, host: usize, line: LineOffset) -> Option<MutexGuard<'_, Machine>> {
        let mut machine = schedule::point(self, Point::Interruption)?;
        machine.misbehave(host, Some(line));
        Some(machine)
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        // Only a bug of the simulator panics under the lock, and that is reported by itself.
        self.inner.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_host(&self, host: usize) {
        assert!(host < self.hosts(), "host {host} is not in this rack of {}", self.hosts());
    }

    fn check_lines(&self, lines: LineRange) {
        let inside = lines.lines() == 0 || lines.end_bytes() <= self.bytes();
        assert!(inside, "{lines:?} is outside the memory of {} bytes", self.bytes());
    }
}

impl fmt::Debug for SimulatedRack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimulatedRack").field(&self.inner.settings).finish()
    }
}
