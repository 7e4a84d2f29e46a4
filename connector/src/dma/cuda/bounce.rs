//! A pinned buffer, where the GPU does not reach the pool itself.
#![expect(unsafe_code, reason = "the buffer is the driver's memory")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, PinnedHostSlice};

use super::turn::Turn;

/// Buffers are multiples of this.
const GRAIN_BYTES: usize = 2 << 20;

/// Memory that both sides reach, as long as the longest payload so far. One payload, or one layer
/// of several, is in it at a time.
#[derive(Debug)]
pub(super) struct Bounce {
    context: Arc<CudaContext>,
    buffer: Option<PinnedHostSlice<u8>>,
}

/// The buffer, for one of those.
#[derive(Debug)]
pub(super) struct Bouncing<'b> {
    buffer: &'b mut PinnedHostSlice<u8>,
    bytes: usize,
}

impl Bounce {
    pub(super) fn new(context: &Arc<CudaContext>) -> Self {
        Self { context: Arc::clone(context), buffer: None }
    }

    /// The buffer, with room for `bytes` bytes. Nothing of it is under way.
    ///
    /// # Errors
    /// The driver's, when it has no memory to pin.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Bouncing<'_>, DriverError> {
        if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < bytes.max(1)) {
            // First, so that the two are not there at once.
            self.buffer = None;
            let length = bytes.max(1).next_multiple_of(GRAIN_BYTES);
            self.buffer = Some(pinned_memory(&self.context, length)?);
        }
        let buffer = self.buffer.as_mut().expect("it was just made");
        Ok(Bouncing { buffer, bytes })
    }
}

impl Bouncing<'_> {
    /// The bytes. No copy of the GPU to or from them is under way.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn bytes(&mut self) -> Result<&mut [u8], DriverError> {
        Ok(&mut self.buffer.as_mut_slice()?[..self.bytes])
    }

    /// Where they are, for the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn address(&mut self) -> Result<u64, DriverError> {
        Ok(self.bytes()?.as_mut_ptr().expose_provenance() as u64)
    }
}

/// Memory of this process that a GPU copies to and from at full speed, all zeros.
///
/// # Errors
/// The driver's, when it has no more to pin.
pub fn pinned_memory(
    context: &Arc<CudaContext>,
    bytes: usize,
) -> Result<PinnedHostSlice<u8>, DriverError> {
    let _turn = Turn::begin(context)?;
    // The processor reads it, which takes long from memory that only combines writes.
    let flags = 0;
    // SAFETY: it is written before it is read, below.
    let mut buffer = unsafe { context.alloc_pinned_with_flags::<u8>(bytes, flags) }?;
    let start = buffer.as_mut_ptr()?;
    // SAFETY: these are the bytes of the buffer, which nobody else has yet.
    unsafe { start.write_bytes(0, bytes) };
    Ok(buffer)
}
