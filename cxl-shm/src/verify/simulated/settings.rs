//! What kind of rack to simulate.

/// Whether caches do anything by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// Nothing is evicted, prefetched or written back by itself, and an unfenced flush never
    /// completes: finds missing flushes and fences, which a busy cache hides.
    Sticky,
    /// At any access dirty lines may be written back, clean ones evicted, others prefetched,
    /// unfenced flushes may complete and posted writes may land. Which of these a run does, and
    /// how often, is drawn from the seed: finds protocols that rely on an order that caches do
    /// not keep.
    Adversarial,
}

/// A rack to simulate.
///
/// # Example
/// ```
/// use cxl_shm::verify::simulated::{Settings, SimulatedRack};
///
/// let settings = Settings { posted_writes: false, ..Settings::sticky(2, 1 << 30) };
/// assert_eq!(SimulatedRack::with(settings).hosts(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of hosts.
    pub hosts: usize,
    /// Size of the shared memory in bytes, a multiple of 64. Only written lines take space.
    pub bytes: u64,
    /// Whether caches do anything by themselves.
    pub cache: CacheMode,
    /// Whether a line that was flushed and fenced may still be on its way to the device until it
    /// is read back (or, in the adversarial mode, until it happens to land). Models platforms
    /// whose fence does not wait for the device.
    pub posted_writes: bool,
    /// Everything that happens by chance follows from it.
    pub seed: u64,
}

impl Settings {
    /// Sticky caches, posted writes, seed 0.
    #[must_use]
    pub fn sticky(hosts: usize, bytes: u64) -> Self {
        Self { hosts, bytes, cache: CacheMode::Sticky, posted_writes: true, seed: 0 }
    }

    /// Adversarial caches, posted writes.
    #[must_use]
    pub fn adversarial(hosts: usize, bytes: u64, seed: u64) -> Self {
        Self { hosts, bytes, cache: CacheMode::Adversarial, posted_writes: true, seed }
    }
}
