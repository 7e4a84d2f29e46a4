//! Exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyInt;
use rackline::cuda::GpuError;
use rackline::{OpenError, SessionError, SubmitError, SubmitErrorKind};

create_exception!(
    rackline,
    Error,
    PyException,
    "A call failed: the message says why, and what to do. The base of all exceptions of Rackline."
);
create_exception!(
    rackline,
    Busy,
    Error,
    "A queue is full: continue without the transfer, or try again later."
);
create_exception!(rackline, Closed, Error, "The pool was closed in this process.");
create_exception!(
    rackline,
    Forked,
    Error,
    "This process is a forked child of the process that attached: attach again in the child."
);

create_exception!(
    rackline,
    MembershipLost,
    Error,
    "This process has lost its membership of the pool, for example because its node was declared dead. Close the pool and attach again."
);

/// The exception for a pool that is not open, or not for these blocks.
pub(crate) fn not_open(failure: OpenError) -> PyErr {
    let message = failure.to_string();
    match failure {
        OpenError::Forked => Forked::new_err(message),
        OpenError::Closed => Closed::new_err(message),
        // Any other is of the options.
        _ => error(message),
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
        // Any other is of the buffers.
        _ => error(failure),
    }
}

/// The exception for anything that says what is wrong.
pub(crate) fn error(message: impl ToString) -> PyErr {
    Error::new_err(message.to_string())
}

/// The exception for work that was not taken up; what was given is dropped.
pub(crate) fn refused<T>(refused: SubmitError<T>) -> PyErr {
    refused_because(refused.kind)
}

/// The exception for work that is not taken up.
pub(crate) fn refused_because(kind: SubmitErrorKind) -> PyErr {
    let message = kind.to_string();
    match kind {
        SubmitErrorKind::Busy => Busy::new_err(message),
        SubmitErrorKind::Forked => Forked::new_err(message),
        SubmitErrorKind::Closed => Closed::new_err(message),
        SubmitErrorKind::NoLayers => error(
            "the pool was attached without publishes_by_layers: attach it with \
             publishes_by_layers=True",
        ),
        SubmitErrorKind::Gpu(failure) => match *failure {
            GpuError::NotOpen { gpu } => error(format!(
                "GPU {gpu} is not open in this pool: call Pool.gpu({gpu}) once, before the first \
                 transfer of its memory"
            )),
            _ => error(message),
        },
        _ => error(message),
    }
}
