//! Sessions for the cuts of the same blocks.

use pyo3::prelude::*;
use rackline::{AsyncSession, BlockHash, KeySpace, MatchedBlock, NewBlock};

use crate::completion::{Fetch, Publish};
use crate::error::{error, number};
use crate::gpu::gpu_and_stream;
use crate::layered::{LayeredFetch, LayeredPublish};
use crate::listed::Listed;
use crate::memory::{BlockMemory, ReadBlock, in_turns};
use crate::prefix::Blocks;
use crate::records::Hashes;
use crate::session::{Session, check, check_depth, check_depths};
use crate::transfers;

/// Most sessions that have a cut each.
const SESSIONS_MAX: usize = 1 << 12;

/// Sessions of which each has a cut of the same blocks. A transfer has all cuts of a block, and then
/// those of the next.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Shares {
    session: AsyncSession,
    /// Of each session.
    keys: Vec<KeySpace>,
}

impl Shares {
    /// Refuses memory whose blocks are not those of the sessions.
    fn check(&self, memory: &BlockMemory, blocks: usize, numbers: usize) -> PyResult<()> {
        let (cuts, count) = (memory.cut_count(), self.keys.len());
        if cuts != count {
            return Err(error(format!("blocks of {cuts} cuts in memory, and {count} sessions")));
        }
        check(&self.session, memory, blocks, numbers)
    }

    /// The blocks of a publish, in turns.
    fn new_blocks(
        &self,
        hashes: &[BlockHash],
        depths: impl Iterator<Item = u32>,
        bytes: Vec<ReadBlock>,
    ) -> Vec<NewBlock<ReadBlock>> {
        let mut blocks = Vec::with_capacity(bytes.len());
        let mut bytes = bytes.into_iter();
        for (hash, depth) in hashes.iter().zip(depths) {
            let cuts = bytes.by_ref().take(self.keys.len());
            blocks.extend(cuts.map(|bytes| NewBlock { hash: *hash, depth, bytes }));
        }
        blocks
    }

    /// The blocks of a fetch, in turns: what each session found. And how many there are of each.
    fn found(&self, found: Vec<Blocks<'_>>) -> PyResult<(Vec<MatchedBlock>, usize)> {
        if found.len() != self.keys.len() {
            let (found, count) = (found.len(), self.keys.len());
            return Err(error(format!("blocks that {found} sessions found, and {count} sessions")));
        }
        let each = found.into_iter().zip(&self.keys).map(|(found, keys)| found.into_matched(keys));
        let each = each.collect::<PyResult<Vec<_>>>()?;
        let count = each.first().map_or(0, Vec::len);
        if let Some(other) = each.iter().find(|blocks| blocks.len() != count) {
            let other = other.len();
            return Err(error(format!(
                "{count} blocks of one session, and {other} of another: pass equally many"
            )));
        }
        Ok((in_turns(each.into_iter()), count))
    }
}

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
        Ok(Self { session, keys })
    }

    fn __len__(&self) -> usize {
        self.keys.len()
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
        let first_depth: u32 = number("first_depth", first_depth)?;
        let gpu = gpu_and_stream(memory.gpu(), stream)?;
        let hashes = hashes.as_ref();
        check_depth(first_depth, block_ids.len())?;
        self.check(memory, hashes.len(), block_ids.len())?;
        let bytes = memory.read(py, &block_ids)?;
        let blocks = self.new_blocks(hashes, first_depth..=u32::MAX, bytes);
        transfers::publish(py, &self.session, blocks, gpu)
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
        let gpu = gpu_and_stream(memory.gpu(), stream)?;
        let (blocks, count) = self.found(blocks.0)?;
        self.check(memory, count, block_ids.len())?;
        let to = memory.write(py, &block_ids)?;
        transfers::fetch(py, &self.session, self.keys.len(), blocks, to, gpu)
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
        let gpu = gpu_and_stream(memory.gpu(), stream)?;
        let (blocks, count) = self.found(blocks.0)?;
        self.check(memory, count, block_ids.len())?;
        let (to, layers) = (memory.write(py, &block_ids)?, memory.layers());
        transfers::fetch_by_layers(py, &self.session, self.keys.len(), blocks, to, layers, gpu)
    }

    fn publish_by_layers(
        &self,
        py: Python<'_>,
        hashes: Hashes,
        depths: Listed<u32>,
        memory: &BlockMemory,
        block_ids: Listed<u32>,
    ) -> PyResult<LayeredPublish> {
        let hashes = hashes.as_ref();
        self.check(memory, hashes.len(), block_ids.len())?;
        check_depths(&depths, block_ids.len())?;
        let bytes = memory.read(py, &block_ids)?;
        let blocks = self.new_blocks(hashes, depths.0.into_iter(), bytes);
        transfers::publish_by_layers(&self.session, blocks, memory.layers(), memory.gpu())
    }
}
