//! Fetching blocks.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_void;

use connector::session::FetchStop;
use connector::transfer::{Fetched, TransferSession};
use kv_cache::MatchedBlock;

use super::arguments::place;
use super::error::{Failure, RacklineError, c_text, code, keep_message};
use super::gpu::{GpuStream, RacklineGpu};
use super::handles::{self, Opened};
use super::lent::{LentDestination, MemoryOf, RacklineDestination, destinations_at};
use super::opening::RacklineSession;
use super::pending::Pending;
use super::prefix::{Prefix, RacklineBlockHandle, RacklinePrefix, blocks_at};
use super::reason::RacklineReason;

/// A fetch under way. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineFetch {
    /// Its number.
    pub handle: u64,
}

/// How much of a fetch is good.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineFetchResult {
    /// Blocks, from the first on, that have their right bytes. What is in the others is undefined.
    pub valid_blocks: usize,
    /// Why the next one is not good; none when all are. `rackline_error_message` says it for people.
    pub reason: RacklineReason,
}

pub(super) struct Fetch(Pending<Fetched<LentDestination>>);

impl Opened for Fetch {
    const KIND: &'static str = "a fetch";
}

/// Starts a fetch of `blocks` on the session, whose handle it writes to `fetch`; into the GPU of
/// `stream`, if there is one.
///
/// # Safety
/// As [`rackline_fetch`], or [`rackline_fetch_into_gpu`], with as many parts as `blocks` wants.
unsafe fn start(
    session: RacklineSession,
    stream: Option<GpuStream>,
    blocks: impl FnOnce() -> Result<Vec<MatchedBlock>, Failure>,
    parts: *const RacklineDestination,
    parts_a_block: usize,
    fetch: *mut RacklineFetch,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let fetch = unsafe { place(fetch, "the place for the fetch") }?;
        fetch.write(RacklineFetch { handle: 0 });
        let session = handles::get::<TransferSession>(session.handle)?;
        // SAFETY: by the caller's promise.
        let stream = stream.map(|stream| unsafe { stream.found() }).transpose()?;
        let blocks = blocks()?;
        let (count, block_bytes) = (blocks.len(), session.options().block_bytes);
        let of = if stream.is_some() { MemoryOf::Gpu } else { MemoryOf::Process };
        let lending = handles::lending()?;
        // SAFETY: by the caller's promise. Until the fetch is over: its completion comes after the
        // blocks were used for the last time.
        let destinations =
            unsafe { destinations_at(parts, count, parts_a_block, block_bytes, of, lending) }?;
        let submitted = match stream {
            None => session.fetch(blocks, destinations)?,
            Some((gpu, stream)) => session.fetch_into_gpu(gpu, stream, blocks, destinations)?,
        };
        fetch.write(RacklineFetch { handle: handles::open(Fetch(Pending::new(submitted))) });
        Ok(())
    })
}

/// `count` blocks of a prefix, from number `first` on.
fn of_prefix(
    prefix: RacklinePrefix,
    first: usize,
    count: usize,
) -> Result<Vec<MatchedBlock>, Failure> {
    let prefix = handles::get::<Prefix>(prefix.handle)?;
    Ok(prefix.part(first, count)?.to_vec())
}

/// Fetches `count` blocks of a prefix, from number `first` on. The bytes of the first of them go into
/// the parts `parts[0]` to `parts[parts_a_block - 1]`, filled in this order, those of the next into as
/// many parts behind, and so on; the parts of a block together are as long as a block of the session,
/// and no two parts share bytes.
///
/// Does not wait: `rackline_fetch_wait` has the result. The array is not needed after return; the
/// memory of the parts is lent until the fetch is over. A prefix that is held is to be kept as long.
///
/// # Safety
/// `parts` is null or points to `count * parts_a_block` parts. The memory of the parts exists, and
/// nobody reads or writes it, until the fetch is over. `fetch` is null or points to a handle that
/// nobody else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch(
    session: RacklineSession,
    prefix: RacklinePrefix,
    first: usize,
    count: usize,
    parts: *const RacklineDestination,
    parts_a_block: usize,
    fetch: *mut RacklineFetch,
) -> RacklineError {
    let blocks = || of_prefix(prefix, first, count);
    // SAFETY: by the caller's promise.
    unsafe { start(session, None, blocks, parts, parts_a_block, fetch) }
}

