//! GPUs whose memory blocks are published from, and fetched into.
#![expect(unsafe_code, reason = "functions that C calls, and streams known by their handles")]

use std::ffi::c_void;

use rackline::AsyncPool;
use rackline::cuda::{EngineStream, Gpu, PoolReach};
use rackline::memory::Place;

use super::arguments::{answer_at, open_at};
use super::error::{Failure, RacklineError, c_text, keep_message};
use super::handles::{self, Opened};
use super::pool::RacklinePool;

/// A GPU that is open in a pool. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineGpu {
    /// Its number, which is not that of the GPU.
    pub handle: u64,
}

impl Opened for Gpu {
    const KIND: &'static str = "a GPU";
}

/// How a GPU reaches the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum RacklineGpuReach {
    /// Straight: the pool is registered with the driver as memory.
    Registered = 0,
    /// Straight: it is registered as memory of a device.
    RegisteredAsDevice = 1,
    /// Through a pinned buffer, with a copy more by the processor: it could not be registered.
    Bounced = 2,
}

/// What a GPU copied so far, in all sessions of the pool.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineGpuFigures {
    /// Bytes that came into the pool.
    pub stored_bytes: u64,
    /// Bytes that came out of it.
    pub loaded_bytes: u64,
    /// How many of both went through the buffer.
    pub bounced_bytes: u64,
    /// How many of both have a checksum that the GPU computed, of its own memory. Of the others a byte
    /// that changes between the GPU and the pool is not noticed.
    pub gpu_summed_bytes: u64,
    /// Blocks that the driver failed to copy.
    pub failed_payloads: u64,
    /// Bytes of the pool that are registered with the driver now. This and what follows is of all GPUs
    /// that the process has open in the pool.
    pub registered_bytes: u64,
    /// Pieces of the pool that were registered.
    pub registrations: u64,
    /// Those of them that were unregistered again.
    pub unregistrations: u64,
    /// Pieces that the driver refused to register: blocks there go through the buffer.
    pub refused_registrations: u64,
    /// Registrations above the limit: transfers under way needed more than that.
    pub registrations_over_limit: u64,
    /// Nanoseconds that threads spent to register and to unregister, with the first touch of pages.
    pub registering_ns: u64,
}

/// Opens GPU number `number`, as CUDA counts in this process, for blocks in its memory, or finds it
/// open. Open it once, for all sessions of the pool. Pieces of the pool are registered with the driver
/// when they are used. With `RACKLINE_CUDA_REGISTER=at-start` in the environment as many as the limit
/// allows are registered here, which takes minutes for a large pool. The GPU stays open until the pool
/// is closed.
///
/// The CUDA driver (libcuda.so) is loaded by the first call. Without a driver, or without that GPU,
/// the error is `RACKLINE_ERROR_GPU`.
///
/// # Safety
/// `gpu` is null or points to a handle that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_gpu_open(
    pool: RacklinePool,
    number: u32,
    gpu: *mut RacklineGpu,
) -> RacklineError {
    let open = || Ok(handles::get::<AsyncPool>(pool.handle)?.gpu(number as usize)?);
    // SAFETY: by the caller's promise.
    unsafe { open_at(gpu.cast(), "the place for the GPU", open) }
}

/// How the GPU reaches the pool. When it uses a buffer, `rackline_error_message` says why.
///
/// # Safety
/// `reach` is null or points to a value that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_gpu_reach(
    gpu: RacklineGpu,
    reach: *mut RacklineGpuReach,
) -> RacklineError {
    let reach_of = |gpu: &Gpu| {
        if let Some(reason) = gpu.reach().bounced_because() {
            keep_message(c_text(reason).into());
        }
        Ok(match gpu.reach() {
            PoolReach::Registered => RacklineGpuReach::Registered,
            PoolReach::Bounced { .. } => RacklineGpuReach::Bounced,
            // The only other one: `tests/variants.rs` fails when there are more.
            _ => RacklineGpuReach::RegisteredAsDevice,
        })
    };
    // SAFETY: by the caller's promise.
    unsafe { answer_at(reach, "the place for the reach", gpu.handle, reach_of) }
}

/// What the GPU copied so far; also after the pool was closed.
///
/// # Safety
/// `figures` is null or points to figures that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_gpu_figures(
    gpu: RacklineGpu,
    figures: *mut RacklineGpuFigures,
) -> RacklineError {
    let figures_of = |gpu: &Gpu| {
        let copied = gpu.figures();
        Ok(RacklineGpuFigures {
            stored_bytes: copied.stored_bytes,
            loaded_bytes: copied.loaded_bytes,
            bounced_bytes: copied.bounced_bytes,
            gpu_summed_bytes: copied.gpu_summed_bytes,
            failed_payloads: copied.failed_payloads,
            registered_bytes: copied.registered_bytes,
            registrations: copied.registrations,
            unregistrations: copied.unregistrations,
            refused_registrations: copied.refused_registrations,
            registrations_over_limit: copied.registrations_over_limit,
            registering_ns: copied.registering_ns,
        })
    };
    // SAFETY: by the caller's promise.
    unsafe { answer_at(figures, "the place for the figures", gpu.handle, figures_of) }
}

/// Frees the handle of a GPU. Its transfers under way continue, and the GPU stays open. A handle
/// that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_gpu_free(gpu: RacklineGpu) -> RacklineError {
    handles::free::<Gpu>(gpu.handle, |_| ())
}

/// Where the blocks of a transfer are, as C names it.
#[derive(Clone, Copy)]
pub(super) enum At {
    Process,
    /// For a publish by layers: each layer comes with its stream.
    Gpu(RacklineGpu),
    /// Behind the work of a stream.
    GpuBehind(RacklineGpu, *mut c_void),
}

impl At {
    /// The place.
    ///
    /// # Safety
    /// As [`stream_at`].
    pub(super) unsafe fn place(self) -> Result<Place, Failure> {
        let (gpu, stream) = match self {
            Self::Process => return Ok(Place::Process),
            Self::Gpu(gpu) => (gpu, None),
            // SAFETY: by the caller's promise.
            Self::GpuBehind(gpu, stream) => (gpu, Some(unsafe { stream_at(stream) })),
        };
        Ok(Place::Gpu { gpu: handles::get::<Gpu>(gpu.handle)?.number(), stream })
    }
}

/// The stream with this handle.
///
/// # Safety
/// It is a stream of the primary context of the GPU, during the call that takes what is returned.
pub(super) unsafe fn stream_at(stream: *mut c_void) -> EngineStream<'static> {
    // SAFETY: by the caller's promise; nobody uses it after that call.
    unsafe { EngineStream::new(stream.expose_provenance() as u64) }
}
