//! Exceptions.

use connector::session::SessionError;
use connector::transfer::{
    GpuLayeredSubmitError, GpuSubmitError, LayeredSubmitError, OpenError, SubmitError,
};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyInt;

create_exception!(rackline, Error, PyException, "Something is wrong with the pool, or its use.");
create_exception!(rackline, Busy, Error, "A queue is full: go on without, or try again later.");
create_exception!(rackline, Closed, Error, "The pool was closed in this process.");
create_exception!(
    rackline,
    Forked,
    Error,
    "This process is a forked child of the one that attached: attach again in the child."
);

create_exception!(
    rackline,
    MembershipLost,
    Error,
    "This process does not take part in the pool any more: its node was declared dead, say."
);

/// The exception for a pool that is not open, or not for these blocks.
pub(crate) fn not_open(failure: OpenError) -> PyErr {
    let message = failure.to_string();
    match failure {
        OpenError::Length { .. } => error(message),
        OpenError::Forked => Forked::new_err(message),
        OpenError::Closed => Closed::new_err(message),
    }
}

/// A number that has to be one of the type that it is wanted in: Python's may be any.
pub(crate) fn number<T>(name: &str, given: &Bound<'_, PyAny>) -> PyResult<T>
where
    T: for<'a, 'py> FromPyObject<'a, 'py>,
{
    if !given.is_instance_of::<PyInt>() {
        return Err(PyTypeError::new_err(format!("{name} is {given}: it must be an int")));
    }
    given.extract().map_err(|_| error(format!("{name} is {given}: out of range")))
}

/// The exception for work that was not carried out.
pub(crate) fn not_done(failure: SessionError) -> PyErr {
    match failure {
        SessionError::MembershipLost(lost) => MembershipLost::new_err(lost.to_string()),
        SessionError::Length { .. }
        | SessionError::Layers { .. }
        | SessionError::Destinations { .. } => error(failure),
    }
}

/// The exception for anything that says what is wrong.
pub(crate) fn error(message: impl ToString) -> PyErr {
    Error::new_err(message.to_string())
}

/// The exception for work that was not taken up; what was given is dropped.
pub(crate) fn refused<T>(refused: SubmitError<T>) -> PyErr {
    let message = refused.to_string();
    match refused {
        SubmitError::Busy(_) => Busy::new_err(message),
        SubmitError::Forked(_) => Forked::new_err(message),
        SubmitError::Closed(_) => Closed::new_err(message),
    }
}

/// The same for a publish by layers.
pub(crate) fn refused_by_layers<T>(refusal: LayeredSubmitError<T>) -> PyErr {
    match refusal {
        LayeredSubmitError::Refused(refusal) => refused(refusal),
        LayeredSubmitError::NotAskedFor(_) => not_asked_for(),
    }
}

/// The same for memory of a GPU.
pub(crate) fn refused_by_gpu_layers<T>(refusal: GpuLayeredSubmitError<T>) -> PyErr {
    match refusal {
        GpuLayeredSubmitError::Gpu(refusal) => refused_by_gpu(refusal),
        GpuLayeredSubmitError::NotAskedFor(_) => not_asked_for(),
    }
}

fn not_asked_for() -> PyErr {
    error(
        "the pool was attached without publishes_by_layers: attach it with publishes_by_layers=True",
    )
}

/// The exception for a transfer of a GPU's memory that was not taken up.
pub(crate) fn refused_by_gpu<T>(refusal: GpuSubmitError<T>) -> PyErr {
    match refusal {
        GpuSubmitError::Refused(refusal) => refused(refusal),
        GpuSubmitError::NotOpen { gpu, .. } => error(format!(
            "GPU {gpu} is not open in this pool: call Pool.gpu({gpu}) once, before the first \
             transfer of its memory"
        )),
        refusal @ GpuSubmitError::Stream { .. } => error(refusal.to_string()),
    }
}
