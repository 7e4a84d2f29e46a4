//! Memory and streams of a GPU, as an engine names them.
#![expect(unsafe_code, reason = "who names the memory vouches for it")]

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};

use crate::dma::Part;

/// Memory of a GPU that a payload is gathered from: [`CudaDma::source`](super::CudaDma::source).
#[derive(Clone, Copy, Debug)]
pub struct DeviceSource<'a> {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) memory: PhantomData<&'a u8>,
}

/// Memory of a GPU that a payload is scattered into:
/// [`CudaDma::destination`](super::CudaDma::destination).
#[derive(Debug)]
pub struct DeviceDestination<'a> {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) memory: PhantomData<&'a mut u8>,
}

impl DeviceSource<'_> {
    /// Memory at `address`, as `data_ptr()` of a tensor says it.
    ///
    /// # Safety
    /// For the life that the caller gives it, those bytes are memory of the GPU that the
    /// [`CudaDma`](super::CudaDma) that copies was made for, and nobody writes them, except for
    /// work of a stream that [`after`](super::CudaDma::after) of that handle was called with since.
    #[must_use]
    pub unsafe fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes, memory: PhantomData }
    }
}

impl DeviceDestination<'_> {
    /// Memory at `address`, as `data_ptr()` of a tensor says it.
    ///
    /// # Safety
    /// For the life that the caller gives it, those bytes are memory of the GPU that the
    /// [`CudaDma`](super::CudaDma) that copies was made for, and nobody reads or writes them,
    /// except for work of a stream that [`after`](super::CudaDma::after) of that handle was called
    /// with since.
    #[must_use]
    pub unsafe fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes, memory: PhantomData }
    }
}

impl Part for DeviceSource<'_> {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Part for DeviceDestination<'_> {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A stream on which an engine computes.
#[derive(Clone, Copy, Debug)]
pub struct EngineStream<'a> {
    handle: u64,
    stream: PhantomData<&'a CudaStream>,
}

impl EngineStream<'_> {
    /// The stream with this handle (`torch.cuda.current_stream().cuda_stream`; 0 is the default
    /// stream).
    ///
    /// # Safety
    /// For the life that the caller gives it, it is a stream of the primary context of the GPU that
    /// the [`CudaDma`](super::CudaDma) was made for.
    #[must_use]
    pub unsafe fn new(handle: u64) -> Self {
        Self { handle, stream: PhantomData }
    }

    /// The stream, of the GPU with this context, for calls of the driver.
    pub(super) fn borrowed(self, context: &Arc<CudaContext>) -> Arc<CudaStream> {
        let handle = usize::try_from(self.handle).expect("a handle is an address");
        let handle: sys::CUstream = std::ptr::with_exposed_provenance_mut(handle);
        // SAFETY: who named the stream vouches that it lives, for the time of the name.
        unsafe { context.wrap_borrowed_stream(handle) }
    }
}

impl<'a> From<&'a CudaStream> for EngineStream<'a> {
    fn from(stream: &'a CudaStream) -> Self {
        Self { handle: stream.cu_stream().expose_provenance() as u64, stream: PhantomData }
    }
}
