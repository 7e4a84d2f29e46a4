//! The CUDA driver of this machine, if it has one.
#![expect(unsafe_code, reason = "the driver is a C library that is loaded at run time")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};

/// Why a GPU cannot be used, or did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// No driver is installed.
    #[error(
        "this machine has no CUDA driver (libcuda.so is not found, or cannot be loaded): install \
         the NVIDIA driver, or run without a GPU"
    )]
    Absent,
    /// The driver lacks what this needs.
    #[error(
        "the CUDA driver is too old and lacks {symbol}: install a driver for CUDA 11.2 or newer"
    )]
    TooOld {
        /// The function that is missing.
        symbol: &'static str,
    },
    /// No such GPU.
    #[error("there is no GPU number {gpu}: this machine has {gpus}, numbered from 0")]
    NoSuchGpu {
        /// The number asked for.
        gpu: usize,
        /// How many there are.
        gpus: usize,
    },
    /// A variable of the environment has a value that it cannot have.
    #[error("{name}={value} is not known: set it to {} or {}, or unset it", .values[0], .values[1])]
    Setting {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        values: [&'static str; 2],
    },
    /// The stream's work is being captured into a graph: it is done who knows when. The default
    /// stream takes no work either while another one is captured that waits for it (a blocking
    /// one).
    #[error(
        "the stream is being captured into a CUDA graph, or is the default stream during such a \
         capture: pass the stream after the capture, when the graph was launched"
    )]
    Capturing,
    /// The driver refused.
    #[error("{what}: the CUDA driver says {reason}")]
    Driver {
        /// What was to be done.
        what: &'static str,
        /// The driver's reason.
        reason: String,
    },
}

impl CudaError {
    /// What the driver said of `what`.
    pub(super) fn of(what: &'static str, error: DriverError) -> Self {
        Self::Driver { what, reason: reason(error) }
    }
}

/// Name and description of an error, in the driver's own words.
pub(super) fn reason(error: DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, _>| {
        text.map_or_else(|_: DriverError| "?".into(), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}

/// What is called without asking again: a function that is missing would be a panic.
const SYMBOLS: [&str; 34] = [
    "cuCtxGetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemFreeHost",
    "cuMemGetAddressRange_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyAsync",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// How many GPUs this machine has. 0 when the driver is there and no GPU is.
///
/// # Errors
/// [`CudaError`]; `Absent` on a machine without a driver.
pub fn gpus() -> Result<usize, CudaError> {
    // SAFETY: it loads the library, as every function of the driver would, and runs its
    // initialisers: who installed it as libcuda.so vouches for it.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Absent);
    }
    if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| !has(symbol)) {
        return Err(CudaError::TooOld { symbol });
    }
    let counted = result::init().and_then(|()| result::device::get_count());
    match counted {
        Ok(gpus) => Ok(usize::try_from(gpus).unwrap_or(0)),
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(CudaError::of("cannot count the GPUs", error)),
    }
}

/// Whether the driver, which is there, has a function.
pub(super) fn has(symbol: &str) -> bool {
    // SAFETY: the library was found before, and is not unloaded.
    let library = unsafe { sys::culib() };
    // SAFETY: only its presence is asked for: it is not called as this type.
    unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_ok()
}

/// Whether there is such a GPU.
pub(super) fn find(gpu: usize) -> Result<(), CudaError> {
    let gpus = gpus()?;
    if gpu < gpus { Ok(()) } else { Err(CudaError::NoSuchGpu { gpu, gpus }) }
}

/// The primary context of a GPU that was found, which frameworks in this process share. It is the
/// current one of this thread afterwards.
pub(super) fn context(gpu: usize) -> Result<Arc<CudaContext>, CudaError> {
    CudaContext::new(gpu).map_err(|error| CudaError::of("cannot open the GPU", error))
}
