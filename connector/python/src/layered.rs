//! Transfers by layers under way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use rackline::cuda::CudaDma;
use rackline::{Arrivals, Completion, Fetched, LayeredPublished, ProcessMark, SubmitErrorKind};

use crate::completion::{FetchResult, Pending, PublishResult, wait_in_pieces};
use crate::error::{error, not_done, refused_because};
use crate::gpu::gpu_and_stream;
use crate::memory::{ReadBlock, WriteBlock};

/// A fetch by layers under way.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct LayeredFetch {
    arrivals: Arrivals,
    whole: Pending<Fetched<WriteBlock>>,
    /// How many sessions take turns in it.
    shares: usize,
}

impl LayeredFetch {
    pub(crate) fn new(fetch: rackline::LayeredFetch<WriteBlock>, shares: usize) -> Self {
        Self { arrivals: fetch.arrivals, whole: Pending::new(fetch.completion), shares }
    }
}

#[pymethods]
impl LayeredFetch {
    #[pyo3(signature = (layer, timeout_ms = None))]
    fn wait_layer(&self, py: Python<'_>, layer: usize, timeout_ms: Option<u64>) -> PyResult<bool> {
        self.whole.check_process()?;
        let arrived = wait_in_pieces(py, timeout_ms, |now| {
            let arrived = self.arrivals.wait_timeout(layer, now).map_err(error)?;
            Ok(arrived.then_some(()))
        })?;
        Ok(arrived.is_some())
    }

    #[pyo3(signature = (timeout_ms = None))]
    fn wait(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<Option<FetchResult>> {
        let fetched = self.whole.wait(py, timeout_ms)?;
        fetched.map(|fetched| FetchResult::of(fetched, self.shares)).transpose()
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Option<FetchResult>> {
        self.wait(py, Some(0))
    }
}

/// A publish by layers under way.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct LayeredPublish {
    stage: Mutex<Stage>,
    layers: usize,
    process: ProcessMark,
}

enum Stage {
    Open(Open),
    Ended(Arc<Pending<LayeredPublished<ReadBlock>>>),
    /// While one becomes the other.
    Between,
}

/// One that was not ended, of memory of this process or of the GPU with that number.
pub(crate) enum Open {
    Processor(rackline::LayeredPublish<ReadBlock>),
    Gpu(usize, rackline::LayeredPublish<ReadBlock, CudaDma>),
}

impl Open {
    /// Says that a layer is ready, with the stream that computes it where that is a GPU's.
    fn layer_ready(&self, layer: usize, stream: Option<u64>) -> PyResult<()> {
        match self {
            Self::Processor(publish) => {
                gpu_and_stream(None, stream)?;
                publish.layer_ready(layer);
            }
            Self::Gpu(gpu, publish) => {
                if let Some((_, stream)) = gpu_and_stream(Some(*gpu), stream)? {
                    publish.layer_ready(layer, stream).map_err(error)?;
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Completion<LayeredPublished<ReadBlock>> {
        match self {
            Self::Processor(publish) => publish.finish(),
            Self::Gpu(_, publish) => publish.finish(),
        }
    }

    fn abort(self) -> Completion<LayeredPublished<ReadBlock>> {
        match self {
            Self::Processor(publish) => publish.abort(),
            Self::Gpu(_, publish) => publish.abort(),
        }
    }

    fn is_aborted(&self) -> bool {
        match self {
            Self::Processor(publish) => publish.is_aborted(),
            Self::Gpu(_, publish) => publish.is_aborted(),
        }
    }
}

impl LayeredPublish {
    pub(crate) fn new(publish: Open, layers: usize) -> Self {
        Self { stage: Mutex::new(Stage::Open(publish)), layers, process: ProcessMark::of_this() }
    }

    /// The stage: held for a moment only.
    fn stage(&self) -> PyResult<MutexGuard<'_, Stage>> {
        if !self.process.is_of_this() {
            return Err(refused_because(SubmitErrorKind::Forked));
        }
        Ok(self.stage.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends it, if it was not ended before.
    fn end(
        &self,
        how: impl FnOnce(Open) -> Completion<LayeredPublished<ReadBlock>>,
    ) -> PyResult<()> {
        let mut stage = self.stage()?;
        *stage = match std::mem::replace(&mut *stage, Stage::Between) {
            Stage::Open(publish) => Stage::Ended(Arc::new(Pending::new(how(publish)))),
            ended => ended,
        };
        Ok(())
    }
}

#[pymethods]
impl LayeredPublish {
    #[pyo3(signature = (layer, *, stream = None))]
    fn layer_ready(&self, py: Python<'_>, layer: usize, stream: Option<u64>) -> PyResult<()> {
        if layer >= self.layers {
            return Err(error(format!("there is no layer {layer}: a block has {}", self.layers)));
        }
        py.detach(|| match &*self.stage()? {
            Stage::Open(publish) => publish.layer_ready(layer, stream),
            Stage::Ended(_) | Stage::Between => Ok(()),
        })
    }

    fn finish(&self) -> PyResult<()> {
        self.end(Open::finish)
    }

    fn abort(&self) -> PyResult<()> {
        self.end(Open::abort)
    }

    #[pyo3(signature = (timeout_ms = None))]
    fn wait(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<Option<PublishResult>> {
        if matches!(&*self.stage()?, Stage::Open(publish) if publish.is_aborted()) {
            // By closing the pool, or because the copy of a layer cannot come after its stream.
            self.abort()?;
        }
        let stage = self.stage()?;
        let Stage::Ended(pending) = &*stage else {
            return Err(error("the publish was not ended: call finish() or abort() first"));
        };
        let pending = Arc::clone(pending);
        drop(stage);
        let Some(LayeredPublished { report, blocks }) = pending.wait(py, timeout_ms)? else {
            return Ok(None);
        };
        let result = match report.map_err(not_done)? {
            Some(report) => PublishResult::of(&report),
            None => PublishResult::aborted(blocks.len()),
        };
        Ok(Some(result))
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Option<PublishResult>> {
        self.wait(py, Some(0))
    }
}
