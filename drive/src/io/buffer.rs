//! Memory that a drive reads payload into, or writes payload from.
#![expect(unsafe_code, reason = "memory of a mapping is lent to the kernel without a copy")]

use std::io;
use std::ptr::NonNull;

use memmap2::MmapMut;

use super::PAGE_BYTES;

/// Aligned memory of whole pages. It belongs to the drive while a transfer is under way (DRIVE-I1).
#[derive(Debug)]
pub struct Buffer(Memory);

#[derive(Debug)]
enum Memory {
    /// Pages of this process.
    Owned(MmapMut),
    /// A part of a mapping: of a pool's payload, for instance.
    Lent { start: NonNull<u8>, bytes: usize, written_by_others: bool },
}

// SAFETY: owned memory moves with the buffer. The caller that lends memory vouches in `Buffer::lent`
// and `Buffer::lent_source` that any thread may use it until the buffer comes back.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Zeros, `bytes` of them or up to a page more.
    ///
    /// # Errors
    /// The system's, when it has no memory.
    pub fn zeroed(bytes: usize) -> io::Result<Self> {
        let whole = bytes.max(1).next_multiple_of(PAGE_BYTES as usize);
        Ok(Self(Memory::Owned(MmapMut::map_anon(whole)?)))
    }

    /// A buffer that has `bytes`, and zeros behind them.
    ///
    /// # Errors
    /// The system's, when it has no memory.
    pub fn of(bytes: &[u8]) -> io::Result<Self> {
        let mut buffer = Self::zeroed(bytes.len())?;
        if let Memory::Owned(memory) = &mut buffer.0 {
            memory[..bytes.len()].copy_from_slice(bytes);
        }
        Ok(buffer)
    }

    /// Memory of a mapping that a drive may fill or write out: the payload slot that a publish has
    /// reserved, so that a restore needs no other copy.
    ///
    /// # Safety
    /// From now until the buffer is dropped, the range is mapped for reading and writing, and nothing
    /// else reads or writes it. A buffer that never comes back is never dropped.
    #[must_use]
    pub const unsafe fn lent(start: NonNull<u8>, bytes: usize) -> Self {
        Self(Memory::Lent { start, bytes, written_by_others: false })
    }

    /// Memory of a mapping that a drive may write out while others may change it: the payload of a
    /// block that is backed up without another copy. What arrives may be torn. The caller takes its
    /// second look before it commits the block.
    ///
    /// # Safety
    /// From now until the buffer is dropped, the range is mapped for reading. A buffer that never
    /// comes back is never dropped.
    #[must_use]
    pub const unsafe fn lent_source(start: NonNull<u8>, bytes: usize) -> Self {
        Self(Memory::Lent { start, bytes, written_by_others: true })
    }

    /// How many bytes it has.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.0 {
            Memory::Owned(memory) => memory.len(),
            Memory::Lent { bytes, .. } => *bytes,
        }
    }

    /// Its bytes. `None` while others may write them.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Memory::Owned(memory) => Some(memory),
            Memory::Lent { written_by_others: true, .. } => None,
            Memory::Lent { start, bytes, .. } => {
                // SAFETY: `lent` demands that the range is mapped and that nothing else uses it
                // while the buffer lives, which this borrow does not outlive.
                Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), *bytes) })
            }
        }
    }

    /// Its bytes, to be changed. `None` while others may write them.
    #[must_use]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            Memory::Owned(memory) => Some(memory),
            Memory::Lent { written_by_others: true, .. } => None,
            Memory::Lent { start, bytes, .. } => {
                // SAFETY: as in `bytes`, and the buffer is borrowed exclusively.
                Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), *bytes) })
            }
        }
    }

    /// Whether a drive may read into it.
    pub(crate) const fn may_be_written(&self) -> bool {
        !matches!(self.0, Memory::Lent { written_by_others: true, .. })
    }

    /// Where it begins.
    pub(super) fn address(&self) -> *const u8 {
        match &self.0 {
            Memory::Owned(memory) => memory.as_ptr(),
            Memory::Lent { start, .. } => start.as_ptr(),
        }
    }

    /// Where byte `at` is, for the kernel to write to.
    ///
    /// # Panics
    /// When the buffer has no such byte, or may not be written.
    pub(super) fn address_mut(&mut self, at: usize) -> *mut u8 {
        assert!(at <= self.capacity() && self.may_be_written(), "checked by Transfer::check");
        let start = match &mut self.0 {
            Memory::Owned(memory) => memory.as_mut_ptr(),
            Memory::Lent { start, .. } => start.as_ptr(),
        };
        start.wrapping_add(at)
    }
}

/// Lends memory of a test: to be written out while others may change it, or to be filled.
#[cfg(test)]
pub(super) fn lend<R>(
    start: NonNull<u8>,
    bytes: usize,
    others_write: bool,
    with: impl FnOnce(Buffer) -> R,
) -> R {
    let lent = if others_write {
        // SAFETY: the test keeps its mapping until `with` returns, which waits for the transfer.
        unsafe { Buffer::lent_source(start, bytes) }
    } else {
        // SAFETY: as above, and the test does not touch the mapping meanwhile.
        unsafe { Buffer::lent(start, bytes) }
    };
    with(lent)
}
