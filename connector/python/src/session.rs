//! Sessions.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackline::{AsyncSession, KeySpace, NewBlock, RestoreOptions};

use crate::completion::{Fetch, Lookup, Presence, Publish};
use crate::error::{error, number, refused};
use crate::forwards::Forwards;
use crate::gpu::gpu_and_stream;
use crate::layered::{LayeredFetch, LayeredPublish};
use crate::listed::Listed;
use crate::memory::BlockMemory;
use crate::prefetch::Prefetch;
use crate::prefix::Blocks;
use crate::records::Hashes;
use crate::transfers::{self, begin};

/// A way to the blocks of one model and namespace, for any thread. No call waits.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Session {
    session: AsyncSession,
    keys: KeySpace,
}

impl Session {
    pub(crate) fn new(session: AsyncSession) -> Self {
        let keys = KeySpace::from_bytes(&session.options().key_space_bytes());
        Self { session, keys }
    }

    /// The keys of its blocks.
    pub(crate) fn keys(&self) -> &KeySpace {
        &self.keys
    }

    pub(crate) fn session(&self) -> &AsyncSession {
        &self.session
    }

    /// Refuses memory whose blocks are not those of the session.
    fn check(&self, memory: &BlockMemory, blocks: usize, numbers: usize) -> PyResult<()> {
        let cuts = memory.cut_count();
        if cuts > 1 {
            return Err(error(format!(
                "the memory has {cuts} cuts: transfer its blocks by Shares, with a session for each cut"
            )));
        }
        check(&self.session, memory, blocks, numbers)
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

    /// The same session for a thread that waits for everything that it begins.
    fn by_caller(&self) -> Self {
        Self { session: self.session.by_caller(), keys: self.keys.clone() }
    }

    #[pyo3(signature = (hashes, *, hold = false, restore_wait_ms = 0, recompute_us = 0))]
    fn lookup(
        &self,
        py: Python<'_>,
        hashes: Hashes,
        hold: bool,
        restore_wait_ms: u32,
        recompute_us: u32,
    ) -> PyResult<Lookup> {
        if restore_wait_ms > 0 {
            if !hold {
                return Err(error(
                    "blocks are restored to be held: set hold, or no restore_wait_ms",
                ));
            }
            let restore = restore_options(restore_wait_ms, recompute_us);
            let restored = self.session.lookup_and_restore(hashes, restore).map_err(refused)?;
            Ok(Lookup::restored(restored, self.session.releaser()))
        } else if hold {
            let held = begin(py, &self.session, |session| session.lookup_and_hold(hashes));
            Ok(Lookup::held(held.map_err(refused)?, self.session.releaser()))
        } else {
            let found = begin(py, &self.session, |session| session.lookup(hashes));
            Ok(Lookup::plain(found.map_err(refused)?))
        }
    }

    #[pyo3(signature = (hashes, *, wait_ms, recompute_us = 0))]
    fn prefetch(&self, hashes: Hashes, wait_ms: u32, recompute_us: u32) -> PyResult<Prefetch> {
        let restore = restore_options(wait_ms, recompute_us);
        self.session.prefetch(hashes, restore).map(Prefetch::new).map_err(refused)
    }

    /// Begins to report forwards to the agent of the host.
    fn report_forwards(&self, py: Python<'_>) -> PyResult<Option<Forwards>> {
        let begun = self.session.report_forwards().map_err(refused)?;
        let forwards = py.detach(|| begun.wait()).map_err(error)?;
        Ok(forwards.map(Forwards::new))
    }

    #[pyo3(signature = (hashes, *, drives = false))]
    fn present(&self, py: Python<'_>, hashes: Hashes, drives: bool) -> PyResult<Presence> {
        let present = begin(py, &self.session, |session| match drives {
            true => session.present_with_drives(hashes),
            false => session.present(hashes),
        });
        Ok(Presence::new(present.map_err(refused)?))
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
        self.check(memory, hashes.as_ref().len(), block_ids.len())?;
        check_depth(first_depth, block_ids.len())?;
        let bytes = memory.read(py, &block_ids)?;
        let blocks = NewBlock::chain(first_depth, hashes.as_ref().iter().copied(), bytes);
        transfers::publish(py, &self.session, blocks, gpu)
    }

    #[pyo3(signature = (blocks, memory, block_ids, *, stream = None))]
    fn fetch(
        &self,
        py: Python<'_>,
        blocks: Blocks<'_>,
        memory: &BlockMemory,
        block_ids: Listed<u32>,
        stream: Option<u64>,
    ) -> PyResult<Fetch> {
        let gpu = gpu_and_stream(memory.gpu(), stream)?;
        let blocks = blocks.into_matched(&self.keys)?;
        self.check(memory, blocks.len(), block_ids.len())?;
        transfers::fetch(py, &self.session, 1, blocks, memory.write(py, &block_ids)?, gpu)
    }

    #[pyo3(signature = (blocks, memory, block_ids, *, stream = None))]
    fn fetch_by_layers(
        &self,
        py: Python<'_>,
        blocks: Blocks<'_>,
        memory: &BlockMemory,
        block_ids: Listed<u32>,
        stream: Option<u64>,
    ) -> PyResult<LayeredFetch> {
        let gpu = gpu_and_stream(memory.gpu(), stream)?;
        let blocks = blocks.into_matched(&self.keys)?;
        self.check(memory, blocks.len(), block_ids.len())?;
        let (to, layers) = (memory.write(py, &block_ids)?, memory.layers());
        transfers::fetch_by_layers(py, &self.session, 1, blocks, to, layers, gpu)
    }

    fn publish_by_layers(
        &self,
        py: Python<'_>,
        hashes: Hashes,
        depths: Listed<u32>,
        memory: &BlockMemory,
        block_ids: Listed<u32>,
    ) -> PyResult<LayeredPublish> {
        self.check(memory, hashes.as_ref().len(), block_ids.len())?;
        check_depths(&depths, block_ids.len())?;
        let bytes = memory.read(py, &block_ids)?;
        let block = |((depth, hash), bytes)| NewBlock { hash, depth, bytes };
        let blocks = depths
            .0
            .into_iter()
            .zip(hashes.as_ref().iter().copied())
            .zip(bytes)
            .map(block)
            .collect();
        transfers::publish_by_layers(&self.session, blocks, memory.layers(), memory.gpu())
    }
}

/// How drives are waited for: without a time to compute a block, it is not known.
fn restore_options(wait_ms: u32, recompute_us: u32) -> RestoreOptions {
    let restore = RestoreOptions::new(Duration::from_millis(wait_ms.into()));
    if recompute_us == 0 {
        return restore;
    }
    restore.with_recompute(Duration::from_micros(recompute_us.into()))
}

/// Refuses blocks in memory that are not as long as those of the session, or other than so many.
pub(crate) fn check(
    session: &AsyncSession,
    memory: &BlockMemory,
    blocks: usize,
    numbers: usize,
) -> PyResult<()> {
    let (bytes, wanted) = (memory.bytes(), session.options().block_bytes());
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

/// Refuses depths that are not those of so many blocks.
pub(crate) fn check_depths(depths: &[u32], blocks: usize) -> PyResult<()> {
    if depths.len() != blocks {
        return Err(error(format!("{blocks} blocks, and {} depths", depths.len())));
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
