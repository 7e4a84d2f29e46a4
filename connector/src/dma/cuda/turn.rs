//! A thread's turn with the GPU.
#![expect(unsafe_code, reason = "what is current is state of the driver, for each thread")]

use cudarc::driver::sys::{CUstreamCaptureMode_enum as CaptureMode, CUstreamCaptureStatus_enum};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};

use super::driver::reason;

/// While it lasts, the GPU's context is the current one of this thread, and the thread takes no part
/// in the capture of a graph by another one, which waits and allocations would break off. Both are as
/// they were when it ends: the engine of the thread may be at work with another GPU.
#[derive(Debug)]
pub(super) struct Turn {
    context: sys::CUcontext,
    mode: sys::CUstreamCaptureMode,
}

impl Turn {
    /// # Errors
    /// The driver's.
    pub(super) fn begin(context: &CudaContext) -> Result<Self, DriverError> {
        let before = result::ctx::get_current()?.unwrap_or(std::ptr::null_mut());
        // SAFETY: the context lives as long as `context`, which outlives the turn of whoever has it.
        unsafe { result::ctx::set_current(context.cu_ctx()) }?;
        let mut mode = CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: it exchanges the value for what was in force before.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        let turn = Self { context: before, mode };
        exchanged.result().map(|()| turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.mode) };
        // SAFETY: it was current before; null makes none current.
        let _ = unsafe { sys::cuCtxSetCurrent(self.context) };
    }
}

/// Whether what `stream` is given becomes part of a graph, and is done who knows when.
pub(super) fn is_capturing(stream: &CudaStream) -> Result<bool, DriverError> {
    // SAFETY: the stream is alive.
    let status = unsafe { result::stream::is_capturing(stream.cu_stream()) }?;
    Ok(status != CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Waits until `stream` has done all it was given.
///
/// # Errors
/// The driver's; its work may be under way still.
pub(super) fn wait_for(stream: &CudaStream) -> Result<(), DriverError> {
    // Not by the method of the stream: that gives up, without waiting, on an error that something
    // else in this context left behind.
    // SAFETY: the stream is alive.
    unsafe { result::stream::synchronize(stream.cu_stream()) }
}

/// At its end no copy of the stream is under way any more, also none of a job that failed: the
/// space in the pool may be somebody else's then, and the memory is the engine's again.
#[derive(Debug)]
pub(super) struct Settled<'s>(pub(super) &'s CudaStream);

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        let gone = DriverError(sys::CUresult::CUDA_ERROR_DEINITIALIZED);
        match wait_for(self.0) {
            Ok(()) => {}
            // The process is ending, and what it had under way has ended.
            Err(error) if error == gone => {}
            Err(error) => {
                // The context is broken, and its process can do nothing with this GPU any more. What
                // it has under way ends with it; anything else could be wrong bytes in a block.
                eprintln!(
                    "rackline: the GPU cannot be waited for ({}), and may still write into the pool \
                     or into memory of the engine: this process ends here",
                    reason(error)
                );
                std::process::abort();
            }
        }
    }
}
