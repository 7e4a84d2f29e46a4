//! Transfers that a session begins, by the processor or by a GPU.

use std::sync::Arc;

use pyo3::prelude::*;
use rackline::cuda::EngineStream;
use rackline::{AsyncSession, Layers, MatchedBlock, NewBlock};

use crate::completion::{Fetch, Publish};
use crate::error::{refused, refused_by_gpu};
use crate::layered::{LayeredFetch, LayeredPublish, Open};
use crate::memory::{ReadBlock, WriteBlock};

/// The GPU that copies, with the stream that it copies after; `None` for the processor.
type OnGpu = Option<(usize, EngineStream<'static>)>;

/// Begins what `call` begins. A session whose calling thread works does so without Python's lock
/// (PYTHON-Y1).
pub(crate) fn begin<T: Send>(
    py: Python<'_>,
    session: &AsyncSession,
    call: impl FnOnce(&AsyncSession) -> T + Send,
) -> T {
    if session.is_by_caller() { py.detach(|| call(session)) } else { call(session) }
}

pub(crate) fn publish(
    py: Python<'_>,
    session: &AsyncSession,
    blocks: Vec<NewBlock<ReadBlock>>,
    gpu: OnGpu,
) -> PyResult<Publish> {
    let publish = match gpu {
        None => begin(py, session, |session| session.publish(blocks)),
        Some((gpu, stream)) => {
            let session = py.detach(|| session.on_gpu(gpu, stream));
            session.map_err(refused_by_gpu)?.publish(blocks)
        }
    };
    let chunk_timeout = session.options().chunk_timeout();
    publish.map(|publish| Publish::new(publish, chunk_timeout)).map_err(refused)
}

/// Of `shares` sessions, in turns.
pub(crate) fn fetch(
    py: Python<'_>,
    session: &AsyncSession,
    shares: usize,
    blocks: Vec<MatchedBlock>,
    to: Vec<WriteBlock>,
    gpu: OnGpu,
) -> PyResult<Fetch> {
    let fetch = match gpu {
        None => begin(py, session, |session| session.fetch(blocks, to)),
        Some((gpu, stream)) => {
            let session = py.detach(|| session.on_gpu(gpu, stream));
            session.map_err(refused_by_gpu)?.fetch(blocks, to)
        }
    };
    fetch.map(|fetch| Fetch::new(fetch, shares)).map_err(refused)
}

/// Of `shares` sessions, in turns.
pub(crate) fn fetch_by_layers(
    py: Python<'_>,
    session: &AsyncSession,
    shares: usize,
    blocks: Vec<MatchedBlock>,
    to: Vec<WriteBlock>,
    layers: Layers,
    gpu: OnGpu,
) -> PyResult<LayeredFetch> {
    let layers = Arc::new(layers);
    let fetch = match gpu {
        None => session.fetch_by_layers(blocks, to, layers),
        Some((gpu, stream)) => {
            let session = py.detach(|| session.on_gpu(gpu, stream));
            session.map_err(refused_by_gpu)?.fetch_by_layers(blocks, to, layers)
        }
    };
    fetch.map(|fetch| LayeredFetch::new(fetch, shares)).map_err(refused)
}

pub(crate) fn publish_by_layers(
    session: &AsyncSession,
    blocks: Vec<NewBlock<ReadBlock>>,
    layers: Layers,
    gpu: Option<usize>,
) -> PyResult<LayeredPublish> {
    let (layers, count) = (Arc::new(layers.clone()), layers.count());
    let publish = match gpu {
        None => Open::Processor(session.publish_by_layers(blocks, layers).map_err(refused)?),
        Some(gpu) => {
            let session = session.on_gpu_by_layers(gpu).map_err(refused_by_gpu)?;
            Open::Gpu(gpu, session.publish_by_layers(blocks, layers).map_err(refused)?)
        }
    };
    Ok(LayeredPublish::new(publish, count))
}
