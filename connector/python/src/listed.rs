//! Sequences that Python gives.

use std::ops::Deref;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::error::error;

/// Most items of a sequence: more blocks than a prompt has.
const ITEMS_MAX: usize = 1 << 24;
/// Items that memory is reserved for before they are there.
const RESERVED_MAX: usize = 1 << 12;

/// The items of a sequence. `Vec` would reserve memory for all items that a sequence claims to have:
/// `range(10**12)` would end the process.
pub(crate) struct Listed<T, const MAX: usize = ITEMS_MAX>(pub(crate) Vec<T>);

impl<T, const MAX: usize> Deref for Listed<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const MAX: usize> Default for Listed<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'py, T, const MAX: usize> FromPyObject<'_, 'py> for Listed<T, MAX>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let is_other = given.is_instance_of::<PyString>() || given.is_instance_of::<PyDict>();
        if is_other || !given.hasattr("__getitem__")? {
            let kind = given.get_type();
            return Err(PyTypeError::new_err(format!("{} is no sequence", kind.name()?)));
        }
        let length = given.len()?;
        if length > MAX {
            return Err(error(format!("a sequence of {length} items: pass {MAX} at most")));
        }
        let mut items = Vec::with_capacity(length.min(RESERVED_MAX));
        for item in given.try_iter()? {
            // One that goes on for ever says that it is short.
            if items.len() == length {
                return Err(error(format!(
                    "a sequence of {length} items has more items than that"
                )));
            }
            items.push(item?.extract::<T>().map_err(Into::into)?);
        }
        Ok(Self(items))
    }
}
