//! What engines share, in words, in the pool.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackline::{IDENTITY_BYTES_MAX, RegisteredIdentity};

use crate::error::error;

/// The identities in a region, each with the node that has it.
#[pyfunction]
pub(crate) fn identities(py: Python<'_>, region: PathBuf) -> PyResult<Vec<(String, u16)>> {
    let found = py.detach(|| rackline::registered_identities(&region)).map_err(error)?;
    Ok(found.into_iter().map(|RegisteredIdentity { node, text }| (text, node.0)).collect())
}

/// The hash of the block of an identity.
#[pyfunction]
pub(crate) fn identity_hash<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyBytes>> {
    if text.len() as u64 > IDENTITY_BYTES_MAX || text.contains('\0') {
        let what = format!("an identity of {} bytes", text.len());
        return Err(error(format!("{what}: pass at most {IDENTITY_BYTES_MAX}, none of them zero")));
    }
    Ok(PyBytes::new(py, rackline::identity_hash(text).as_bytes()))
}
