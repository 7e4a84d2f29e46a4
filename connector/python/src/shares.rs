//! Sessions for the cuts of the same blocks.

use std::sync::Arc;

use pyo3::prelude::*;
use rackline::memory::Access;
use rackline::{AsyncSession, BlockHash, MatchedBlock, NewBlock};

use crate::completion::{Fetch, Publish};
use crate::error::{error, number};
use crate::gpu::gpu_and_stream;
use crate::layered::{LayeredFetch, LayeredPublish};
use crate::loan::Lent;
use crate::memory::BlockMemory;
use crate::prefix::Blocks;
use crate::records::Hashes;
use crate::session::{Session, check_depth};
use crate::transfers;

/// Sessions of which each has a cut of the same blocks. A transfer has all cuts of a block, and then
/// those of the next.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Shares {
    session: AsyncSession,
    count: usize,
}

impl Shares {
    /// Lends blocks to a transfer of this many.
    fn lend(
        &self,
        py: Python<'_>,
        memory: &BlockMemory,
        block_ids: &[u32],
        blocks: usize,
        access: Access,
    ) -> PyResult<Arc<Lent>> {
        let (cuts, count) = (memory.cut_count(), self.count);
        if cuts != count {
            return Err(error(format!("blocks of {cuts} cuts in memory, and {count} sessions")));
        }
        let lent = Arc::new(memory.lend_to(py, block_ids, access)?);
        crate::session::check(&self.session, &lent, blocks)?;
        Ok(lent)
    }

    /// The blocks of a publish, in turns.
    fn sources(
        &self,
        lent: &Arc<Lent>,
        hashes: &[BlockHash],
        depths: impl Iterator<Item = u32>,
    ) -> PyResult<Vec<NewBlock<crate::loan::ReadBlock>>> {
        let cuts = (0..self.count).map(|cut| lent.sources(cut)).collect::<PyResult<_>>()?;
        let mut bytes = in_turns(cuts).into_iter();
        let mut blocks = Vec::with_capacity(bytes.len());
        for (hash, depth) in hashes.iter().zip(depths) {
            let shares = bytes.by_ref().take(self.count);
            blocks.extend(shares.map(|bytes| NewBlock { hash: *hash, depth, bytes }));
        }
        Ok(blocks)
    }

    /// The blocks of a fetch, in turns: what each session found. And how many there are of each.
    fn found(&self, found: Vec<Blocks<'_>>) -> PyResult<(Vec<MatchedBlock>, usize)> {
        if found.len() != self.count {
            let (found, count) = (found.len(), self.count);
            return Err(error(format!("blocks that {found} sessions found, and {count} sessions")));
        }
        let each = found.into_iter().map(Blocks::into_matched).collect::<PyResult<Vec<_>>>()?;
        let count = each.first().map_or(0, Vec::len);
        if let Some(other) = each.iter().find(|blocks| blocks.len() != count) {
            let other = other.len();
            return Err(error(format!(
                "{count} blocks of one session, and {other} of another: pass equally many"
            )));
        }
        Ok((in_turns(each), count))
    }
}

#[pymethods]
impl Shares {
    #[new]
    fn new(sessions: Vec<PyRef<'_, Session>>) -> PyResult<Self> {
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
        Ok(Self { session, count: sessions.len() })
    }

    fn __len__(&self) -> usize {
        self.count
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
        let gpu = gpu_and_stream(memory.gpu(), stream)?;
        let hashes = hashes.as_ref();
        check_depth(first_depth, block_ids.len())?;
        let lent = self.lend(py, memory, &block_ids, hashes.len(), Access::Read)?;
        let blocks = self.sources(&lent, hashes, first_depth..=u32::MAX)?;
        transfers::publish(py, &self.session, blocks, gpu)
    }

    #[pyo3(signature = (blocks, memory, block_ids, *, stream = None))]
    fn fetch(
        &self,
        py: Python<'_>,
        blocks: Vec<Blocks<'_>>,
        memory: &BlockMemory,
        block_ids: Vec<u32>,
        stream: Option<u64>,
    ) -> PyResult<Fetch> {
        let gpu = gpu_and_stream(memory.gpu(), stream)?;
        let (blocks, count) = self.found(blocks)?;
        let lent = self.lend(py, memory, &block_ids, count, Access::Write)?;
        transfers::fetch(py, &self.session, self.count, blocks, self.destinations(&lent)?, gpu)
    }

    #[pyo3(signature = (blocks, memory, block_ids, *, stream = None))]
    fn fetch_by_layers(
        &self,
        py: Python<'_>,
        blocks: Vec<Blocks<'_>>,
        memory: &BlockMemory,
        block_ids: Vec<u32>,
        stream: Option<u64>,
    ) -> PyResult<LayeredFetch> {
        let gpu = gpu_and_stream(memory.gpu(), stream)?;
        let (blocks, count) = self.found(blocks)?;
        let lent = self.lend(py, memory, &block_ids, count, Access::Write)?;
        let (to, layers) = (self.destinations(&lent)?, lent.layers());
        transfers::fetch_by_layers(py, &self.session, self.count, blocks, to, layers, gpu)
    }

    fn publish_by_layers(
        &self,
        py: Python<'_>,
        hashes: Hashes,
        depths: Vec<u32>,
        memory: &BlockMemory,
        block_ids: Vec<u32>,
    ) -> PyResult<LayeredPublish> {
        let hashes = hashes.as_ref();
        let lent = self.lend(py, memory, &block_ids, hashes.len(), Access::Read)?;
        if depths.len() != hashes.len() {
            return Err(error(format!("{} blocks, and {} depths", hashes.len(), depths.len())));
        }
        let blocks = self.sources(&lent, hashes, depths.into_iter())?;
        transfers::publish_by_layers(&self.session, blocks, lent.layers(), memory.gpu())
    }
}

impl Shares {
    fn destinations(&self, lent: &Arc<Lent>) -> PyResult<Vec<crate::loan::WriteBlock>> {
        let cuts = (0..self.count).map(|cut| lent.destinations(cut)).collect::<PyResult<_>>()?;
        Ok(in_turns(cuts))
    }
}

/// The first of each list, then the second of each. They are equally long.
fn in_turns<T>(each: Vec<Vec<T>>) -> Vec<T> {
    let (count, lists) = (each.first().map_or(0, Vec::len), each.len());
    let mut all = Vec::with_capacity(count * lists);
    let mut each: Vec<_> = each.into_iter().map(Vec::into_iter).collect();
    for _ in 0..count {
        all.extend(each.iter_mut().filter_map(Iterator::next));
    }
    all
}
