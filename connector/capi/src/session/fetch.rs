//! Fetching blocks.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_void;

use rackline::memory::Access;
use rackline::{Fetched, MatchedBlock};

use super::arguments::{answer_at, open_at};
use super::error::{Failure, RacklineError, c_text, keep_message};
use super::gpu::{At, RacklineGpu};
use super::handles::{self, Opened};
use super::lent::{Asked, LentDestination, RacklineDestination, Transfer};
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
    /// Blocks, from the first on, that have their right bytes. The content of the others is
    /// undefined.
    pub valid_blocks: usize,
    /// Why the next one is not good; none when all are. `rackline_error_message` says it for
    /// people.
    pub reason: RacklineReason,
}

pub(super) struct Fetch(Pending<Fetched<LentDestination>>);

impl Opened for Fetch {
    const KIND: &'static str = "a fetch";
}

/// Starts a fetch of the blocks that `named` names, whose handle it writes to `fetch`.
///
/// # Safety
/// As [`rackline_fetch`] or [`rackline_fetch_into_gpu`], with the parts of as many blocks.
unsafe fn start(
    asked: Asked<RacklineDestination>,
    named: impl FnOnce() -> Result<Vec<MatchedBlock>, Failure>,
    fetch: *mut RacklineFetch,
) -> RacklineError {
    let open = || {
        // SAFETY: by the caller's promise.
        let Transfer { session, named, memory, .. } =
            unsafe { asked.transfer(Access::Write, named) }?;
        // SAFETY: by the caller's promise, until the fetch is over: its completion comes after the
        // blocks were used for the last time.
        let memory = unsafe { memory.into_destinations() };
        Ok(Fetch(session.fetch(named, memory)?.into()))
    };
    // SAFETY: by the caller's promise.
    unsafe { open_at(fetch.cast(), "the place for the fetch", open) }
}

/// `count` blocks of a prefix, from number `first` on.
pub(super) fn of_prefix(
    prefix: RacklinePrefix,
    first: usize,
    count: usize,
) -> Result<Vec<MatchedBlock>, Failure> {
    let prefix = handles::get::<Prefix>(prefix.handle)?;
    Ok(prefix.part(first, count)?.to_vec())
}

/// Fetches `count` blocks of a prefix, from number `first` on. The bytes of the first of them go
/// into the parts `parts[0]` to `parts[parts_a_block - 1]`, filled in this order, those of the next
/// block into the following parts, and so on. The parts of a block together are as long as a block
/// of the session, and no two parts share bytes.
///
/// Does not wait: `rackline_fetch_wait` has the result. The array is not needed after return; the
/// memory of the parts is lent until the fetch is over. Keep a held prefix for as long.
///
/// # Safety
/// `parts` is null or points to `count * parts_a_block` parts. The memory of the parts exists, and
/// nothing reads or writes it, until the fetch is over. `fetch` is null or points to a handle that
/// nothing else uses during the call.
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
    let asked = Asked { session, at: At::Process, parts, parts_a_block, layers: None };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, blocks, fetch) }
}

/// As `rackline_fetch`, of blocks that another process of the rack found
/// (`rackline_prefix_handles`), one after the other in a prompt.
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
    let asked = Asked { session, at: At::Process, parts, parts_a_block, layers: None };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, blocks, fetch) }
}

/// As `rackline_fetch`, into the memory of `gpu`, whose copy engines copy the blocks after the work
/// that `stream` (as in `rackline_publish_from_gpu`) had before this call. Work that is launched
/// after the fetch is over finds the bytes.
///
/// # Safety
/// As `rackline_fetch`, with parts in the memory of the GPU, which earlier work of the stream may
/// still read and write. The stream exists during the call.
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
    let at = At::GpuBehind(gpu, stream);
    let asked = Asked { session, at, parts, parts_a_block, layers: None };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, blocks, fetch) }
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
    let at = At::GpuBehind(gpu, stream);
    let asked = Asked { session, at, parts, parts_a_block, layers: None };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, blocks, fetch) }
}

/// The result of a fetch, when it comes within `timeout_ms` milliseconds: 0 only looks, and
/// `RACKLINE_FOREVER_MS` waits without a limit. Without a result `RACKLINE_ERROR_UNDER_WAY`; after
/// `RACKLINE_ERROR_OK` and `RACKLINE_ERROR_NO_RESULT` the fetch is over. The result can be taken
/// once.
///
/// # Safety
/// `result` is null or points to a result that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_wait(
    fetch: RacklineFetch,
    timeout_ms: u64,
    result: *mut RacklineFetchResult,
) -> RacklineError {
    let wait = |fetch: &Fetch| result_of(fetch.0.wait(timeout_ms)?);
    // SAFETY: by the caller's promise.
    unsafe { answer_at(result, "the place for the result", fetch.handle, wait) }
}

/// What came of a fetch, whose memory is given back.
pub(super) fn result_of(fetched: Fetched<LentDestination>) -> Result<RacklineFetchResult, Failure> {
    let Fetched { report, destinations } = fetched;
    drop(destinations);
    let report = report?;
    let reason = report.stop().map_or(RacklineReason::None, |stop| {
        keep_message(c_text(&stop.to_string()).into());
        stop.into()
    });
    Ok(RacklineFetchResult { valid_blocks: report.valid_blocks(), reason })
}

/// `rackline_fetch_wait` that only looks.
///
/// # Safety
/// `result` is null or points to a result that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_poll(
    fetch: RacklineFetch,
    result: *mut RacklineFetchResult,
) -> RacklineError {
    // SAFETY: by the caller's promise.
    unsafe { rackline_fetch_wait(fetch, 0, result) }
}

/// Revokes a fetch that has not begun, and says so in `cancelled`: then it is over, and has no
/// result. Otherwise the fetch continues unchanged.
///
/// # Safety
/// `cancelled` is null or points to a value that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_cancel(
    fetch: RacklineFetch,
    cancelled: *mut bool,
) -> RacklineError {
    let cancel = |fetch: &Fetch| Ok(fetch.0.cancel());
    // SAFETY: by the caller's promise.
    unsafe { answer_at(cancelled, "the place for the answer", fetch.handle, cancel) }
}

/// Frees a fetch. After return it is over: it was cancelled, or this call waited for it. A fetch
/// that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_fetch_free(fetch: RacklineFetch) -> RacklineError {
    handles::free(fetch.handle, |fetch: &Fetch| fetch.0.finish())
}
