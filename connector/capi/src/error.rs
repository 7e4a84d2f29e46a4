//! Error codes, and the message of the last error of a thread.
#![expect(unsafe_code, reason = "a function that C calls")]

use std::cell::RefCell;
use std::ffi::{CString, c_char};

/// What a call returned. Zero is success, and a larger value is success with a notice. After an
/// error `cxl_shm_last_error` says what was wrong and what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum CxlShmError {
    /// Done.
    Ok = 0,
    /// The lock is acquired, as with `CXL_SHM_ERROR_OK`. A thread that held it died, and what it
    /// protects may be half done: see `cxl_shm_acquire_lock`.
    HolderDied = 1,
    /// This process is not attached to a region, or the calling one is a child of `fork`.
    NotAttached = -1,
    /// An argument is null, not a text, out of range, or no pointer into the region.
    BadArgument = -2,
    /// The region cannot be opened, made or joined.
    Region = -3,
    /// A lock was not acquired in time, or no lock manager grants it.
    Lock = -4,
    /// The calling thread does not hold the lock, or holds it already.
    NotHeld = -5,
    /// There is not enough free memory, or no free lock.
    Exhausted = -6,
    /// There is no object, root or lock of that name.
    NotFound = -7,
    /// That name is already in use.
    Exists = -8,
    /// What was read from the region is damaged.
    Damaged = -9,
}

/// An error on its way to C.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: CxlShmError,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: CxlShmError, message: impl ToString) -> Self {
        Self { code, message: message.to_string() }
    }

    /// Keeps the message for [`cxl_shm_last_error`].
    pub(crate) fn keep(self) -> CxlShmError {
        // A NUL cannot come from a message of ours, at most from a name in one.
        let text = CString::new(self.message.replace('\0', "?")).unwrap_or_default();
        LAST.set(text);
        self.code
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The code of `outcome`, its message kept.
pub(crate) fn code(outcome: Result<(), Failure>) -> CxlShmError {
    // A panic never gets here (CAPI-I3).
    outcome.map_or_else(Failure::keep, |()| CxlShmError::Ok)
}

/// What went wrong in the last call of this thread that failed: a text, empty when none did. It
/// stays valid until the next failing call of the same thread.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_last_error() -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}
