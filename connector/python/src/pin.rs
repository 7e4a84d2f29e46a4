//! Pinning the blocks of a tenant.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use rackline::{DirectiveError, Namespace, NodeId, Pool};

use crate::error::{error, number};

/// Lets the blocks of a tenant leave last, and returns the nodes that have not answered.
#[pyfunction]
#[pyo3(signature = (
    region, node, *, tenant, percent, length_s, salt = b"".as_slice(), timeout_ms = 10_000
))]
#[expect(clippy::too_many_arguments, reason = "Python names them")]
pub(crate) fn pin(
    py: Python<'_>,
    region: PathBuf,
    node: &Bound<'_, PyAny>,
    tenant: &str,
    percent: &Bound<'_, PyAny>,
    length_s: &Bound<'_, PyAny>,
    salt: &[u8],
    timeout_ms: u64,
) -> PyResult<Vec<u16>> {
    let node: u16 = number("node", node)?;
    let percent: u16 = number("percent", percent)?;
    let length = Duration::from_secs(number("length_s", length_s)?);
    let namespace = Namespace::new(tenant, salt);
    let timeout = Duration::from_millis(timeout_ms);
    ask(py, region, node, |pool| pool.pin(&namespace, percent, length, timeout))
}

/// Ends the pin of a tenant, and returns the nodes that have not answered.
#[pyfunction]
#[pyo3(signature = (region, node, *, tenant, salt = b"".as_slice(), timeout_ms = 10_000))]
pub(crate) fn unpin(
    py: Python<'_>,
    region: PathBuf,
    node: &Bound<'_, PyAny>,
    tenant: &str,
    salt: &[u8],
    timeout_ms: u64,
) -> PyResult<Vec<u16>> {
    let node: u16 = number("node", node)?;
    let namespace = Namespace::new(tenant, salt);
    let timeout = Duration::from_millis(timeout_ms);
    ask(py, region, node, |pool| pool.unpin(&namespace, timeout))
}

/// Attaches as a process of `node` for the time of one request.
fn ask(
    py: Python<'_>,
    region: PathBuf,
    node: u16,
    request: impl FnOnce(&Pool) -> Result<Vec<NodeId>, DirectiveError> + Send,
) -> PyResult<Vec<u16>> {
    let unanswered = py.detach(|| {
        let pool = Pool::attach(&region, node).map_err(|failure| failure.to_string())?;
        request(&pool).map_err(|failure| failure.to_string())
    });
    Ok(unanswered.map_err(error)?.into_iter().map(|node| node.0).collect())
}