/// As `rackline_fetch`, of blocks that another process of the rack found (`rackline_prefix_handles`),
/// one after the other in a prompt.
///
/// # Safety
/// As `rackline_fetch`, and `handles` is null or points to `count` handles.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_handles(
    session: RacklineSession,
    handles: *const RacklineBlockHandle,
    count: usize,
    parts: *const RacklineDestination,
    parts_a_block: usize,
    fetch: *mut RacklineFetch,
) -> RacklineError {
    // SAFETY: by the caller's promise.
    let blocks = || unsafe { blocks_at(handles, count) };
    // SAFETY: by the caller's promise.
    unsafe { start(session, None, blocks, parts, parts_a_block, fetch) }
}

/// As `rackline_fetch`, into the memory of `gpu`, whose copy engines copy the blocks when `stream` (as in
/// `rackline_publish_from_gpu`) is done with what it was given before this call. What is launched after
/// the fetch is over finds the bytes.
///
/// # Safety
/// As `rackline_fetch`, with parts in the memory of the GPU, which what the stream was given before may
/// read and write still. The stream exists during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_into_gpu(
    session: RacklineSession,
    gpu: RacklineGpu,
    stream: *mut c_void,
    prefix: RacklinePrefix,
    first: usize,
    count: usize,
    parts: *const RacklineDestination,
    parts_a_block: usize,
    fetch: *mut RacklineFetch,
) -> RacklineError {
    let blocks = || of_prefix(prefix, first, count);
    // SAFETY: by the caller's promise.
    unsafe { start(session, Some(GpuStream { gpu, stream }), blocks, parts, parts_a_block, fetch) }
}

/// As `rackline_fetch_into_gpu`, of blocks that another process of the rack found
/// (`rackline_prefix_handles`), one after the other in a prompt.
///
/// # Safety
/// As `rackline_fetch_into_gpu`, and `handles` is null or points to `count` handles.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_handles_into_gpu(
    session: RacklineSession,
    gpu: RacklineGpu,
    stream: *mut c_void,
    handles: *const RacklineBlockHandle,
    count: usize,
    parts: *const RacklineDestination,
    parts_a_block: usize,
    fetch: *mut RacklineFetch,
) -> RacklineError {
    // SAFETY: by the caller's promise.
    let blocks = || unsafe { blocks_at(handles, count) };
    // SAFETY: by the caller's promise.
    unsafe { start(session, Some(GpuStream { gpu, stream }), blocks, parts, parts_a_block, fetch) }
}

/// The result of a fetch, when it comes within `timeout_ms` milliseconds: 0 only looks, and
/// `RACKLINE_FOREVER_MS` waits as long as it takes. Without one `RACKLINE_ERROR_UNDER_WAY`; after
/// `RACKLINE_ERROR_OK` and `RACKLINE_ERROR_NO_RESULT` the fetch is over. The result is had once.
///
/// # Safety
/// `result` is null or points to a result that nobody else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_wait(
    fetch: RacklineFetch,
    timeout_ms: u64,
    result: *mut RacklineFetchResult,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let result = unsafe { place(result, "the place for the result") }?;
        let fetch = handles::get::<Fetch>(fetch.handle)?;
        let Fetched { report, destinations } = fetch.0.wait(timeout_ms)?;
        drop(destinations);
        let report = report?;
        let reason = report.stop().map_or(RacklineReason::None, |stop| {
            let message = match stop {
                FetchStop::Miss(miss) => miss.to_string(),
                FetchStop::Failed(failure) => failure.to_string(),
            };
            keep_message(c_text(&message).into());
            stop.into()
        });
        result.write(RacklineFetchResult { valid_blocks: report.valid_blocks(), reason });
        Ok(())
    })
}

/// `rackline_fetch_wait` that only looks.
///
/// # Safety
/// `result` is null or points to a result that nobody else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_poll(
    fetch: RacklineFetch,
    result: *mut RacklineFetchResult,
) -> RacklineError {
    // SAFETY: by the caller's promise.
    unsafe { rackline_fetch_wait(fetch, 0, result) }
}

/// Revokes a fetch if nothing of it was begun, and says so in `cancelled`: then it is over, and has no
/// result. Else it goes on as if nothing had happened.
///
/// # Safety
/// `cancelled` is null or points to a value that nobody else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_cancel(
    fetch: RacklineFetch,
    cancelled: *mut bool,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let cancelled = unsafe { place(cancelled, "the place for the answer") }?;
        cancelled.write(handles::get::<Fetch>(fetch.handle)?.0.cancel());
        Ok(())
    })
}

/// Frees a fetch. After return it is over: it is cancelled, or waited for when it was begun. One that
/// is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_fetch_free(fetch: RacklineFetch) -> RacklineError {
    code(|| {
        if fetch.handle != 0 {
            handles::close::<Fetch>(fetch.handle)?.0.finish();
        }
        Ok(())
    })
}
