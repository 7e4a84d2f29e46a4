//! Texts that come from C.
#![expect(unsafe_code, reason = "texts that C passes")]

use std::ffi::{CStr, c_char};

use crate::error::{CxlShmError, Failure};

/// The text at `text`, which is called `what` in messages.
///
/// # Safety
/// `text` is null, or points to bytes that end with a NUL and stay unchanged during the call.
pub(crate) unsafe fn text_at<'t>(text: *const c_char, what: &str) -> Result<&'t str, Failure> {
    if text.is_null() {
        return Err(Failure::new(CxlShmError::BadArgument, format!("{what} is a null pointer")));
    }
    // SAFETY: not null (checked above), NUL-terminated and unchanged by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Failure::new(CxlShmError::BadArgument, format!("{what} is not UTF-8 text")))
}
