//! Arguments that C passes by address, and places where it wants results.
#![expect(unsafe_code, reason = "addresses that C passes")]

use std::ffi::c_char;
use std::mem::MaybeUninit;

use super::error::{Failure, RacklineError, code};
use super::handles::{self, Opened};
use crate::text::text_at;

/// The text at `text`, which is called `what` in messages.
///
/// # Safety
/// `text` is null, or points to bytes that end with a NUL and stay unchanged during the call.
pub(super) unsafe fn text<'t>(text: *const c_char, what: &str) -> Result<&'t str, Failure> {
    // SAFETY: by the caller's promise.
    let text = unsafe { text_at(text, what) };
    text.map_err(|failure| Failure::bad_argument(failure.message))
}

/// The `count` values at `address`, which are called `what` in messages. Without values the address
/// does not matter.
///
/// # Safety
/// `address` is null, or points to `count` values of a type that any bytes are a value of, or that
/// C has made, and that stay unchanged during the call.
pub(super) unsafe fn values<'v, T>(
    address: *const T,
    count: usize,
    what: &str,
) -> Result<&'v [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check(address, what)?;
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    if bytes.and_then(|bytes| address.addr().checked_add(bytes)).is_none() {
        let message = format!("{what}: {count} of them reach beyond what can be addressed");
        return Err(Failure::bad_argument(message));
    }
    // SAFETY: not null, aligned, and of a length that can be (checked above); the rest by the
    // caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(address, count) })
}

/// The value at `address`, if there is one.
///
/// # Safety
/// As [`values`].
pub(super) unsafe fn optional<'v, T>(
    address: *const T,
    what: &str,
) -> Result<Option<&'v T>, Failure> {
    let count = usize::from(!address.is_null());
    // SAFETY: by the caller's promise.
    let values = unsafe { values(address, count, what) };
    Ok(values?.first())
}

/// The value at `address`.
///
/// # Safety
/// As [`values`].
pub(super) unsafe fn value<'v, T>(address: *const T, what: &str) -> Result<&'v T, Failure> {
    // SAFETY: by the caller's promise.
    let value = unsafe { optional(address, what) };
    value?.ok_or_else(|| null(what))
}

/// The place for `count` results at `address`.
///
/// # Safety
/// `address` is null, or points to memory for `count` values that nothing else uses during the
/// call.
pub(super) unsafe fn places<'p, T>(
    address: *mut T,
    count: usize,
    what: &str,
) -> Result<&'p mut [MaybeUninit<T>], Failure> {
    let address: *mut MaybeUninit<T> = address.cast();
    // SAFETY: any bytes are a `MaybeUninit`, so what `values` wants of them is that they are there.
    // This one is dropped at once: it is for the checks.
    unsafe { values(address.cast_const(), count, what) }?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: checked by `values`; nobody else uses the memory by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(address, count) })
}

/// The place for a result at `address`.
///
/// # Safety
/// As [`places`].
pub(super) unsafe fn place<'p, T>(
    address: *mut T,
    what: &str,
) -> Result<&'p mut MaybeUninit<T>, Failure> {
    // SAFETY: by the caller's promise.
    let places = unsafe { places(address, 1, what) };
    places?.first_mut().ok_or_else(|| null(what))
}

/// Opens what `open` makes, and writes its number to `handle`, which is called `what` in messages: 0
/// where nothing is opened.
///
/// # Safety
/// `handle` is null or points to a handle, which is a number, that nothing else uses during the call.
pub(super) unsafe fn open_at<T: Opened>(
    handle: *mut u64,
    what: &str,
    open: impl FnOnce() -> Result<T, Failure>,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let handle = unsafe { place(handle, what) }?;
        handle.write(0);
        handle.write(handles::open(open()?));
        Ok(())
    })
}

/// Writes to `result`, which is called `what` in messages, what `answer` makes of what the number
/// `handle` stands for.
///
/// # Safety
/// As [`place`].
pub(super) unsafe fn answer_at<T: Opened, R>(
    result: *mut R,
    what: &str,
    handle: u64,
    answer: impl FnOnce(&T) -> Result<R, Failure>,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let result = unsafe { place(result, what) }?;
        result.write(answer(&*handles::get::<T>(handle)?)?);
        Ok(())
    })
}

fn check<T>(address: *const T, what: &str) -> Result<(), Failure> {
    if address.is_null() {
        return Err(null(what));
    }
    if !address.is_aligned() {
        let message = format!("{what}: {address:p} is not aligned to {} bytes", align_of::<T>());
        return Err(Failure::bad_argument(message));
    }
    Ok(())
}

fn null(what: &str) -> Failure {
    Failure::bad_argument(format!("{what}: a null pointer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T: std::fmt::Debug>(outcome: Result<T, Failure>) -> String {
        outcome.unwrap_err().message.into_owned().into_string().unwrap()
    }

    #[test]
    fn addresses_that_cannot_be_are_refused() {
        let numbers = [1u32, 2, 3];
        let at = numbers.as_ptr();
        // SAFETY: three numbers are there.
        assert_eq!(unsafe { values(at, 3, "numbers") }.unwrap(), numbers);
        // SAFETY: nothing is read.
        assert!(unsafe { values(std::ptr::null::<u32>(), 0, "numbers") }.unwrap().is_empty());
        // SAFETY: refused.
        let null = refused(unsafe { values(std::ptr::null::<u32>(), 1, "numbers") });
        assert_eq!(null, "numbers: a null pointer");
        // SAFETY: refused.
        let odd = refused(unsafe { values(at.wrapping_byte_add(1), 1, "numbers") });
        assert!(odd.contains("not aligned to 4 bytes"), "{odd}");
        // SAFETY: refused.
        let endless = refused(unsafe { values(at, usize::MAX / 2, "numbers") });
        assert!(endless.contains("beyond"), "{endless}");
        // SAFETY: refused.
        let nowhere = refused(unsafe { place(std::ptr::null_mut::<u32>(), "the count") });
        assert_eq!(nowhere, "the count: a null pointer");
        // SAFETY: null is allowed.
        assert_eq!(unsafe { optional(std::ptr::null::<u32>(), "options") }.unwrap(), None);
    }

    #[test]
    fn results_land_in_their_places() {
        let mut numbers = [0u32; 2];
        // SAFETY: two numbers are there, and nobody else uses them.
        let at = unsafe { places(numbers.as_mut_ptr(), 2, "numbers") }.unwrap();
        at[0].write(7);
        at[1].write(8);
        assert_eq!(numbers, [7, 8]);
    }
}
