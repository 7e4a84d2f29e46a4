//! Fetching blocks by layers.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_void;
use std::time::Duration;

use rackline::memory::Access;
use rackline::{Arrivals, Fetched, MatchedBlock, Stopped};

use super::arguments::{answer_at, open_at};
use super::error::{Failure, RacklineError, code};
use super::fetch::{RacklineFetchResult, of_prefix, result_of};
use super::gpu::{At, RacklineGpu};
use super::handles::{self, Opened};
use super::layers::{RacklineLayers, check_layer};
use super::lent::{Asked, LentDestination, RacklineDestination, Transfer};
use super::opening::RacklineSession;
use super::pending::{Pending, RACKLINE_FOREVER_MS};
use super::prefix::{RacklineBlockHandle, RacklinePrefix, blocks_at};

/// A fetch by layers under way. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineLayeredFetch {
    /// Its number.
    pub handle: u64,
}

pub(super) struct LayeredFetch {
    arrivals: Arrivals,
    whole: Pending<Fetched<LentDestination>>,
    layers: usize,
}

impl Opened for LayeredFetch {
    const KIND: &'static str = "a fetch by layers";
}

impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Forked => Self::new(RacklineError::Forked, stopped),
            _ => Self::new(RacklineError::NoResult, stopped),
        }
    }
}

/// Starts a fetch by layers of the blocks that `named` names, whose handle it writes to `fetch`.
///
/// # Safety
/// As [`rackline_fetch_by_layers`] or [`rackline_fetch_by_layers_into_gpu`], with the parts of as many
/// blocks.
unsafe fn start(
    asked: Asked<RacklineDestination>,
    named: impl FnOnce() -> Result<Vec<MatchedBlock>, Failure>,
    fetch: *mut RacklineLayeredFetch,
) -> RacklineError {
    let open = || {
        // SAFETY: by the caller's promise.
        let asked = unsafe { asked.transfer(Access::Write, named) }?;
        let Transfer { session, named, memory, layers } = asked;
        // SAFETY: as in `fetch`.
        let memory = unsafe { memory.into_destinations() };
        let count = layers.count();
        let begun = session.fetch_by_layers(named, memory, layers)?;
        let (arrivals, whole) = (begun.arrivals, begun.completion.into());
        Ok(LayeredFetch { arrivals, whole, layers: count })
    };
    // SAFETY: by the caller's promise.
    unsafe { open_at(fetch.cast(), "the place for the fetch", open) }
}

/// As `rackline_fetch`, layer by layer: layer 0 of all blocks comes first, then layer 1, and so on.
/// `layers` says which parts of a block each layer has.
///
/// Does not wait: `rackline_layered_fetch_wait_layer` waits for a layer, and
/// `rackline_layered_fetch_wait` has the result. The arrays are not needed after return; the memory
/// of the parts is lent until the fetch is over, but the program may use a layer that has arrived.
///
/// # Safety
/// `parts` is null or points to `count * parts_a_block` parts; `layers` is null or points to layers
/// whose numbers are null or as many as they say. The memory of the parts exists until the fetch is
/// over, and nothing reads or writes that of a layer until the layer has arrived or the fetch is
/// over. `fetch` is null or points to a handle that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_by_layers(
    session: RacklineSession,
    prefix: RacklinePrefix,
    first: usize,
    count: usize,
    parts: *const RacklineDestination,
    parts_a_block: usize,
    layers: *const RacklineLayers,
    fetch: *mut RacklineLayeredFetch,
) -> RacklineError {
    let (at, layers) = (At::Process, Some(layers));
    let blocks = || of_prefix(prefix, first, count);
    let asked = Asked { session, at, parts, parts_a_block, layers };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, blocks, fetch) }
}

/// As `rackline_fetch_by_layers`, of blocks that another process of the rack found
/// (`rackline_prefix_handles`), one after the other in a prompt.
///
/// # Safety
/// As `rackline_fetch_by_layers`, and `handles` is null or points to `count` handles.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_handles_by_layers(
    session: RacklineSession,
    handles: *const RacklineBlockHandle,
    count: usize,
    parts: *const RacklineDestination,
    parts_a_block: usize,
    layers: *const RacklineLayers,
    fetch: *mut RacklineLayeredFetch,
) -> RacklineError {
    let (at, layers) = (At::Process, Some(layers));
    // SAFETY: by the caller's promise.
    let blocks = || unsafe { blocks_at(handles, count) };
    let asked = Asked { session, at, parts, parts_a_block, layers };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, blocks, fetch) }
}

