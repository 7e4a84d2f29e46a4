//! Sessions.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackline::memory::Access;
use rackline::{AsyncSession, NewBlock};

use crate::completion::{Fetch, Lookup, Presence, Publish};
use crate::error::{error, number, refused};
use crate::gpu::gpu_and_stream;
use crate::layered::{LayeredFetch, LayeredPublish};
use crate::loan::Lent;
use crate::memory::Blocks as Place;
use crate::prefix::Blocks;
use crate::records::Hashes;
use crate::transfers;

/// A way to the blocks of one model and namespace, for any thread. No call waits.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Session {
    session: AsyncSession,
}

impl Session {
    pub(crate) fn new(session: AsyncSession) -> Self {
        Self { session }
    }

    pub(crate) fn session(&self) -> &AsyncSession {
        &self.session
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
        check(&self.session, &lent, hashes.as_ref().len())?;
        check_depth(first_depth, lent.count())?;
        let blocks =
            NewBlock::chain(first_depth, hashes.as_ref().iter().copied(), lent.sources(cut)?);
        transfers::publish(py, &self.session, blocks, gpu)
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
        check(&self.session, &lent, blocks.len())?;
        transfers::fetch(py, &self.session, 1, blocks, lent.destinations(cut)?, gpu)
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
        check(&self.session, &lent, blocks.len())?;
        let (to, layers) = (lent.destinations(cut)?, lent.layers());
        transfers::fetch_by_layers(py, &self.session, 1, blocks, to, layers, gpu)
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
        check(&self.session, &lent, hashes.as_ref().len())?;
        if depths.len() != lent.count() {
            return Err(error(format!("{} blocks, and {} depths", lent.count(), depths.len())));
        }
        let bytes = lent.sources(cut)?;
        let block = |((depth, hash), bytes)| NewBlock { hash, depth, bytes };
        let blocks =
            depths.into_iter().zip(hashes.as_ref().iter().copied()).zip(bytes).map(block).collect();
        transfers::publish_by_layers(&self.session, blocks, lent.layers(), lent.of_gpu())
    }
}

/// Refuses blocks in memory that are not those of the session, or other than so many.
pub(crate) fn check(session: &AsyncSession, lent: &Lent, blocks: usize) -> PyResult<()> {
    let (numbers, bytes, wanted) =
        (lent.count(), lent.block_bytes(), session.options().block_bytes());
    if bytes != wanted {
        return Err(error(format!(
            "blocks of {bytes} bytes in memory, and of {wanted} in the session"
        )));
    }
    if blocks != numbers {
        return Err(error(format!("{blocks} blocks, and {numbers} places in memory")));
    }
    Ok(())
}

/// Refuses blocks whose depths no number can tell.
pub(crate) fn check_depth(first_depth: u32, blocks: usize) -> PyResult<()> {
    match first_depth.checked_add(u32::try_from(blocks)?) {
        Some(_) => Ok(()),
        None => Err(error("a prompt of more than 4 billion blocks")),
    }
}
