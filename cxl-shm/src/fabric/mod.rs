//! The seam: one protocol source, several memories.
//!
//! # Rules of access (cited by number in the code)
//!
//! Every host has private caches over one device. A *line* is 64 bytes. Between hosts there is no
//! coherence, no atomic read-modify-write and no order between different lines. Within one host
//! everything is coherent.
//!
//! - **MEM-M1 One writing host per line.** Ownership passes only through a published hand-over
//!   after the old owner flushed. In code: an [`OwnedLine`] exists only for the lines of a node
//!   handle, under a lock between hosts, or by the formatter.
//! - **MEM-M2 Publish** = store, write the line back, full fence, and in *read-back mode* a load of
//!   the line. "A before B" needs a full publish of A before the store of B.
//! - **MEM-M3 Refresh** = drop the line from this host's caches, full fence, then load. A plain
//!   load may pass a flush that is not fenced with `mfence`.
//! - **MEM-M4 Flag, then payload.** See the flag, fence, *then* refresh the payload, then read it.
//! - **MEM-M5 Words are aligned 8 bytes**, one width per word, relaxed atomics on the host. Longer
//!   records carry a version and a CRC and are validated on every read. A reader never trusts an
//!   offset it has not range-checked.
//! - **MEM-M6 Payload and metadata never share a page**, and where a GPU copies, the CPU
//!   loads payload for its checksum alone, refreshed as for any load.
//! - **MEM-M7 No read-modify-write on shared lines.** [`Fabric`] has none, so it does not compile.
//!   Words in a host's own DRAM have one: [`HostMemory`].
//! - **MEM-M8 Attach, detach and take-over flush** the metadata this host may hold.
//! - **MEM-M9 Payload visibility is a property of the platform.** A DMA engine may leave its writes
//!   in the writing host's cache (DDIO) or read through the reading host's. Until a platform has
//!   been measured the writer writes payload back and the reader drops it from its caches, always.
//!
//! # The lemma that all protocols rest on
//!
//! Under MEM-M1 to MEM-M3 an 8-byte word with one writing host is a linearizable single-writer
//! register. Every algorithm proved for such registers may be used; nothing more may be assumed.

pub(crate) mod faults;
mod flush;
#[cfg(target_arch = "aarch64")]
mod flush_aarch64;
#[cfg(target_arch = "x86_64")]
mod flush_x86_64;
mod host_memory;
mod line;
mod mapped;
mod moved_lines;
mod parts;
mod publish_batch;
mod sigbus;

pub use faults::RANGES_MAX;
pub use flush::{FlushError, FlushKind, MemoryFenceKind, ReadBack};
pub use host_memory::HostMemory;
#[cfg(test)]
pub(crate) use line::seal;
pub(crate) use line::unseal;
pub use line::{LineError, OwnedArea, OwnedLine, OwnedWord, PeerArea, PeerLine, PeerWord, Record};
pub use mapped::{MapError, MappedFabric, MappedHostMemory, Mapping};
pub use moved_lines::MovedLines;
#[doc(hidden)]
pub use parts::PART_LINES;
pub(crate) use parts::publish_in_parts;
pub use publish_batch::{PublishBatch, publish_all, refresh_all};

use std::fmt;

use crate::units::{Extent, LINE_WORDS, LineOffset, LineRange, WordOffset};

/// The eight words of a line.
pub type LineWords = [u64; LINE_WORDS];

