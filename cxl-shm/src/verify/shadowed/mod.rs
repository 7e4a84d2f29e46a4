//! Real processes, each with private lines that go stale: one file stands for the device, every
//! process for a host of its own.
//!
//! What a process stores stays in its own memory until it is written back, and what it loaded
//! answers its loads however old it is. So `kill -9` meets non-coherence: it takes the dirty lines
//! that were not written back with it, which the caches of a real host would have kept.
//!
//! # What is modelled
//!
//! Stale hits, whole-line write-back, flushes that take effect between their issue and the next
//! fence of their thread, and, with [`CacheMode::Adversarial`], caches that write back, evict and
//! prefetch by themselves. With [`CacheMode::Sticky`] nothing ever happens by itself. A write-back
//! may leave a clean copy in the cache, as `clwb` and `dc cvac` do (always in the sticky mode): it
//! refreshes nothing. A killed process is a host that lost its power: the lines that its caches
//! happened to write back before are the subset of the dirty ones that landed.
//!
//! # What is not
//!
//! Posted writes, poison, DMA past the caches and pauses on demand: the simulated rack has them
//! ([`super::simulated`]). A line moves to and from the file word by word, so another process may
//! see half of one: more than a device would show, and no more than MEM-M5 has every reader expect.

mod shadow;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::simulated::CacheMode;
use crate::fabric::{Fabric, LineWords, MappedFabric};
use crate::units::{LINE_BYTES, LINE_WORDS, LineOffset, LineRange, WordOffset};
use shadow::Shadow;

/// [`Fabric`] of one process that plays a host over a shared file. Clones, for the threads of the
/// process, share its caches.
///
/// # Example
/// ```
/// use cxl_shm::verify::simulated::CacheMode;
/// use cxl_shm::fabric::{Fabric, MappedFabric, Mapping};
/// use cxl_shm::verify::shadowed::ShadowedFabric;
/// use cxl_shm::units::{LineOffset, LineRange};
///
/// let file = tempfile::tempfile()?;
/// file.set_len(4096)?;
/// let host = || -> Result<_, cxl_shm::fabric::MapError> {
///     let below = MappedFabric::new(Mapping::shared(&file, 4096)?)?;
///     Ok(ShadowedFabric::new(below, CacheMode::Sticky, 0))
/// };
/// let (writer, reader) = (host()?, host()?);
/// let line = LineRange::one(LineOffset::new(64).unwrap());
/// let word = line.start().word(0).unwrap();
///
/// assert_eq!(reader.load(word), 0);
/// writer.store(word, 7);
/// writer.publish(line);
/// assert_eq!(reader.load(word), 0);
/// reader.refresh(line);
/// assert_eq!(reader.load(word), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ShadowedFabric {
    bytes: u64,
    shadow: Arc<Mutex<Shadow>>,
}

impl ShadowedFabric {
    /// Empty caches over `below`, which every process maps from the same file. What the caches do
    /// by themselves is drawn from `seed`.
    #[must_use]
    pub fn new(below: MappedFabric, cache: CacheMode, seed: u64) -> Self {
        let bytes = below.bytes();
        Self { bytes, shadow: Arc::new(Mutex::new(Shadow::new(below, cache, seed))) }
    }

    /// Begins an access: whatever the caches do by themselves comes before it.
    fn enter(&self, line: LineOffset) -> MutexGuard<'_, Shadow> {
        self.check(LineRange::one(line));
        let mut shadow = self.lock();
        shadow.misbehave(line);
        shadow
    }

    fn lock(&self) -> MutexGuard<'_, Shadow> {
        // Only an access outside the memory panics, before it changes anything.
        self.shadow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, lines: LineRange) {
        let inside = lines.lines() == 0 || lines.end_bytes() <= self.bytes;
        assert!(inside, "{lines:?} is outside the memory of {} bytes", self.bytes);
    }
}

impl Fabric for ShadowedFabric {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn load(&self, at: WordOffset) -> u64 {
        self.enter(at.line()).line(at.line())[at.index_in_line()]
    }

    fn store(&self, at: WordOffset, value: u64) {
        self.enter(at.line()).store(at, value);
    }

    fn read_line(&self, at: LineOffset) -> LineWords {
        self.enter(at).line(at)
    }

    fn write_line(&self, at: LineOffset, words: &LineWords) {
        let mut shadow = self.enter(at);
        for (index, word) in words.iter().enumerate() {
            if index == LINE_WORDS / 2 {
                // Half a line may go out (MEM-M5).
                shadow.misbehave(at);
            }
            shadow.store(at.word(index).expect("a line has this many words"), *word);
        }
    }

