//! Sessions.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackline::{AsyncSession, KeySpace, RestoreOptions};

use crate::completion::{Fetch, Lookup, Presence, Publish};
use crate::error::{error, refused};
use crate::forwards::Forwards;
use crate::layered::{LayeredFetch, LayeredPublish};
use crate::listed::Listed;
use crate::memory::BlockMemory;
use crate::prefetch::Prefetch;
use crate::prefix::Blocks;
use crate::records::Hashes;
use crate::transfers::{Sessions, begin};

/// A way to the blocks of one model and namespace, for any thread. No call waits.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Session(Sessions);

impl Session {
    pub(crate) fn new(session: AsyncSession) -> Self {
        let keys = KeySpace::from_bytes(&session.options().key_space_bytes());
        Self(Sessions::new(session, vec![keys]))
    }

    /// The keys of its blocks.
    pub(crate) fn keys(&self) -> &KeySpace {
        &self.0.keys()[0]
    }

    pub(crate) fn session(&self) -> &AsyncSession {
        self.0.session()
    }
}

#[pymethods]
impl Session {
    /// Length of every block in bytes.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.session().options().block_bytes()
    }

    /// What tells the keys of its blocks from those of other sessions.
    #[getter]
    fn key_space<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.session().options().key_space_bytes())
    }

    /// The same session for a thread that waits for everything that it begins.
    fn by_caller(&self) -> Self {
        Self::new(self.session().by_caller())
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
            let restored = self.session().lookup_and_restore(hashes, restore).map_err(refused)?;
            Ok(Lookup::restored(restored, self.session().releaser()))
        } else if hold {
            let held = begin(py, self.session(), |session| session.lookup_and_hold(hashes));
            Ok(Lookup::held(held.map_err(refused)?, self.session().releaser()))
        } else {
            let found = begin(py, self.session(), |session| session.lookup(hashes));
            Ok(Lookup::plain(found.map_err(refused)?))
        }
    }

    #[pyo3(signature = (hashes, *, wait_ms, recompute_us = 0))]
    fn prefetch(&self, hashes: Hashes, wait_ms: u32, recompute_us: u32) -> PyResult<Prefetch> {
        let restore = restore_options(wait_ms, recompute_us);
        self.session().prefetch(hashes, restore).map(Prefetch::new).map_err(refused)
    }

    /// Begins to report forwards to the agent of the host.
    fn report_forwards(&self, py: Python<'_>) -> PyResult<Option<Forwards>> {
        let begun = self.session().report_forwards().map_err(refused)?;
        let forwards = py.detach(|| begun.wait()).map_err(error)?;
        Ok(forwards.map(Forwards::new))
    }

    #[pyo3(signature = (hashes, *, drives = false))]
    fn present(&self, py: Python<'_>, hashes: Hashes, drives: bool) -> PyResult<Presence> {
        let present = begin(py, self.session(), |session| match drives {
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
        self.0.publish(py, hashes.as_ref(), first_depth, (memory, &block_ids), stream)
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
        self.0.fetch(py, vec![blocks], (memory, &block_ids), stream)
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
        self.0.fetch_by_layers(py, vec![blocks], (memory, &block_ids), stream)
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

/// How drives are waited for: without a time to compute a block, it is not known.
fn restore_options(wait_ms: u32, recompute_us: u32) -> RestoreOptions {
    let restore = RestoreOptions::new(Duration::from_millis(wait_ms.into()));
    if recompute_us == 0 {
        return restore;
    }
    restore.with_recompute(Duration::from_micros(recompute_us.into()))
}
