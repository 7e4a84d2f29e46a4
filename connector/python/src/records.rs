//! Records of equal length in one buffer: a long prompt crosses to Python as one object.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyMemoryView};
use rackline::{BlockHash, MatchedBlock};

use crate::error::error;

/// Length of a block hash in bytes.
pub(crate) const HASH_BYTES: usize = 32;
/// Length of the handle of a block in bytes.
pub(crate) const HANDLE_BYTES: usize = MatchedBlock::BYTES;

/// Block hashes: one bytes-like object with one behind the other, or a list of bytes.
pub(crate) enum Hashes {
    /// Whole hashes. `bytes` is kept, not copied: all ranks are asked for the hashes of one prompt.
    InOne(PyBackedBytes),
    Listed(Vec<BlockHash>),
}

impl AsRef<[BlockHash]> for Hashes {
    fn as_ref(&self) -> &[BlockHash] {
        match self {
            Self::InOne(bytes) => BlockHash::all_in(bytes).expect("whole hashes"),
            Self::Listed(hashes) => hashes,
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Hashes {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let Ok(list) = given.cast::<PyList>() else {
            let bytes = PyBackedBytes::from(bytes_of(&given)?);
            return match BlockHash::all_in(&bytes) {
                Some(_) => Ok(Self::InOne(bytes)),
                None => Err(not_whole(bytes.len(), "block hashes", HASH_BYTES)),
            };
        };
        let hash = |item: Bound<'_, PyAny>| {
            let bytes = bytes_of(&item)?;
            match bytes.as_bytes().try_into() {
                Ok(bytes) => Ok(BlockHash::new(bytes)),
                Err(_) => {
                    let length = bytes.as_bytes().len();
                    Err(error(format!("a block hash of {length} bytes: a hash has {HASH_BYTES}")))
                }
            }
        };
        Ok(Self::Listed(list.iter().map(hash).collect::<PyResult<_>>()?))
    }
}

/// The handles in a bytes-like object, one behind the other.
pub(crate) fn handles(given: &Bound<'_, PyAny>) -> PyResult<Vec<MatchedBlock>> {
    let bytes = bytes_of(given)?;
    let (records, rest) = bytes.as_bytes().as_chunks();
    if !rest.is_empty() {
        return Err(not_whole(bytes.as_bytes().len(), "handles", HANDLE_BYTES));
    }
    Ok(records.iter().map(MatchedBlock::from_bytes).collect())
}

/// The same object for blocks.
pub(crate) fn of_handles<'py>(
    py: Python<'py>,
    blocks: &[MatchedBlock],
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, blocks.len() * HANDLE_BYTES, |bytes| {
        for (record, block) in bytes.as_chunks_mut().0.iter_mut().zip(blocks) {
            *record = block.to_bytes();
        }
        Ok(())
    })
}

fn not_whole(bytes: usize, what: &str, length: usize) -> PyErr {
    error(format!("{bytes} bytes of {what}: pass a multiple of {length}, the length of each"))
}

/// `given` itself, or a copy where it is another object with the buffer protocol, whose bytes
/// Python may change.
fn bytes_of<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    match given.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.clone()),
        Err(_) => Ok(PyMemoryView::from(given)?.call_method0("tobytes")?.cast_into()?),
    }
}
