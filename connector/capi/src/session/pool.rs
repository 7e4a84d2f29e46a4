//! The attachment of a process.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_char;
use std::fmt::Write as _;
use std::path::Path;

use rackline::{AsyncPool, LossCause};

use super::arguments::{answer_at, open_at, place, places, text};
use super::error::{Failure, RacklineError, c_text, code};
use super::handles::{self, Opened};
use super::options::{RacklinePoolOptions, options_at};
use crate::log;

/// This process, attached to a pool. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklinePool {
    /// Its number.
    pub handle: u64,
}

impl Opened for AsyncPool {
    const KIND: &'static str = "a pool";
}

/// Attaches this process to the pool in the memory at `region` (a devdax device or a file) as one
/// of node `node`, and starts its threads. Every host of the rack has a node number of its own,
/// from 0, and its processes share it; a single host is node 0. Without `options` (null) all have
/// their defaults.
///
/// Attach once a process, for all its threads.
///
/// # Safety
/// `region` is null or points to a text that ends with a NUL; `options` is null or points to
/// options, whose quotas are null or as many as they say, each with a tenant that is null or ends
/// with a NUL, and a salt that is null or has its length; `pool` is null or points to a handle that
/// nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_pool_attach(
    region: *const c_char,
    node: u16,
    options: *const RacklinePoolOptions,
    pool: *mut RacklinePool,
) -> RacklineError {
    let open = || {
        // SAFETY: by the caller's promise.
        let region = unsafe { text(region, "the path of the region") }?;
        // SAFETY: by the caller's promise.
        let options = unsafe { options_at(options) }?;
        log::start();
        let attached = AsyncPool::attach(Path::new(region), node, &options);
        attached.map_err(|error| Failure::new(RacklineError::Pool, error))
    };
    // SAFETY: by the caller's promise.
    unsafe { open_at(pool.cast(), "the place for the pool", open) }
}

/// Accepts no more work, waits for accepted work, leaves the pool, and frees its handle. Remaining
/// sessions and transfers are still to be freed; every call of such a session returns
/// `RACKLINE_ERROR_CLOSED`. A pool that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_pool_close(pool: RacklinePool) -> RacklineError {
    handles::free(pool.handle, |pool: &AsyncPool| pool.close())
}

/// The node that this process belongs to.
///
/// # Safety
/// `node` is null or points to a number that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_pool_node(pool: RacklinePool, node: *mut u16) -> RacklineError {
    let of_pool = |pool: &AsyncPool| Ok(pool.node().0);
    // SAFETY: by the caller's promise.
    unsafe { answer_at(node, "the place for the node", pool.handle, of_pool) }
}

/// Counters of this process since it attached, by their names; misses as `misses.evicted`, say, and
/// why it does not take part any more as 1 of `membership_lost.declared_dead`, say.
fn counters(pool: RacklinePool) -> Result<Vec<(String, u64)>, Failure> {
    let metrics = handles::get::<AsyncPool>(pool.handle)?.metrics();
    let counters = metrics.counters().into_iter().map(|(name, value)| (name.to_owned(), value));
    let misses = metrics.all_misses();
    let misses = misses.map(|(reason, count)| (format!("misses.{}", reason.label()), count));
    let lost = LossCause::ALL.map(|cause| {
        let is_so = metrics.lost().is_some_and(|lost| lost.cause == cause);
        (format!("membership_lost.{}", cause.name()), u64::from(is_so))
    });
    Ok(counters.chain(misses).chain(lost).collect())
}

/// The counter `name` of this process since it attached: `"lookup_hits"`, say, or
/// `"misses.evicted"`. `rackline_pool_metrics` lists them all. `"membership_lost"` is 1 once this
/// process has lost its membership, and every call fails (`RACKLINE_ERROR_MEMBERSHIP_LOST`).
///
/// # Safety
/// `name` is null or points to a text that ends with a NUL; `value` is null or points to a number
/// that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_pool_metric(
    pool: RacklinePool,
    name: *const c_char,
    value: *mut u64,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let value = unsafe { place(value, "the place for the value") }?;
        // SAFETY: by the caller's promise.
        let name = unsafe { text(name, "the name of the counter") }?;
        let counter = counters(pool)?.into_iter().find(|(known, _)| known == name);
        let (_, counted) = counter.ok_or_else(|| {
            Failure::bad_argument(format!(
                "there is no counter \"{name}\": rackline_pool_metrics lists them"
            ))
        })?;
        value.write(counted);
        Ok(())
    })
}

/// All counters of this process since it attached, as a text: a line each, with name and value
/// (`lookup_hits 17`). The length of the text with its final NUL is written to `bytes`; the text to
/// `text`, when the `capacity` bytes there are enough for it, else it is an error and nothing but
/// the length is written. With a capacity of 0 the text may be null, and only the length is asked
/// for.
///
/// # Safety
/// `text` is null or points to `capacity` bytes, and `bytes` is null or points to a number, that
/// nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_pool_metrics(
    pool: RacklinePool,
    text: *mut c_char,
    capacity: usize,
    bytes: *mut usize,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let bytes = unsafe { place(bytes, "the place for the length") }?;
        // SAFETY: by the caller's promise.
        let places = unsafe { places(text.cast::<u8>(), capacity, "the place for the text") }?;
        let mut lines = String::new();
        for (name, value) in counters(pool)? {
            // A string takes whatever is written to it.
            let _ = writeln!(lines, "{name} {value}");
        }
        let lines = c_text(&lines);
        let lines = lines.as_bytes_with_nul();
        bytes.write(lines.len());
        if capacity == 0 {
            return Ok(());
        }
        let Some(places) = places.get_mut(..lines.len()) else {
            let needed = lines.len();
            let message = format!("the text has {needed} bytes, there is room for {capacity}");
            return Err(Failure::bad_argument(message));
        };
        for (place, byte) in places.iter_mut().zip(lines) {
            place.write(*byte);
        }
        Ok(())
    })
}
