//! The attachment of a process.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rackline::{AsyncPool, Namespace, SessionOptions, identity_options};

use crate::error::{error, not_open, number, refused_because};
use crate::gpu::Gpu;
use crate::listed::Listed;
use crate::model::Model;
use crate::options::{Given, GivenNumber, GivenQuota};
use crate::session::Session;

/// This process, attached to a pool.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Pool {
    pool: AsyncPool,
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (
        region, node, *, copy_threads = None, fetch_threads = None, queue_depth = None,
        high_watermark_percent = None, low_watermark_percent = None, quotas = Listed::default(),
        publishes_by_layers = false, bind_threads = true,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn new(
        py: Python<'_>,
        region: PathBuf,
        node: &Bound<'_, PyAny>,
        copy_threads: GivenNumber<'_>,
        fetch_threads: GivenNumber<'_>,
        queue_depth: GivenNumber<'_>,
        high_watermark_percent: GivenNumber<'_>,
        low_watermark_percent: GivenNumber<'_>,
        quotas: Listed<GivenQuota>,
        publishes_by_layers: bool,
        bind_threads: bool,
    ) -> PyResult<Self> {
        let given = Given {
            copy_threads,
            fetch_threads,
            queue_depth,
            high_watermark_percent,
            low_watermark_percent,
            quotas,
            bind_threads,
        };
        let node: u16 = number("node", node)?;
        let options = given.checked()?.with_publishes_by_layers(publishes_by_layers);
        py.import("rackline.log")?.call_method0("start")?;
        let pool = py.detach(|| AsyncPool::attach(&region, node, &options)).map_err(error)?;
        Ok(Self { pool })
    }

    #[pyo3(signature = (
        model, block_bytes, *, tenant = "", salt = b"".as_slice(), chunk_timeout_ms = 2000,
        hold_ms = 30_000,
    ))]
    fn session(
        &self,
        model: &Model,
        block_bytes: &Bound<'_, PyAny>,
        tenant: &str,
        salt: &[u8],
        chunk_timeout_ms: u64,
        hold_ms: u64,
    ) -> PyResult<Session> {
        let block_bytes = number("block_bytes", block_bytes)?;
        let options = SessionOptions::new(model.model(), block_bytes)
            .with_namespace(Namespace::new(tenant, salt))
            .with_chunk_timeout(Duration::from_millis(chunk_timeout_ms))
            .with_hold(Duration::from_millis(hold_ms));
        self.pool.session(options).map(Session::new).map_err(not_open)
    }

    /// A session for the identities of engines whose blocks have `block_bytes` bytes.
    fn identity_session(&self, block_bytes: &Bound<'_, PyAny>) -> PyResult<Session> {
        let options = identity_options(number("block_bytes", block_bytes)?);
        self.pool.session(options).map(Session::new).map_err(not_open)
    }

    /// Opens a GPU, or finds it open.
    fn gpu(&self, py: Python<'_>, number: usize) -> PyResult<Gpu> {
        let opened = py.detach(|| self.pool.gpu(number));
        opened.map(Gpu::new).map_err(|failure| refused_because(failure.into()))
    }

    /// The node that this process belongs to.
    #[getter]
    fn node(&self) -> u16 {
        self.pool.node().0
    }

    /// Bytes of the pool's memory for blocks, divided by the number of nodes.
    #[getter]
    fn share_bytes(&self) -> u64 {
        self.pool.share_bytes()
    }

    /// Whether the region has room to announce blocks on drives.
    #[getter]
    fn has_drives(&self) -> bool {
        self.pool.has_drives()
    }

    /// Counters of this process, by their names.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.pool.check_open().map_err(not_open)?;
        let metrics = self.pool.metrics();
        let counters = PyDict::new(py);
        for (name, value) in metrics.counters() {
            counters.set_item(name, value)?;
        }
        let misses = PyDict::new(py);
        for (reason, count) in metrics.all_misses() {
            misses.set_item(reason.label(), count)?;
        }
        counters.set_item("misses", misses)?;
        let membership = metrics.lost().map_or("member", |lost| lost.cause.name());
        counters.set_item("membership", membership)?;
        Ok(counters)
    }

    /// Waits for what was taken up, and leaves the pool.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.pool.close());
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}