    fn write_back(&self, lines: LineRange) {
        self.check(lines);
        self.lock().flush(lines, false);
    }

    fn invalidate(&self, lines: LineRange) {
        self.check(lines);
        self.lock().flush(lines, true);
    }

    fn fence(&self) {
        self.lock().fence();
    }

    fn read_back(&self, lines: LineRange) {
        self.check(lines);
        let mut shadow = self.lock();
        for line in lines.iter() {
            shadow.line(line);
        }
    }
}

impl fmt::Debug for ShadowedFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShadowedFabric({} lines)", self.bytes / LINE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Mapping;

    const BYTES: u64 = 4096;

    fn hosts<const N: usize>(cache: CacheMode) -> [ShadowedFabric; N] {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        std::array::from_fn(|seed| {
            let below = MappedFabric::new(Mapping::shared(&file, BYTES).unwrap()).unwrap();
            ShadowedFabric::new(below, cache, seed as u64)
        })
    }

    fn word(line: u64, index: usize) -> WordOffset {
        LineOffset::new(line * 64).unwrap().word(index).unwrap()
    }

    fn line(number: u64) -> LineRange {
        LineRange::one(LineOffset::new(number * 64).unwrap())
    }

    #[test]
    fn what_was_not_written_back_dies_with_the_host() {
        let [dies, other] = hosts(CacheMode::Sticky);
        dies.store(word(0, 0), 1);
        dies.publish(line(0));
        dies.store(word(0, 0), 2);
        dies.write_back(line(0));
        drop(dies);
        assert_eq!(other.load(word(0, 0)), 1);
    }

    #[test]
    fn a_flush_without_a_fence_does_nothing_while_nobody_is_busy() {
        let [writer, reader] = hosts(CacheMode::Sticky);
        assert_eq!(reader.load(word(1, 0)), 0);
        writer.store(word(1, 0), 1);
        writer.write_back(line(1));
        reader.refresh(line(1));
        assert_eq!(reader.load(word(1, 0)), 0);
        writer.fence();
        reader.invalidate(line(1));
        assert_eq!(reader.load(word(1, 0)), 0);
        reader.fence();
        assert_eq!(reader.load(word(1, 0)), 1);
    }

    #[test]
    fn a_fence_waits_for_the_flushes_of_its_own_thread_only() {
        let [writer, reader] = hosts(CacheMode::Sticky);
        writer.store(word(1, 0), 1);
        std::thread::scope(|scope| {
            let issue = || writer.write_back(line(1));
            scope.spawn(issue).join().unwrap();
        });
        writer.fence();
        assert_eq!(reader.load(word(1, 0)), 0);
    }

    #[test]
    fn lines_leave_whole_and_bring_old_words_back() {
        let [one, other] = hosts(CacheMode::Sticky);
        one.store(word(2, 0), 1);
        other.store(word(2, 1), 2);
        other.publish(line(2));
        one.publish(line(2));
        other.refresh(line(2));
        assert_eq!(other.read_line(line(2).start()), [1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_write_back_refreshes_nothing() {
        let [one, other] = hosts(CacheMode::Sticky);
        assert_eq!(one.load(word(3, 0)), 0);
        other.store(word(3, 0), 1);
        other.publish(line(3));
        one.publish(line(3));
        assert_eq!(one.load(word(3, 0)), 0);
    }

    #[test]
    fn busy_caches_write_back_evict_and_prefetch() {
        let (mut written, mut fetched) = (0, 0);
        for _ in 0..50 {
            let [one, other] = hosts(CacheMode::Adversarial);
            one.store(word(4, 0), 1);
            assert_eq!(other.load(word(5, 0)), 0);
            for _ in 0..40 {
                one.load(word(6, 0));
                other.load(word(7, 0));
            }
            // The line of word 4 came into the cache of `other` by itself, if it did.
            written += other.load(word(4, 0));
            let [ours, theirs] = hosts(CacheMode::Adversarial);
            ours.load(word(8, 0));
            theirs.store(word(8, 0), 1);
            theirs.publish(line(8));
            for _ in 0..40 {
                ours.load(word(9, 0));
            }
            fetched += ours.load(word(8, 0));
        }
        assert!(written > 0, "no dirty line ever left by itself");
        assert!(fetched > 0, "no clean line was ever evicted");
    }
}
