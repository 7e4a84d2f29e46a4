//! Sessions.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackline::{AsyncSession, NewBlock};

use crate::completion::{Fetch, Lookup, Presence, Publish};
use crate::error::{error, number, refused, refused_by_gpu};
use crate::gpu::gpu_and_stream;
use crate::layered::{LayeredFetch, LayeredPublish, Open};
use crate::memory::BlockMemory;
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
    fn check(&self, memory: &BlockMemory, hashes: usize, numbers: usize) -> PyResult<()> {
        let (bytes, wanted) = (memory.bytes(), self.session.options().block_bytes());
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
        memory: &BlockMemory,
        block_ids: Vec<u32>,
        stream: Option<u64>,
    ) -> PyResult<Publish> {
        let first_depth: u32 = number("first_depth", first_depth)?;
        let gpu = gpu_and_stream(memory.of_gpu(), stream)?;
        self.check(memory, hashes.as_ref().len(), block_ids.len())?;
        if first_depth.checked_add(u32::try_from(block_ids.len())?).is_none() {
            return Err(error("a prompt of more than 4 billion blocks"));
        }
        let blocks = NewBlock::chain(
            first_depth,
            hashes.as_ref().iter().copied(),
            memory.read(py, &block_ids)?,
        );
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
        memory: &BlockMemory,
        block_ids: Vec<u32>,
        stream: Option<u64>,
    ) -> PyResult<Fetch> {
        let gpu = gpu_and_stream(memory.of_gpu(), stream)?;
        let blocks = blocks.into_matched()?;
        self.check(memory, blocks.len(), block_ids.len())?;
        let destinations = memory.write(py, &block_ids)?;
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
        memory: &BlockMemory,
        block_ids: Vec<u32>,
        stream: Option<u64>,
    ) -> PyResult<LayeredFetch> {
        let gpu = gpu_and_stream(memory.of_gpu(), stream)?;
        let blocks = blocks.into_matched()?;
        self.check(memory, blocks.len(), block_ids.len())?;
        let (session, to) = (&self.session, memory.write(py, &block_ids)?);
        let layers = Arc::new(memory.layers());
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
        memory: &BlockMemory,
        block_ids: Vec<u32>,
    ) -> PyResult<LayeredPublish> {
        self.check(memory, hashes.as_ref().len(), block_ids.len())?;
        if depths.len() != block_ids.len() {
            return Err(error(format!("{} blocks, and {} depths", block_ids.len(), depths.len())));
        }
        let bytes = memory.read(py, &block_ids)?;
        let block = |((depth, hash), bytes)| NewBlock { hash, depth, bytes };
        let blocks =
            depths.into_iter().zip(hashes.as_ref().iter().copied()).zip(bytes).map(block).collect();
        let layers = Arc::new(memory.layers());
        let count = layers.count();
        let publish = match memory.of_gpu() {
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
