//! GPUs, and streams of engines.
#![expect(unsafe_code, reason = "a stream is known by its handle")]

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rackline::cuda::EngineStream;
use rackline::memory::{LayerError, Place};

use crate::error::error;

/// A GPU that reaches the pool.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Gpu {
    gpu: rackline::cuda::Gpu,
}

impl Gpu {
    pub(crate) fn new(gpu: rackline::cuda::Gpu) -> Self {
        Self { gpu }
    }
}

#[pymethods]
impl Gpu {
    /// Its number.
    #[getter]
    fn number(&self) -> usize {
        self.gpu.number()
    }

    /// How it reaches the pool.
    #[getter]
    fn reach(&self) -> &'static str {
        self.gpu.reach().label()
    }

    /// Why it reaches the pool only through a buffer; `None` where it does not.
    #[getter]
    fn bounced_because(&self) -> Option<&str> {
        self.gpu.reach().bounced_because()
    }

    /// Who computes the checksums of blocks in its memory.
    #[getter]
    fn summing(&self) -> &'static str {
        self.gpu.summing().label()
    }

    /// Why the processor computes them; `None` where the GPU does.
    #[getter]
    fn summed_by_cpu_because(&self) -> Option<&str> {
        self.gpu.summing().cpu_because()
    }

    /// What was copied and registered so far, by names.
    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let figures = self.gpu.figures();
        let counters = PyDict::new(py);
        counters.set_item("stored_bytes", figures.stored_bytes)?;
        counters.set_item("loaded_bytes", figures.loaded_bytes)?;
        counters.set_item("bounced_bytes", figures.bounced_bytes)?;
        counters.set_item("gpu_summed_bytes", figures.gpu_summed_bytes)?;
        counters.set_item("failed_payloads", figures.failed_payloads)?;
        counters.set_item("registered_bytes", figures.registered_bytes)?;
        counters.set_item("registrations", figures.registrations)?;
        counters.set_item("unregistrations", figures.unregistrations)?;
        counters.set_item("refused_registrations", figures.refused_registrations)?;
        counters.set_item("registrations_over_limit", figures.registrations_over_limit)?;
        counters.set_item("registering_ns", figures.registering_ns)?;
        Ok(counters)
    }
}

/// Where the blocks of a transfer are, and the stream that its copies come after.
pub(crate) fn place(gpu: Option<usize>, stream: Option<u64>) -> PyResult<Place> {
    match (gpu, stream) {
        (None, None) => Ok(Place::Process),
        (None, Some(_)) => Err(error(LayerError::OfProcess)),
        (Some(gpu), None) => Err(needs_stream(gpu)),
        (Some(gpu), Some(stream)) => Ok(Place::Gpu { gpu, stream: Some(stream_at(stream)) }),
    }
}

/// The exception for memory of a GPU without a stream.
pub(crate) fn needs_stream(gpu: usize) -> PyErr {
    error(format!(
        "memory of GPU {gpu} is used by a stream: give its handle, \
         stream=torch.cuda.current_stream({gpu}).cuda_stream"
    ))
}

/// The stream with this handle.
pub(crate) fn stream_at(handle: u64) -> EngineStream<'static> {
    // SAFETY: who calls vouches that this is a stream of the GPU of the memory, and it is used during
    // the call only.
    unsafe { EngineStream::new(handle) }
}
