//! Words in a host's own DRAM, shared by the processes of that host only.

use std::fmt;

/// Shared words of one host: coherent, so they have atomic operations. This is where the host
/// tier lives (locks between threads and processes, the process registry, free lists).
///
/// Every operation is sequentially consistent: none of them is on the path of a byte of payload,
/// and one order for all is what the proofs assume. Words start as zero.
///
/// Indices outside the memory are a bug of the caller and stop the program.
pub trait HostMemory: fmt::Debug {
    /// Number of words.
    fn words(&self) -> usize;
    /// Loads word `index`.
    fn load(&self, index: usize) -> u64;
    /// Stores word `index`.
    fn store(&self, index: usize, value: u64);
    /// Stores zero in every word, in any order. Not one operation: others may see some of it.
    fn clear(&self) {
        for index in 0..self.words() {
            self.store(index, 0);
        }
    }
    /// Replaces `current` by `new` in word `index`.
    ///
    /// # Errors
    /// The value found when it is not `current`; nothing is changed.
    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> Result<u64, u64>;

    /// Adds to word `index`, wrapping: for figures that people read. No protocol decides by such a
    /// word, so the addition is ordered with nothing, and is no step of a simulated rack.
    fn count(&self, index: usize, value: u64) {
        let mut now = self.load(index);
        while let Err(found) = self.compare_exchange(index, now, now.wrapping_add(value)) {
            now = found;
        }
    }

    /// What was counted in word `index`.
    fn counted(&self, index: usize) -> u64 {
        self.load(index)
    }
}
