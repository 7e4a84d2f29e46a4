//! A thread's turn with the GPU.
#![expect(unsafe_code, reason = "what is current is state of the driver, for each thread")]

use std::ops::Deref;

use cudarc::driver::sys::{CUstreamCaptureMode_enum as CaptureMode, CUstreamCaptureStatus_enum};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};

/// While it lasts, the GPU's context is the current one of this thread, and the thread takes no
/// part in the capture of a graph by another one, which waits and allocations would break off. Both
/// are as they were when it ends: the engine of the thread may be at work with another GPU.
#[derive(Debug)]
pub(super) struct Turn {
    before: sys::CUcontext,
    mode: sys::CUstreamCaptureMode,
}

impl Turn {
    /// # Errors
    /// The driver's.
    pub(super) fn begin(context: &CudaContext) -> Result<Self, DriverError> {
        let turn = Self::around()?;
        // SAFETY: the context lives as long as `context`, which outlives every turn that has it.
        unsafe { result::ctx::set_current(context.cu_ctx()) }?;
        Ok(turn)
    }

    /// A turn around what makes a context the current one by itself, as the beginning and the end
    /// of everything of `cudarc` do. The driver was found.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn around() -> Result<Self, DriverError> {
        let before = result::ctx::get_current()?.unwrap_or(std::ptr::null_mut());
        let mut mode = CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: it exchanges the value for what was in force before.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) }.result()?;
        Ok(Self { before, mode })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.mode) };
        // SAFETY: it was current before; null makes none current.
        let _ = unsafe { sys::cuCtxSetCurrent(self.before) };
    }
}

/// What ends in a turn of its own: the end of streams, events and pinned memory, and of the last
/// share of their context, leaves that as the current one of the thread, also when it is there no
/// more.
#[derive(Debug)]
pub(super) struct EndsInTurn<T> {
    /// There until it is dropped.
    held: Option<T>,
}

impl<T> EndsInTurn<T> {
    pub(super) fn new(held: T) -> Self {
        Self { held: Some(held) }
    }
}

impl<T> Deref for EndsInTurn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> Drop for EndsInTurn<T> {
    fn drop(&mut self) {
        // Where there is none the driver has ended with the process, and nothing is current.
        let _turn = Turn::around();
        drop(self.held.take());
    }
}

/// Whether what `stream` is given becomes part of a graph, and is done who knows when. Of the
/// default stream also when it cannot be given anything, as another one is captured that waits for
/// it.
pub(super) fn is_capturing(stream: &CudaStream) -> Result<bool, DriverError> {
    let beside_a_capture = DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    // SAFETY: the stream is alive.
    match unsafe { result::stream::is_capturing(stream.cu_stream()) } {
        Ok(status) => Ok(status != CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE),
        Err(error) if error == beside_a_capture => Ok(true),
        Err(error) => Err(error),
    }
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

/// Threads that wait for such an event for long sleep: a forward of the engine takes tens of
/// milliseconds.
pub(super) const SLEEPING: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC;

/// How often an event is asked for before the thread sleeps: about as long as it takes to copy two
/// megabytes. To be woken takes as long.
const POLLS: usize = 32;
/// Between two, as each takes a lock of the driver that others need.
const PAUSES: usize = 32;

/// Waits for `event`, which was recorded as [`SLEEPING`].
///
/// # Errors
/// The driver's; the work may be under way still.
pub(super) fn wait_for_event(event: &CudaEvent) -> Result<(), DriverError> {
    for _ in 0..POLLS {
        if event.try_is_complete()? {
            return Ok(());
        }
        (0..PAUSES).for_each(|_| std::hint::spin_loop());
    }
    event.synchronize()
}
