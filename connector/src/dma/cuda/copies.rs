//! Many copies, handed to the driver at once.
#![expect(unsafe_code, reason = "the driver copies between addresses")]

use cudarc::driver::{CudaStream, DriverError, sys};

use super::driver;

/// One run of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Copy {
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) bytes: usize,
}

/// The copies of one payload, in order; what lies side by side on both sides is one copy.
#[derive(Debug, Default)]
pub(super) struct Copies(Vec<Copy>);

impl Copies {
    pub(super) fn add(&mut self, copy: Copy) {
        if copy.bytes == 0 {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && last.to + last.bytes as u64 == copy.to
            && last.from + last.bytes as u64 == copy.from
        {
            last.bytes += copy.bytes;
            return;
        }
        self.0.push(copy);
    }

    /// Hands them to `stream`.
    ///
    /// # Errors
    /// The driver's; some of the copies may be under way then.
    ///
    /// # Safety
    /// Until the stream has come to this point, every range is memory that the GPU of the stream
    /// reaches, nobody else writes what is read, and nobody else touches what is written.
    pub(super) unsafe fn submit(&self, stream: &CudaStream) -> Result<(), DriverError> {
        if self.0.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread()?;
        if self.0.len() > 1 && driver::has("cuMemcpyBatchAsync") {
            // SAFETY: the caller's.
            return unsafe { self.submit_batch(stream) };
        }
        for Copy { to, from, bytes } in &self.0 {
            // SAFETY: the caller's.
            unsafe { sys::cuMemcpyAsync(*to, *from, *bytes, stream.cu_stream()) }.result()?;
        }
        Ok(())
    }

    /// With one call of the driver, which cost as much as a copy of some 24 KiB.
    ///
    /// # Safety
    /// As in `submit`, and the driver has `cuMemcpyBatchAsync` (CUDA 12.8).
    unsafe fn submit_batch(&self, stream: &CudaStream) -> Result<(), DriverError> {
        let mut to: Vec<_> = self.0.iter().map(|copy| copy.to).collect();
        let mut from: Vec<_> = self.0.iter().map(|copy| copy.from).collect();
        let mut bytes: Vec<_> = self.0.iter().map(|copy| copy.bytes).collect();
        let nowhere = sys::CUmemLocation_st {
            type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        let mut attributes = sys::CUmemcpyAttributes_st {
            srcAccessOrder: sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
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
                self.0.len(),
                &raw mut attributes,
                &raw mut attributes_from,
                1,
                &raw mut failed,
                stream.cu_stream(),
            )
        };
        outcome.result()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_on_both_sides_are_one_copy() {
        let mut copies = Copies::default();
        copies.add(Copy { to: 100, from: 500, bytes: 10 });
        copies.add(Copy { to: 110, from: 510, bytes: 5 });
        copies.add(Copy { to: 115, from: 600, bytes: 0 });
        copies.add(Copy { to: 115, from: 600, bytes: 5 });
        copies.add(Copy { to: 200, from: 605, bytes: 5 });
        assert_eq!(
            copies.0,
            [
                Copy { to: 100, from: 500, bytes: 15 },
                Copy { to: 115, from: 600, bytes: 5 },
                Copy { to: 200, from: 605, bytes: 5 },
            ]
        );
    }
}
