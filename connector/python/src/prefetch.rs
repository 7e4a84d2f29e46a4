//! Prefetches.

use pyo3::prelude::*;
use rackline::{AsyncPrefetch, Prefetch as Told, ProcessMark, SubmitErrorKind};

use crate::completion::wait_in_pieces;
use crate::error::{error, not_done, refused_because};

/// Blocks on drives that are restored ahead of a lookup.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Prefetch {
    prefetch: AsyncPrefetch,
    /// In which it goes on: a child made by `fork` would wait for ever.
    process: ProcessMark,
}

/// What a prefetch took up.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct PrefetchResult(Told);

impl Prefetch {
    pub(crate) fn new(prefetch: AsyncPrefetch) -> Self {
        Self { prefetch, process: ProcessMark::of_this() }
    }

    fn check_process(&self) -> PyResult<()> {
        if self.process.is_of_this() {
            return Ok(());
        }
        Err(refused_because(SubmitErrorKind::Forked))
    }
}

#[pymethods]
impl Prefetch {
    /// What it took up; `None` when that is not known within the time.
    #[pyo3(signature = (timeout_ms = None))]
    fn wait(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<Option<PrefetchResult>> {
        self.check_process()?;
        let told =
            wait_in_pieces(py, timeout_ms, |now| self.prefetch.wait_timeout(now).map_err(error))?;
        told.transpose().map(|told| told.map(PrefetchResult)).map_err(not_done)
    }

    /// Takes it back.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        py.detach(|| self.prefetch.cancel());
        Ok(())
    }
}

#[pymethods]
impl PrefetchResult {
    /// Blocks on drives that are asked for.
    #[getter]
    fn asked(&self) -> usize {
        self.0.asked()
    }

    /// Blocks on drives that another prefetch has asked for.
    #[getter]
    fn under_way(&self) -> usize {
        self.0.under_way()
    }

    /// Blocks that are in the pool.
    #[getter]
    fn in_pool(&self) -> usize {
        self.0.in_pool()
    }

    /// All others.
    #[getter]
    fn not_asked(&self) -> usize {
        self.0.not_asked()
    }

    /// Why these are not asked for; `None` when there are none.
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        self.0.stop().map(rackline::PrefetchStop::label)
    }

    /// The same for people.
    #[getter]
    fn message(&self) -> Option<String> {
        self.0.stop().map(|stop| stop.to_string())
    }

    fn __repr__(&self) -> String {
        let (asked, under_way, in_pool) = (self.0.asked(), self.0.under_way(), self.0.in_pool());
        let not_asked = self.0.not_asked();
        format!(
            "PrefetchResult(asked={asked}, under_way={under_way}, in_pool={in_pool}, \
             not_asked={not_asked}, reason={:?})",
            self.reason()
        )
    }
}
