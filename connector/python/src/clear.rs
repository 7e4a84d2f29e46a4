//! Clearing the blocks of a tenant.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use rackline::{Namespace, Pool};

use crate::error::{error, number};

/// Removes the blocks of a tenant, or of all, and returns the nodes that have not answered.
#[pyfunction]
#[pyo3(signature = (region, node, *, tenant, salt = b"".as_slice(), timeout_ms = 10_000))]
pub(crate) fn clear(
    py: Python<'_>,
    region: PathBuf,
    node: &Bound<'_, PyAny>,
    tenant: Option<&str>,
    salt: &[u8],
    timeout_ms: u64,
) -> PyResult<Vec<u16>> {
    let node: u16 = number("node", node)?;
    let namespace = tenant.map(|tenant| Namespace::new(tenant, salt));
    let cleared = py.detach(|| {
        let pool = Pool::attach(&region, node).map_err(|failure| failure.to_string())?;
        let timeout = Duration::from_millis(timeout_ms);
        pool.clear(namespace.as_ref(), timeout).map_err(|failure| failure.to_string())
    });
    let cleared = cleared.map_err(error)?;
    Ok(cleared.nodes_left().into_iter().map(|node| node.0).collect())
}
