//! A prefix that was found.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rackline::{HoldReport, KeySpace, MatchedBlock, Releaser, RestoreReport, RestoreStop};

use crate::records::{
    HANDLE_BYTES, Hashes, KEYLESS_HANDLE_BYTES, handles, keyless_handles, of_handles,
};

/// The blocks that a lookup found, from the first on; held, when it was asked for, until this is
/// released or dropped.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Prefix {
    blocks: Arc<Vec<MatchedBlock>>,
    held: Mutex<Option<Held>>,
    stop: Option<RestoreStop>,
    on_drives: usize,
    restored: usize,
}

/// Blocks that are held until this is dropped. A thread of the pool releases them then: a scheduler
/// must not wait for that.
struct Held {
    report: Option<HoldReport>,
    releaser: Releaser,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            self.releaser.release(report);
        }
    }
}

#[pymethods]
impl Prefix {
    fn __len__(&self) -> usize {
        self.blocks.len()
    }

    /// The handles of the blocks, one behind the other.
    fn handles<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        of_handles::<HANDLE_BYTES>(py, &self.blocks)
    }

    /// The same without the keys, which a session makes of the hashes.
    fn keyless_handles<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        of_handles::<KEYLESS_HANDLE_BYTES>(py, &self.blocks)
    }

    /// Whether the blocks are held.
    #[getter]
    fn held(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Blocks that were on drives when the lookup began.
    #[getter]
    fn on_drives(&self) -> usize {
        self.on_drives
    }

    /// How many of those were restored and are held.
    #[getter]
    fn restored(&self) -> usize {
        self.restored
    }

    /// Why the next block was found and is not held; `None` when all that were found are.
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        self.stop.map(|stop| stop.label())
    }

    /// The same for people.
    #[getter]
    fn message(&self) -> Option<String> {
        self.stop.map(|stop| stop.to_string())
    }

    /// Lets the blocks go: the pool may evict them again.
    fn release(&self, py: Python<'_>) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(held));
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.release(py);
    }
}

impl Prefix {
    pub(crate) fn found(blocks: Vec<MatchedBlock>) -> Self {
        let held = Mutex::new(None);
        Self { blocks: Arc::new(blocks), held, stop: None, on_drives: 0, restored: 0 }
    }

    /// What `report` holds, to be released by `releaser`.
    pub(crate) fn held_by(report: HoldReport, releaser: Releaser) -> Self {
        let (blocks, stop) = (report.shared_blocks(), report.stop().map(RestoreStop::Hold));
        let held = Held { report: Some(report), releaser };
        Self { blocks, held: Mutex::new(Some(held)), stop, on_drives: 0, restored: 0 }
    }

    /// The same for a lookup that waited for drives.
    pub(crate) fn held_after(report: RestoreReport, releaser: Releaser) -> Self {
        let (on_drives, restored, stop) = (report.on_drives(), report.restored(), report.stop());
        let held = Self::held_by(report.into_held(), releaser);
        Self { on_drives, restored, stop: held.stop.or(stop), ..held }
    }
}

/// What a fetch takes: a [`Prefix`], or what its [`handles`](Prefix::handles) or
/// [`keyless_handles`](Prefix::keyless_handles) gave.
#[derive(FromPyObject)]
pub(crate) enum Blocks<'py> {
    /// Found by this process.
    Found(PyRef<'py, Prefix>),
    /// Found by another one: hashes, and handles without keys.
    Keyless(Bound<'py, PyTuple>),
    /// Found by another one: a bytes-like object.
    Handles(Bound<'py, PyAny>),
}

impl Blocks<'_> {
    /// The blocks, for a session whose keys are these.
    pub(crate) fn into_matched(self, keys: &KeySpace) -> PyResult<Vec<MatchedBlock>> {
        match self {
            Self::Found(prefix) => Ok(prefix.blocks.to_vec()),
            Self::Keyless(given) => {
                let (hashes, given): (Hashes, Bound<'_, PyAny>) = given.extract()?;
                keyless_handles(&hashes, &given, keys)
            }
            Self::Handles(given) => handles(&given),
        }
    }
}
