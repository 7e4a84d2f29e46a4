//! Transfers by layers under way.

use pyo3::prelude::*;
use rackline::memory::{LayerError, LentPublish};
use rackline::{Arrivals, Fetched, LayeredPublished};

use crate::completion::{FetchResult, Pending, PublishResult, wait_in_pieces};
use crate::error::{error, not_done};
use crate::gpu::{needs_stream, stream_at};
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
        Self { arrivals: fetch.arrivals, whole: fetch.completion.into(), shares }
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

/// One of lent memory.
pub(crate) type Publish = LentPublish<Pending<LayeredPublished<ReadBlock>>>;

/// A publish by layers under way.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct LayeredPublish {
    publish: Publish,
    /// The GPU whose memory it is; none for memory of this process.
    gpu: Option<usize>,
}

impl LayeredPublish {
    pub(crate) fn new(publish: Publish, gpu: Option<usize>) -> Self {
        Self { publish, gpu }
    }

    /// The publish, in the process that began it.
    fn publish(&self) -> PyResult<&Publish> {
        self.publish.pending().check_process()?;
        Ok(&self.publish)
    }
}

#[pymethods]
impl LayeredPublish {
    #[pyo3(signature = (layer, *, stream = None))]
    fn layer_ready(&self, py: Python<'_>, layer: usize, stream: Option<u64>) -> PyResult<()> {
        let publish = self.publish()?;
        let ready = py.detach(|| publish.layer_ready(layer, stream.map(stream_at)));
        ready.map_err(|refused| match (refused, self.gpu) {
            (LayerError::NoStream, Some(gpu)) => needs_stream(gpu),
            (refused, _) => error(refused),
        })
    }

    fn finish(&self) -> PyResult<()> {
        self.publish()?.finish();
        Ok(())
    }

    fn abort(&self) -> PyResult<()> {
        self.publish()?.abort();
        Ok(())
    }

    #[pyo3(signature = (timeout_ms = None))]
    fn wait(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<Option<PublishResult>> {
        let publish = self.publish()?;
        if !publish.is_ended() {
            return Err(error("the publish was not ended: call finish() or abort() first"));
        }
        let ended = publish.pending().wait(py, timeout_ms)?;
        let Some(LayeredPublished { report, blocks }) = ended else {
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