/// Memory that several hosts see without coherence, addressed by offset.
///
/// An implementation may answer [`load`](Self::load) with any value the word ever had since this
/// host last refreshed it, may make a store visible to others at any time after it was issued,
/// and must make it visible no later than the end of a [`publish`](Self::publish) of its line.
///
/// Offsets outside the memory are a bug of the caller: every offset that came from shared memory is
/// range-checked before it gets here (MEM-M5). Implementations stop the program rather than touch
/// anything else.
///
/// The methods are `#[track_caller]`: the place in the source that publishes or refreshes is the
/// name under which the mutation suite removes it.
///
/// # Example
/// ```
/// use cxl_shm::fabric::Fabric;
/// use cxl_shm::units::{LineOffset, LineRange};
/// use cxl_shm::verify::simulated::SimulatedRack;
///
/// let rack = SimulatedRack::sticky(2, 4096);
/// let (writer, reader) = (rack.host(0), rack.host(1));
/// let line = LineOffset::new(128).unwrap();
/// let word = line.word(0).unwrap();
///
/// assert_eq!(reader.load(word), 0);          // now cached by the reader
/// writer.store(word, 7);
/// writer.publish(LineRange::one(line));      // MEM-M2
/// assert_eq!(reader.load(word), 0);          // stale: nobody told the reader
/// reader.refresh(LineRange::one(line));      // MEM-M3
/// assert_eq!(reader.load(word), 7);
/// ```
pub trait Fabric: fmt::Debug {
    /// Size of the memory in bytes.
    fn bytes(&self) -> u64;

    /// Loads a word, possibly stale: whatever this host's caches hold.
    fn load(&self, at: WordOffset) -> u64;

    /// Stores a word into this host's caches. Nobody else need see it before the line is published.
    #[track_caller]
    fn store(&self, at: WordOffset, value: u64);

    /// Loads a line, possibly stale, word by word: it may be torn between words (MEM-M5).
    fn read_line(&self, at: LineOffset) -> LineWords;

    /// Stores a line, word by word: a reader may see it torn between words (MEM-M5). Not published.
    #[track_caller]
    fn write_line(&self, at: LineOffset, words: &LineWords);

    /// Starts writing dirty lines back. Complete only after the next [`fence`](Self::fence).
    #[track_caller]
    fn write_back(&self, lines: LineRange);

    /// Starts dropping lines from this host's caches (a dirty one is written back first). Loads
    /// see the device only after the next [`fence`](Self::fence).
    #[track_caller]
    fn invalidate(&self, lines: LineRange);

    /// Waits until every write-back and invalidation of this thread is complete (`mfence`).
    #[track_caller]
    fn fence(&self);

    /// Waits until the lines are known to have reached the device: the read-back of MEM-M2. Does
    /// nothing where the platform is qualified to need none.
    #[track_caller]
    fn read_back(&self, lines: LineRange);

    /// Starts loading a line that this host alone writes (MEM-M1) into its caches, ahead of the next
    /// read or write of the line. Never for a line of another host: it would become stale there.
    fn prefetch_owned(&self, _: LineOffset) {}

    /// The lines that this thread has moved since the last call, in all memories that count. None
    /// where the memory does not count, as a simulated one.
    fn take_moved(&self) -> MovedLines {
        MovedLines::default()
    }

    /// Whether this process is cut off from the memory: an access to metadata failed, and no store of
    /// the process reaches anybody since (FAULT-F4). Nothing that it reads counts.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Faults of payload that this process has met so far. One word, to be compared with an earlier
    /// answer or zero.
    fn faults(&self) -> u64 {
        0
    }

    /// The ranges of payload that this process lost: zeros that nobody else sees (FAULT-F3).
    fn lost_ranges(&self) -> Vec<Extent> {
        Vec::new()
    }

    /// Whether this process lost a byte of `extent`.
    fn has_lost(&self, extent: Extent) -> bool {
        self.faults() != 0
            && self
                .lost_ranges()
                .iter()
                .any(|lost| lost.offset() < extent.end() && extent.offset() < lost.end())
    }

    /// MEM-M2. After return every host that refreshes the lines sees at least these values.
    #[track_caller]
    fn publish(&self, lines: LineRange) {
        self.write_back(lines);
        self.fence();
        self.read_back(lines);
    }

    /// MEM-M3. After return the next load of each line sees at least what was published before.
    #[track_caller]
    fn refresh(&self, lines: LineRange) {
        self.invalidate(lines);
        self.fence();
    }
}
