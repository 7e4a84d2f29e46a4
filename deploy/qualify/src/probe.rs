//! What litmus programs do that protocols never may.

use cxl_shm::fabric::{Fabric, LineWords, MappedFabric, MemoryFenceKind};
use cxl_shm::units::LineOffset;
#[cfg(test)]
use cxl_shm::verify::simulated::SimulatedHost;

/// A fabric with the operations of litmus programs beside those of protocols.
pub trait Probe: Fabric + Clone {
    /// A fence of any kind.
    fn fence_of(&self, kind: MemoryFenceKind);

    /// Asks for a line as a prefetcher would.
    fn prefetch(&self, at: LineOffset);

    /// Stores a line with one instruction; false where there is none.
    fn write_whole_line(&self, at: LineOffset, words: &LineWords) -> bool;

    /// Loads a line with one instruction; `None` where there is none.
    fn read_whole_line(&self, at: LineOffset) -> Option<LineWords>;

    /// The processor's counter, for ratios of durations; `None` where there is no real time.
    fn ticks(&self) -> Option<u64>;
}

impl Probe for MappedFabric {
    fn fence_of(&self, kind: MemoryFenceKind) {
        Self::fence_of(self, kind);
    }

    fn prefetch(&self, at: LineOffset) {
        Self::prefetch(self, at);
    }

    fn write_whole_line(&self, at: LineOffset, words: &LineWords) -> bool {
        Self::write_whole_line(self, at, words)
    }

    fn read_whole_line(&self, at: LineOffset) -> Option<LineWords> {
        Self::read_whole_line(self, at)
    }

    fn ticks(&self) -> Option<u64> {
        Some(Self::ticks(self))
    }
}

/// So that the litmus programs themselves can be tested: here it is known what they must see.
#[cfg(test)]
impl Probe for SimulatedHost {
    fn fence_of(&self, kind: MemoryFenceKind) {
        // The weaker ones complete no flush.
        if kind == MemoryFenceKind::Full {
            self.fence();
        }
    }

    fn prefetch(&self, at: LineOffset) {
        self.read_line(at);
    }

    fn write_whole_line(&self, _: LineOffset, _: &LineWords) -> bool {
        false
    }

    fn read_whole_line(&self, _: LineOffset) -> Option<LineWords> {
        None
    }

    fn ticks(&self) -> Option<u64> {
        None
    }
}
