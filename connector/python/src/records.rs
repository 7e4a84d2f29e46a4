//! Records of equal length in one buffer: a long prompt crosses to Python as one object.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyMemoryView};
use rackline::{BlockHash, KeySpace, MatchedBlock};

use crate::error::error;

/// Length of a block hash in bytes.
pub(crate) const HASH_BYTES: usize = 32;
/// Length of the handle of a block in bytes.
pub(crate) const HANDLE_BYTES: usize = MatchedBlock::BYTES;
/// Length of the key at the begin of a handle.
const KEY_BYTES: usize = 24;
/// Length of the rest of a handle.
pub(crate) const KEYLESS_HANDLE_BYTES: usize = HANDLE_BYTES - KEY_BYTES;

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

/// The blocks of these hashes whose handles without keys are in a bytes-like object.
pub(crate) fn keyless_handles(
    hashes: &Hashes,
    given: &Bound<'_, PyAny>,
    keys: &KeySpace,
) -> PyResult<Vec<MatchedBlock>> {
    let (bytes, hashes) = (bytes_of(given)?, hashes.as_ref());
    let (records, rest) = bytes.as_bytes().as_chunks::<KEYLESS_HANDLE_BYTES>();
    if !rest.is_empty() {
        let length = bytes.as_bytes().len();
        return Err(not_whole(length, "handles without keys", KEYLESS_HANDLE_BYTES));
    }
    if records.len() != hashes.len() {
        let (handles, hashes) = (records.len(), hashes.len());
        return Err(error(format!(
            "{handles} handles without keys, and {hashes} hashes: pass the hash of each block"
        )));
    }
    let block = |(record, hash): (&[u8; KEYLESS_HANDLE_BYTES], &BlockHash)| {
        let mut handle = [0; HANDLE_BYTES];
        handle[..KEY_BYTES].copy_from_slice(keys.key(hash).as_bytes());
        handle[KEY_BYTES..].copy_from_slice(record);
        MatchedBlock::from_bytes(&handle)
    };
    Ok(records.iter().zip(hashes).map(block).collect())
}

/// The same object for blocks: of each handle the last `N` bytes.
pub(crate) fn of_handles<'py, const N: usize>(
    py: Python<'py>,
    blocks: &[MatchedBlock],
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, blocks.len() * N, |bytes| {
        for (record, block) in bytes.as_chunks_mut::<N>().0.iter_mut().zip(blocks) {
            record.copy_from_slice(&block.to_bytes()[HANDLE_BYTES - N..]);
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
