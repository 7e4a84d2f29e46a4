//! Error codes of the session calls, and the message of the last one of a thread.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::AssertUnwindSafe;

use rackline::cuda::GpuError;
use rackline::{OpenError, SessionError, SubmitError, SubmitErrorKind};

/// What a call returned. Zero is success; `rackline_error_message` says what was wrong and what to
/// do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum RacklineError {
    /// Done.
    Ok = 0,
    /// An argument is null, not a text, out of range, or does not fit the others.
    BadArgument = -1,
    /// A handle is not open in this process (it was freed, or never made), or is one of another
    /// kind.
    BadHandle = -2,
    /// The pool cannot be opened or joined, or the memory is not a pool. Or the pool was attached
    /// without the option that the call needs (`publishes_by_layers`).
    Pool = -3,
    /// The queue is full. Nothing is changed. Continue without the transfer, or try again later.
    Busy = -4,
    /// The pool was closed in this process.
    Closed = -5,
    /// This process is a child made by `fork`, and only its parent is attached. It may attach by
    /// itself.
    Forked = -6,
    /// The transfer is still under way: wait again, or poll later.
    UnderWay = -7,
    /// The transfer has no result: the result was already taken, the transfer was cancelled, or its
    /// thread panicked and said so on standard error. Of a wait for a layer: the layer does not
    /// arrive any more.
    NoResult = -8,
    /// A mistake in this library, reported on standard error. The work of the call may be half done
    /// in this process. The pool is as consistent as after the death of a process.
    Panicked = -9,
    /// Memory of this transfer is lent to another transfer, and one of the two writes it. Nothing
    /// is changed. Wait for the other transfer, or free it.
    Lent = -10,
    /// The GPU cannot be used, or is not open in the pool of the session. Or the copy cannot be
    /// ordered after the stream, for example because the stream is being captured into a graph.
    /// Nothing is changed.
    Gpu = -11,
    /// This attachment is over: close the pool and attach again. This process has lost its
    /// membership, for example because its node was declared dead, and every call of its sessions
    /// fails. Attaching works when all processes of the host have closed their pools.
    MembershipLost = -12,
}

impl RacklineError {
    const ALL: [Self; 13] = [
        Self::Ok,
        Self::BadArgument,
        Self::BadHandle,
        Self::Pool,
        Self::Busy,
        Self::Closed,
        Self::Forked,
        Self::UnderWay,
        Self::NoResult,
        Self::Panicked,
        Self::Lent,
        Self::Gpu,
        Self::MembershipLost,
    ];

    /// Its name in the header.
    fn name(self) -> &'static CStr {
        match self {
            Self::Ok => c"RACKLINE_ERROR_OK",
            Self::BadArgument => c"RACKLINE_ERROR_BAD_ARGUMENT",
            Self::BadHandle => c"RACKLINE_ERROR_BAD_HANDLE",
            Self::Pool => c"RACKLINE_ERROR_POOL",
            Self::Busy => c"RACKLINE_ERROR_BUSY",
            Self::Closed => c"RACKLINE_ERROR_CLOSED",
            Self::Forked => c"RACKLINE_ERROR_FORKED",
            Self::UnderWay => c"RACKLINE_ERROR_UNDER_WAY",
            Self::NoResult => c"RACKLINE_ERROR_NO_RESULT",
            Self::Panicked => c"RACKLINE_ERROR_PANICKED",
            Self::Lent => c"RACKLINE_ERROR_LENT",
            Self::Gpu => c"RACKLINE_ERROR_GPU",
            Self::MembershipLost => c"RACKLINE_ERROR_MEMBERSHIP_LOST",
        }
    }
}

/// An error on its way to C.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: RacklineError,
    pub(super) message: Cow<'static, CStr>,
}

impl Failure {
    pub(super) fn new(code: RacklineError, message: impl ToString) -> Self {
        Self { code, message: Cow::Owned(c_text(&message.to_string())) }
    }

    /// One that is part of the usual course of things, and is made without an allocation.
    pub(super) const fn usual(code: RacklineError, message: &'static CStr) -> Self {
        Self { code, message: Cow::Borrowed(message) }
    }

    pub(super) fn bad_argument(message: impl ToString) -> Self {
        Self::new(RacklineError::BadArgument, message)
    }

    fn keep(self) -> RacklineError {
        keep_message(self.message);
        self.code
    }
}

/// A session that was not opened.
impl From<OpenError> for Failure {
    fn from(refused: OpenError) -> Self {
        let code = match refused {
            OpenError::Forked => RacklineError::Forked,
            OpenError::Closed => RacklineError::Closed,
            // Any other is of the options.
            _ => RacklineError::BadArgument,
        };
        Self::new(code, refused)
    }
}

