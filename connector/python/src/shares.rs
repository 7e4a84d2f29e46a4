//! Sessions for the cuts of the same blocks.

use pyo3::prelude::*;

use crate::completion::{Fetch, Publish};
use crate::error::error;
use crate::layered::{LayeredFetch, LayeredPublish};
use crate::listed::Listed;
use crate::memory::BlockMemory;
use crate::prefix::Blocks;
use crate::records::Hashes;
use crate::session::Session;
use crate::transfers::Sessions;

/// Most sessions that have a cut each.
const SESSIONS_MAX: usize = 1 << 12;

/// Sessions of which each has a cut of the same blocks.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Shares(Sessions);

#[pymethods]
impl Shares {
    #[new]
    fn new(sessions: Listed<PyRef<'_, Session>, SESSIONS_MAX>) -> PyResult<Self> {
        let keys = sessions.iter().map(|session| session.keys().clone()).collect();
        let sessions: Vec<_> = sessions.iter().map(|session| session.session()).collect();
        let Some((first, others)) = sessions.split_first() else {
            return Err(error("shares of no session: pass one session for each cut"));
        };
        let session = first.together(others).ok_or_else(|| {
            error(
                "the sessions differ in more than their model: open all of them in one pool, with \
                 equal block_bytes, tenant, salt and times",
            )
        })?;
        Ok(Self(Sessions::new(session, keys)))
    }

    fn __len__(&self) -> usize {
        self.0.keys().len()
    }

    #[pyo3(signature = (hashes, first_depth, memory, block_ids, *, stream = None))]
    fn publish(
        &self,
        py: Python<'_>,
        hashes: Hashes,
        first_depth: &Bound<'_, PyAny>,
        memory: &BlockMemory,
        block_ids: Listed<u32>,
        stream: Option<u64>,
    ) -> PyResult<Publish> {
        self.0.publish(py, hashes.as_ref(), first_depth, (memory, &block_ids), stream)
    }

    #[pyo3(signature = (blocks, memory, block_ids, *, stream = None))]
    fn fetch(
        &self,
        py: Python<'_>,
        blocks: Listed<Blocks<'_>, SESSIONS_MAX>,
        memory: &BlockMemory,
        block_ids: Listed<u32>,
        stream: Option<u64>,
    ) -> PyResult<Fetch> {
        self.0.fetch(py, blocks.0, (memory, &block_ids), stream)
    }

    #[pyo3(signature = (blocks, memory, block_ids, *, stream = None))]
    fn fetch_by_layers(
        &self,
        py: Python<'_>,
        blocks: Listed<Blocks<'_>, SESSIONS_MAX>,
        memory: &BlockMemory,
        block_ids: Listed<u32>,
        stream: Option<u64>,
    ) -> PyResult<LayeredFetch> {
        self.0.fetch_by_layers(py, blocks.0, (memory, &block_ids), stream)
    }

    fn publish_by_layers(
        &self,
        py: Python<'_>,
        hashes: Hashes,
        depths: Listed<u32>,
        memory: &BlockMemory,
        block_ids: Listed<u32>,
    ) -> PyResult<LayeredPublish> {
        self.0.publish_by_layers(py, hashes.as_ref(), &depths, (memory, &block_ids))
    }
}
