//! Blocks on drives that are restored ahead of a lookup.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::time::Duration;

use rackline::{AsyncPrefetch, AsyncSession};

use super::arguments::{open_at, place, value};
use super::error::{Failure, RacklineError, c_text, code, keep_message};
use super::handles::{self, Opened};
use super::hashes::{RacklineBlockHash, hashes_at};
use super::lookup::RacklineRestoreOptions;
use super::opening::RacklineSession;
use super::pending::RACKLINE_FOREVER_MS;
use super::reason::RacklineReason;

/// A prefetch. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklinePrefetch {
    /// Its number.
    pub handle: u64,
}

/// What a prefetch took up. The numbers add up to the blocks that were given.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklinePrefetchResult {
    /// Blocks on drives that are asked for: at once, or as soon as earlier ones are answered.
    pub asked: usize,
    /// Blocks on drives that another prefetch of this process has asked for.
    pub under_way: usize,
    /// Blocks that are in the pool.
    pub in_pool: usize,
    /// All others: they are behind the end of what can be restored in order.
    pub not_asked: usize,
    /// Why; none when there are none.
    pub reason: RacklineReason,
}

impl Opened for AsyncPrefetch {
    const KIND: &'static str = "a prefetch";
}

/// Has the blocks of the `count` hashes at `hashes` restored that are on drives of hosts, behind the end
/// of the pool's prefix and in the order of the prompt, for a lookup that comes later. Holds nothing, and
/// does not wait: `rackline_prefetch_wait` says what it took up. What does not come within the wait of
/// `restore` is not restored. A lookup finds in the pool what came; `rackline_lookup_and_restore` waits for
/// what is under way, and a block is asked for once.
///
/// # Safety
/// `hashes` is null or points to `count` hashes; `restore` is null or points to options; `prefetch`
/// is null or points to a handle that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_prefetch(
    session: RacklineSession,
    hashes: *const RacklineBlockHash,
    count: usize,
    restore: *const RacklineRestoreOptions,
    prefetch: *mut RacklinePrefetch,
) -> RacklineError {
    let open = || {
        let session = handles::get::<AsyncSession>(session.handle)?;
        // SAFETY: by the caller's promise.
        let hashes = unsafe { hashes_at(hashes, count) }?;
        // SAFETY: by the caller's promise.
        let restore = unsafe { value(restore, "the options of the restore") }?;
        Ok(session.prefetch(hashes, restore.options())?)
    };
    // SAFETY: by the caller's promise.
    unsafe { open_at(prefetch.cast(), "the place for the prefetch", open) }
}

/// What a prefetch took up, when that is known within `timeout_ms` milliseconds: 0 only looks, and
/// `RACKLINE_FOREVER_MS` waits without a limit. It takes about a millisecond. Else
/// `RACKLINE_ERROR_UNDER_WAY`; and `RACKLINE_ERROR_NO_RESULT` for one that was taken back before it
/// began. May be asked again. Does not wait for the blocks.
///
/// # Safety
/// `result` is null or points to a result that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_prefetch_wait(
    prefetch: RacklinePrefetch,
    timeout_ms: u64,
    result: *mut RacklinePrefetchResult,
) -> RacklineError {
    const UNDER_WAY: Failure =
        Failure::usual(RacklineError::UnderWay, c"the prefetch has not begun yet");
    code(|| {
        // SAFETY: by the caller's promise.
        let result = unsafe { place(result, "the place for the result") }?;
        let prefetch = handles::get::<AsyncPrefetch>(prefetch.handle)?;
        let told = match timeout_ms {
            RACKLINE_FOREVER_MS => prefetch.wait().map(Some),
            _ => prefetch.wait_timeout(Duration::from_millis(timeout_ms)),
        };
        let told = told.map_err(|lost| Failure::new(RacklineError::NoResult, lost.to_string()))?;
        let told = told.ok_or(UNDER_WAY)??;
        let reason = told.stop().map_or(RacklineReason::None, |stop| {
            keep_message(c_text(&stop.to_string()).into());
            RacklineReason::from(stop)
        });
        result.write(RacklinePrefetchResult {
            asked: told.asked(),
            under_way: told.under_way(),
            in_pool: told.in_pool(),
            not_asked: told.not_asked(),
            reason,
        });
        Ok(())
    })
}

/// Takes a prefetch back: what has not come, and no other prefetch or lookup waits for, is not restored.
/// A second call does nothing.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_prefetch_cancel(prefetch: RacklinePrefetch) -> RacklineError {
    code(|| {
        handles::get::<AsyncPrefetch>(prefetch.handle)?.cancel();
        Ok(())
    })
}

/// Frees a prefetch, which goes on. One that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_prefetch_free(prefetch: RacklinePrefetch) -> RacklineError {
    handles::free::<AsyncPrefetch>(prefetch.handle, |_| ())
}