/// Work that was not carried out.
impl From<SessionError> for Failure {
    fn from(refused: SessionError) -> Self {
        match refused {
            SessionError::MembershipLost(_) => Self::new(RacklineError::MembershipLost, refused),
            // Any other is of the buffers.
            _ => Self::bad_argument(refused),
        }
    }
}

/// Work that was not taken up; what was given is dropped.
impl<T> From<SubmitError<T>> for Failure {
    fn from(refused: SubmitError<T>) -> Self {
        refused.kind.into()
    }
}

/// The same of GPUs.
impl From<GpuError> for Failure {
    fn from(refused: GpuError) -> Self {
        SubmitErrorKind::from(refused).into()
    }
}

/// Work that was not taken up.
impl From<SubmitErrorKind> for Failure {
    fn from(refused: SubmitErrorKind) -> Self {
        let code = match &refused {
            SubmitErrorKind::Busy => RacklineError::Busy,
            SubmitErrorKind::Forked => RacklineError::Forked,
            SubmitErrorKind::Closed => RacklineError::Closed,
            SubmitErrorKind::Gpu(error) => {
                if let GpuError::NotOpen { gpu } = **error {
                    let message = format!(
                        "GPU {gpu} is not open in the pool of this session: it was opened in another, \
                         call rackline_gpu_open with this one"
                    );
                    return Self::new(RacklineError::Gpu, message);
                }
                RacklineError::Gpu
            }
            // Any other is of how the pool was attached.
            _ => RacklineError::Pool,
        };
        Self::new(code, refused)
    }
}

/// A text for C. No message of ours has a NUL, at most a name in one.
pub(super) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

thread_local! {
    static LAST: RefCell<Cow<'static, CStr>> = const { RefCell::new(Cow::Borrowed(c"")) };
}

/// Keeps `message` for [`rackline_error_message`].
pub(super) fn keep_message(message: Cow<'static, CStr>) {
    // A thread that is ending may have none any more.
    let _ = LAST.try_with(|last| last.replace(message));
}

/// The code of what `call` came to, its message kept. A panic is an error, too (CAPI-I9).
pub(super) fn code(call: impl FnOnce() -> Result<(), Failure>) -> RacklineError {
    // What a panic may leave half done is locks, whose users know what to make of a poisoned one,
    // and shared memory, whose protocols outlive whole processes.
    match std::panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => RacklineError::Ok,
        Ok(Err(failure)) => failure.keep(),
        Err(panic) => Failure::new(RacklineError::Panicked, said_by(panic.as_ref())).keep(),
    }
}

fn said_by(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a mistake in the library: {}", said.unwrap_or("it did not say which"))
}

/// What was wrong in the last such call of this thread: a text, empty when there was none. Such a
/// call returned an error, or a result with missing blocks (a hold, `RacklinePublishResult`,
/// `RacklineFetchResult`; not a lookup that finds fewer), or said that a GPU uses a buffer
/// (`rackline_gpu_reach`). The text stays valid until the next such call of the same thread.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_error_message() -> *const c_char {
    let last = LAST.try_with(|last| last.borrow().as_ptr());
    last.unwrap_or(c"".as_ptr())
}

/// The name of an error code, as in this header: `"RACKLINE_ERROR_BUSY"`, say. The text stays
/// valid. For a number that is not a code it is `"RACKLINE_ERROR_UNKNOWN"`.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_error_name(code: i32) -> *const c_char {
    let known = RacklineError::ALL.into_iter().find(|known| *known as i32 == code);
    known.map_or(c"RACKLINE_ERROR_UNKNOWN", RacklineError::name).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        LAST.with_borrow(|last| last.to_string_lossy().into_owned())
    }

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        assert_eq!(code(|| panic!("on purpose {}", 7)), RacklineError::Panicked);
        assert!(message().ends_with("on purpose 7"), "{}", message());
        assert_eq!(code(|| panic!("in one piece")), RacklineError::Panicked);
        assert!(message().ends_with("in one piece"), "{}", message());
    }

    #[test]
    fn a_success_leaves_the_message() {
        assert_eq!(code(|| Err(Failure::bad_argument("a\0b"))), RacklineError::BadArgument);
        assert_eq!(code(|| Ok(())), RacklineError::Ok);
        assert_eq!(message(), "a?b");
    }

    #[test]
    fn every_code_has_its_name() {
        for code in RacklineError::ALL {
            let name = code.name().to_str().unwrap().strip_prefix("RACKLINE_ERROR_").unwrap();
            let debug = format!("{code:?}").to_uppercase();
            assert_eq!(name.replace('_', ""), debug);
        }
    }
}