/// As `rackline_fetch_by_layers`, into the memory of `gpu`, whose copy engines copy the blocks after
/// the work that `stream` (as in `rackline_publish_from_gpu`) had before this call. Work that is
/// launched after a layer has arrived finds its bytes, on any stream.
///
/// # Safety
/// As `rackline_fetch_by_layers`, with parts in the memory of the GPU, which earlier work of the
/// stream may still read and write. The stream exists during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_by_layers_into_gpu(
    session: RacklineSession,
    gpu: RacklineGpu,
    stream: *mut c_void,
    prefix: RacklinePrefix,
    first: usize,
    count: usize,
    parts: *const RacklineDestination,
    parts_a_block: usize,
    layers: *const RacklineLayers,
    fetch: *mut RacklineLayeredFetch,
) -> RacklineError {
    let (at, layers) = (At::GpuBehind(gpu, stream), Some(layers));
    let blocks = || of_prefix(prefix, first, count);
    let asked = Asked { session, at, parts, parts_a_block, layers };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, blocks, fetch) }
}

/// As `rackline_fetch_by_layers_into_gpu`, of blocks that another process of the rack found
/// (`rackline_prefix_handles`), one after the other in a prompt.
///
/// # Safety
/// As `rackline_fetch_by_layers_into_gpu`, and `handles` is null or points to `count` handles.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_fetch_handles_by_layers_into_gpu(
    session: RacklineSession,
    gpu: RacklineGpu,
    stream: *mut c_void,
    handles: *const RacklineBlockHandle,
    count: usize,
    parts: *const RacklineDestination,
    parts_a_block: usize,
    layers: *const RacklineLayers,
    fetch: *mut RacklineLayeredFetch,
) -> RacklineError {
    let (at, layers) = (At::GpuBehind(gpu, stream), Some(layers));
    // SAFETY: by the caller's promise.
    let blocks = || unsafe { blocks_at(handles, count) };
    let asked = Asked { session, at, parts, parts_a_block, layers };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, blocks, fetch) }
}

/// Waits at most `timeout_ms` milliseconds until layer number `layer`, counted from 0, has arrived:
/// 0 only looks, and `RACKLINE_FOREVER_MS` waits without a limit. Layers arrive in order. May be
/// called any number of times for a layer.
///
/// After `RACKLINE_ERROR_OK` the parts of this layer and of all before it have their bytes, in each
/// block that was there, and the program may use them. The bytes are not checked yet: the result of
/// the fetch says how many blocks are good. The memory stays lent: other transfers are refused it
/// until the fetch is over.
///
/// `RACKLINE_ERROR_UNDER_WAY`: the layer has not arrived in that time. `RACKLINE_ERROR_NO_RESULT`:
/// it does not arrive, because the fetch ended before; `rackline_layered_fetch_wait` says why, and
/// the fetch is not over before that call says so.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_layered_fetch_wait_layer(
    fetch: RacklineLayeredFetch,
    layer: usize,
    timeout_ms: u64,
) -> RacklineError {
    const UNDER_WAY: Failure =
        Failure::usual(RacklineError::UnderWay, c"the layer has not arrived yet");
    code(|| {
        let fetch = handles::get::<LayeredFetch>(fetch.handle)?;
        check_layer(layer, fetch.layers)?;
        if timeout_ms == RACKLINE_FOREVER_MS {
            return Ok(fetch.arrivals.wait(layer)?);
        }
        let timeout = Duration::from_millis(timeout_ms);
        let arrived = fetch.arrivals.wait_timeout(layer, timeout)?;
        if arrived { Ok(()) } else { Err(UNDER_WAY) }
    })
}

/// The result of a fetch by layers: as `rackline_fetch_wait`.
///
/// # Safety
/// `result` is null or points to a result that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_layered_fetch_wait(
    fetch: RacklineLayeredFetch,
    timeout_ms: u64,
    result: *mut RacklineFetchResult,
) -> RacklineError {
    let wait = |fetch: &LayeredFetch| result_of(fetch.whole.wait(timeout_ms)?);
    // SAFETY: by the caller's promise.
    unsafe { answer_at(result, "the place for the result", fetch.handle, wait) }
}

/// Revokes a fetch by layers that has not begun, and says so in `cancelled`: then it is over, has no
/// result, and none of its layers arrives. Otherwise the fetch continues unchanged.
///
/// # Safety
/// `cancelled` is null or points to a value that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_layered_fetch_cancel(
    fetch: RacklineLayeredFetch,
    cancelled: *mut bool,
) -> RacklineError {
    let cancel = |fetch: &LayeredFetch| Ok(fetch.whole.cancel());
    // SAFETY: by the caller's promise.
    unsafe { answer_at(cancelled, "the place for the answer", fetch.handle, cancel) }
}

/// Frees a fetch by layers. After return it is over: it was cancelled, or this call waited for it.
/// A fetch that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_layered_fetch_free(fetch: RacklineLayeredFetch) -> RacklineError {
    handles::free(fetch.handle, |fetch: &LayeredFetch| fetch.whole.finish())
}
