//! Many copies, handed to the driver at once.
#![expect(unsafe_code, reason = "the driver copies between addresses")]

use cudarc::driver::{CudaStream, DriverError, sys};

use super::driver;
use super::engine::Direction;

/// One run of bytes.
#[derive(Clone, Copy, Debug)]
struct Copy {
    to: u64,
    from: u64,
    bytes: usize,
}

/// Copies of a call of the driver at most. Calls with tens of thousands were seen to hang, or to end the
/// process (vLLM's issue 49276).
const BATCH_MAX: usize = 1024;

/// The copies of one payload, or of one layer of several.
#[derive(Debug, Default)]
pub(super) struct Copies(Vec<Copy>);

impl Copies {
    /// Those between a buffer and these parts in order (address and length).
    pub(super) fn with_buffer(
        direction: Direction,
        mut buffer: u64,
        parts: impl Iterator<Item = (u64, usize)>,
    ) -> Self {
        let mut copies = Self::default();
        for (device, bytes) in parts {
            copies.add(direction, buffer, device, bytes);
            buffer += bytes as u64;
        }
        copies
    }

    /// Adds one between memory of this process and the GPU.
    pub(super) fn add(&mut self, direction: Direction, host: u64, device: u64, bytes: usize) {
        let (to, from) = match direction {
            Direction::Store => (host, device),
            Direction::Load => (device, host),
        };
        if bytes > 0 {
            self.0.push(Copy { to, from, bytes });
        }
    }

    /// Hands them to `stream`, `in_batches` where the driver takes them.
    ///
    /// # Errors
    /// The driver's; some of the copies may be under way then.
    ///
    /// # Safety
    /// Until the stream has come to this point, every range is memory that the GPU of the stream
    /// reaches, nobody else writes what is read, and nobody else touches what is written.
    pub(super) unsafe fn submit(
        &self,
        stream: &CudaStream,
        in_batches: bool,
    ) -> Result<(), DriverError> {
        if self.0.len() > 1 && in_batches {
            return self.0.chunks(BATCH_MAX).try_for_each(|batch| {
                // SAFETY: the caller's.
                unsafe { submit_batch(batch, stream) }
            });
        }
        for Copy { to, from, bytes } in &self.0 {
            // SAFETY: the caller's.
            unsafe { sys::cuMemcpyAsync(*to, *from, *bytes, stream.cu_stream()) }.result()?;
        }
        Ok(())
    }
}

/// Whether the driver takes several copies at once (CUDA 12.8).
pub(super) fn takes_batches() -> bool {
    driver::has("cuMemcpyBatchAsync")
}

/// With one call of the driver: for short copies a call each takes longer than the copy.
///
/// # Safety
/// As in `submit`, and the driver takes batches.
unsafe fn submit_batch(copies: &[Copy], stream: &CudaStream) -> Result<(), DriverError> {
    let mut to: Vec<_> = copies.iter().map(|copy| copy.to).collect();
    let mut from: Vec<_> = copies.iter().map(|copy| copy.from).collect();
    let mut bytes: Vec<_> = copies.iter().map(|copy| copy.bytes).collect();
    let nowhere = sys::CUmemLocation_st {
        type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_INVALID,
        id: 0,
    };
    let mut attributes = sys::CUmemcpyAttributes_st {
        srcAccessOrder: sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        srcLocHint: nowhere,
        dstLocHint: nowhere,
        // Where the hardware can, copies leave the multiprocessors to the engine.
        flags: sys::CUmemcpyFlags_enum::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as u32,
    };
    // From the first copy on.
    let mut attributes_from = 0;
    let mut failed = 0;
    // SAFETY: three arrays of one length and one set of attributes for all of them, all alive
    // during the call; what they name is the caller's.
    let outcome = unsafe {
        sys::cuMemcpyBatchAsync(
            to.as_mut_ptr(),
            from.as_mut_ptr(),
            bytes.as_mut_ptr(),
            copies.len(),
            &raw mut attributes,
            &raw mut attributes_from,
            1,
            &raw mut failed,
            stream.cu_stream(),
        )
    };
    outcome.result()
}
