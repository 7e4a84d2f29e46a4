//! Sessions.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackline::memory::Access;
use rackline::{AsyncSession, NewBlock};

use crate::completion::{Fetch, Lookup, Presence, Publish};
use crate::error::{error, number, refused, refused_by_gpu};
use crate::gpu::gpu_and_stream;
use crate::layered::{LayeredFetch, LayeredPublish, Open};
use crate::loan::Lent;
use crate::memory::Blocks as Place;
use crate::prefix::Blocks;
use crate::records::Hashes;

/// A way to the blocks of one model and namespace, for any thread. No call waits.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Session {
    session: AsyncSession,
}

impl Session {
    pub(crate) fn new(session: AsyncSession) -> Self {
        Self { session }
    }

    /// Refuses memory whose blocks are not those of the session.
    fn check(&self, lent: &Lent, hashes: usize) -> PyResult<()> {
        let (numbers, bytes) = (lent.count(), lent.block_bytes());
        let wanted = self.session.options().block_bytes();
        if bytes != wanted {
            return Err(error(format!(
                "blocks of {bytes} bytes in memory, and of {wanted} in the session"
            )));
        }
        if hashes != numbers {
            return Err(error(format!("{hashes} blocks, and {numbers} places in memory")));
        }
        Ok(())
    }
}

#[pymethods]
impl Session {
    /// Length of every block in bytes.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.session.options().block_bytes()
    }

    /// What tells the keys of its blocks from those of other sessions.
    #[getter]
    fn key_space<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.session.options().key_space_bytes())
    }

    #[pyo3(signature = (hashes, *, hold = false))]
    fn lookup(&self, hashes: Hashes, hold: bool) -> PyResult<Lookup> {
        if hold {
            let held = self.session.lookup_and_hold(hashes).map_err(refused)?;
            Ok(Lookup::held(held, self.session.releaser()))
        } else {
            Ok(Lookup::plain(self.session.lookup(hashes).map_err(refused)?))
        }
    }

    fn present(&self, hashes: Hashes) -> PyResult<Presence> {
        Ok(Presence::new(self.session.present(hashes).map_err(refused)?))
    }

    #[pyo3(signature = (hashes, first_depth, memory, block_ids, *, stream = None))]
    fn publish(
        &self,
        py: Python<'_>,
        hashes: Hashes,
        first_depth: &Bound<'_, PyAny>,
        memory: Place<'_>,
        block_ids: &Bound<'_, PyAny>,
        stream: Option<u64>,
    ) -> PyResult<Publish> {
        let first_depth: u32 = number("first_depth", first_depth)?;
        let (lent, cut) = memory.lent(py, block_ids, Access::Read)?;
        let gpu = gpu_and_stream(lent.of_gpu(), stream)?;
        self.check(&lent, hashes.as_ref().len())?;
        if first_depth.checked_add(u32::try_from(lent.count())?).is_none() {
            return Err(error("a prompt of more than 4 billion blocks"));
        }
        let blocks =
            NewBlock::chain(first_depth, hashes.as_ref().iter().copied(), lent.sources(cut)?);
        let publish = match gpu {
            None => self.session.publish(blocks),
            Some((gpu, stream)) => {
                let session = py.detach(|| self.session.on_gpu(gpu, stream));
                session.map_err(refused_by_gpu)?.publish(blocks)
            }
        };
        publish.map(Publish::new).map_err(refused)
    }

    #[pyo3(signature = (blocks, memory, block_ids, *, stream = None))]
    fn fetch(
        &self,
        py: Python<'_>,
        blocks: Blocks<'_>,
        memory: Place<'_>,
        block_ids: &Bound<'_, PyAny>,
        stream: Option<u64>,
    ) -> PyResult<Fetch> {
        let blocks = blocks.into_matched()?;
        let (lent, cut) = memory.lent(py, block_ids, Access::Write)?;
        let gpu = gpu_and_stream(lent.of_gpu(), stream)?;
        self.check(&lent, blocks.len())?;
        let destinations = lent.destinations(cut)?;
        let fetch = match gpu {
            None => self.session.fetch(blocks, destinations),
            Some((gpu, stream)) => {
                let session = py.detach(|| self.session.on_gpu(gpu, stream));
                session.map_err(refused_by_gpu)?.fetch(blocks, destinations)
            }
        };
        fetch.map(Fetch::new).map_err(refused)
    }

    #[pyo3(signature = (blocks, memory, block_ids, *, stream = None))]
    fn fetch_by_layers(
        &self,
        py: Python<'_>,
        blocks: Blocks<'_>,
        memory: Place<'_>,
        block_ids: &Bound<'_, PyAny>,
        stream: Option<u64>,
    ) -> PyResult<LayeredFetch> {
        let blocks = blocks.into_matched()?;
        let (lent, cut) = memory.lent(py, block_ids, Access::Write)?;
        let gpu = gpu_and_stream(lent.of_gpu(), stream)?;
        self.check(&lent, blocks.len())?;
        let (session, to) = (&self.session, lent.destinations(cut)?);
        let layers = Arc::new(lent.layers());
        let fetch = match gpu {
            None => session.fetch_by_layers(blocks, to, layers),
            Some((gpu, stream)) => {
                let session = py.detach(|| session.on_gpu(gpu, stream));
                session.map_err(refused_by_gpu)?.fetch_by_layers(blocks, to, layers)
            }
        };
        fetch.map(LayeredFetch::new).map_err(refused)
    }

    fn publish_by_layers(
        &self,
        py: Python<'_>,
        hashes: Hashes,
        depths: Vec<u32>,
        memory: Place<'_>,
        block_ids: &Bound<'_, PyAny>,
    ) -> PyResult<LayeredPublish> {
        let (lent, cut) = memory.lent(py, block_ids, Access::Read)?;
        self.check(&lent, hashes.as_ref().len())?;
        if depths.len() != lent.count() {
            return Err(error(format!("{} blocks, and {} depths", lent.count(), depths.len())));
        }
        let bytes = lent.sources(cut)?;
        let block = |((depth, hash), bytes)| NewBlock { hash, depth, bytes };
        let blocks =
            depths.into_iter().zip(hashes.as_ref().iter().copied()).zip(bytes).map(block).collect();
        let layers = Arc::new(lent.layers());
        let count = layers.count();
        let publish = match lent.of_gpu() {
            None => {
                let publish = self.session.publish_by_layers(blocks, layers);
                Open::Processor(publish.map_err(refused)?)
            }
            Some(gpu) => {
                let session = self.session.on_gpu_by_layers(gpu).map_err(refused_by_gpu)?;
                Open::Gpu(gpu, session.publish_by_layers(blocks, layers).map_err(refused)?)
            }
        };
        Ok(LayeredPublish::new(publish, count))
    }
}
