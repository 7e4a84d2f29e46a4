//! When an engine computes, told to the agent of its host.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

/// What an engine says of its forwards.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Forwards {
    forwards: Mutex<rackline::Forwards>,
}

impl Forwards {
    pub(crate) fn new(forwards: rackline::Forwards) -> Self {
        Self { forwards: Mutex::new(forwards) }
    }

    fn forwards(&self) -> MutexGuard<'_, rackline::Forwards> {
        self.forwards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Forwards {
    /// A forward begins.
    fn begin(&self, prompt_tokens: u64, prefix_tokens: u64) {
        self.forwards().begin(prompt_tokens, prefix_tokens);
    }

    /// The forward is over.
    fn end(&self) {
        self.forwards().end();
    }
}
