//! Copying whole lines on aarch64. Written from the Arm ARM (DDI 0487); compiled,
//! and never run: see `deploy/docs/limits.md`.
//!
//! The architecture's non-temporal stores (`stnp`) are hints that may go through the caches all
//! the same, so stores are ordinary ones and the engine writes the lines back.
#![expect(unsafe_code, reason = "copies from and to memory that other processes write")]

use cxl_shm::fabric::Mapping;
use cxl_shm::units::Extent;

use super::checksum::RunningChecksum;
use super::refresh_ahead::BLOCK_BYTES;

/// Whether stored lines are on their way to the device already, not dirty in this host's caches.
pub(super) const STORES_BYPASS_CACHES: bool = false;

/// Bytes in a line, as a length in memory.
const LINE: usize = 64;
/// Bytes that are stored and then checked: few enough to be in the caches still, so that the source
/// is fetched from memory once.
const STORE_BLOCK_BYTES: usize = 8192;

/// A block of payload in private memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Block(pub(super) [u8; BLOCK_BYTES]);

/// Copies between private memory and a mapping.
#[derive(Debug)]
pub(super) struct LineStream<'m> {
    mapping: &'m Mapping,
}

impl<'m> LineStream<'m> {
    pub(super) fn new(mapping: &'m Mapping) -> Self {
        Self { mapping }
    }

    /// Stores the whole lines `from` to `at`, dirty in this host's caches, and adds them to
    /// `checksum`.
    ///
    /// # Panics
    /// When the offset or the length is not one of whole lines inside the mapping.
    pub(super) fn store(&self, at_bytes: u64, from: &[u8], checksum: &mut RunningChecksum) {
        let to = self.lines_at(at_bytes, from.len());
        let blocks = from.chunks(STORE_BLOCK_BYTES).zip((0..).step_by(STORE_BLOCK_BYTES));
        for (block, at) in blocks {
            let to = to.wrapping_add(at);
            // SAFETY: `to` has room for the block and lies in the live mapping (checked above);
            // `from` is private, so they do not overlap.
            unsafe { to.copy_from_nonoverlapping(block.as_ptr(), block.len()) };
            checksum.add(block);
        }
    }

    /// Does nothing, and says so: a block is loaded and then checked.
    pub(super) fn load_through(
        &self,
        _: Extent,
        _: u64,
        _: &mut [u8],
        _: &mut RunningChecksum,
    ) -> bool {
        false
    }

    /// Loads `block` into the start of `into`, and adds it to `checksum`. The processor's own prefetcher works ahead; it does
    /// no harm where it runs past the fenced lines, since their drop comes after (MEM-M3).
    ///
    /// # Panics
    /// When the block does not start on a line, is longer than `into`, or its lines are not inside
    /// the mapping.
    pub(super) fn load(
        &self,
        block: Extent,
        _fenced_end_bytes: u64,
        into: &mut Block,
        checksum: &mut RunningChecksum,
    ) {
        let block_bytes = usize::try_from(block.bytes()).expect("usize is 64 bits on aarch64");
        let bytes = block_bytes.next_multiple_of(LINE);
        let from = self.lines_at(block.offset(), bytes).cast_const().cast::<[u8; 8]>();
        for (i, word) in into.0[..bytes].chunks_exact_mut(8).enumerate() {
            // Volatile: another process may write meanwhile, so each word is read exactly once,
            // and what was read is what is kept and checked.
            // SAFETY: word `i` of `bytes / 8` words that lie in the live mapping.
            word.copy_from_slice(&unsafe { from.wrapping_add(i).read_volatile() });
        }
        checksum.add(&into.0[..block_bytes]);
    }

    /// Copies `from` to `to`, both private.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(super) fn spill(&self, from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
    }

    /// Nothing to do: copies are ordinary stores, which no later release passes.
    pub(super) fn order(&self) {}

    /// Address of `bytes` bytes of whole lines in the mapping.
    fn lines_at(&self, at_bytes: u64, bytes: usize) -> *mut u8 {
        let extent = Extent::new(at_bytes, bytes as u64);
        let address = extent.and_then(|extent| self.mapping.address(extent));
        let address = address.expect("the job was checked to lie in the mapping");
        let whole = address.addr().is_multiple_of(LINE) && bytes.is_multiple_of(LINE);
        assert!(whole, "{bytes} bytes at {at_bytes:#x} are not whole lines");
        address
    }
}
