//! Publishing blocks by layers.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_void;

use rackline::LayeredPublished;
use rackline::cuda::GpuError;
use rackline::memory::{LayerError, LentPublish};

use super::arguments::open_at;
use super::error::{Failure, RacklineError, code};
use super::gpu::{At, RacklineGpu, stream_at};
use super::handles::{self, Opened};
use super::hashes::RacklineBlockHash;
use super::layers::RacklineLayers;
use super::lent::{Asked, LentSource, RacklineSource};
use super::opening::RacklineSession;
use super::pending::Pending;
use super::publish::{Prompt, RacklinePublishResult, ResultPlaces};
use super::reason::RacklineOutcome;

/// A publish by layers under way. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineLayeredPublish {
    /// Its number.
    pub handle: u64,
}

type Published = LayeredPublished<LentSource>;

pub(super) struct LayeredPublish {
    publish: LentPublish<Pending<Published>>,
    blocks: usize,
}

impl Opened for LayeredPublish {
    const KIND: &'static str = "a publish by layers";
}

impl From<LayerError> for Failure {
    fn from(refused: LayerError) -> Self {
        match refused {
            LayerError::NoLayer { .. } => Self::bad_argument(refused),
            LayerError::OfProcess => Self::bad_argument(
                "the publish is of memory of this process, without a stream: call \
                 rackline_layered_publish_layer_ready",
            ),
            LayerError::NoStream => Self::bad_argument(
                "the publish is of memory of a GPU: call \
                 rackline_layered_publish_layer_ready_on_gpu, with the stream",
            ),
            LayerError::Stream(error) => GpuError::Stream(error).into(),
        }
    }
}

/// Starts a publish by layers of the blocks, whose handle it writes to `publish`.
///
/// # Safety
/// As [`rackline_publish_by_layers`] or [`rackline_publish_by_layers_from_gpu`].
unsafe fn start(
    asked: Asked<RacklineSource>,
    prompt: Prompt,
    publish: *mut RacklineLayeredPublish,
) -> RacklineError {
    let open = || {
        // SAFETY: by the caller's promise.
        let (session, blocks, layers) = unsafe { prompt.blocks(asked) }?;
        let count = blocks.len();
        Ok(LayeredPublish { publish: session.publish_by_layers(blocks, layers)?, blocks: count })
    };
    // SAFETY: by the caller's promise.
    unsafe { open_at(publish.cast(), "the place for the publish", open) }
}

/// As `rackline_publish`, layer by layer: each layer is copied when the program says that it is
/// ready in all blocks (`rackline_layered_publish_layer_ready`). `layers` says which parts of a
/// block each layer has. No host finds a block before `rackline_layered_publish_finish` was called
/// and all layers are copied.
///
/// The pool was attached with `publishes_by_layers`, else it is `RACKLINE_ERROR_POOL`. A process
/// works on one such publish at a time, in the order in which they were started: nothing of the next
/// one is copied before this one has ended, whichever layers are ready. Closing the pool aborts
/// those that are not finished.
///
/// Does not wait. The arrays are not needed after return. The memory of the parts is lent until the
/// publish is over, but the program may write a layer that it has not said to be ready.
///
/// # Safety
/// `hashes` is null or points to `count` hashes, `parts` is null or points to
/// `count * parts_a_block` parts, `layers` is null or points to layers whose numbers are null or as
/// many as they say. The memory of the parts exists until the publish is over, and nothing writes
/// that of a layer from when the layer is said to be ready, or the publish is finished. `publish` is
/// null or points to a handle that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_publish_by_layers(
    session: RacklineSession,
    hashes: *const RacklineBlockHash,
    count: usize,
    first_depth: u32,
    parts: *const RacklineSource,
    parts_a_block: usize,
    layers: *const RacklineLayers,
    publish: *mut RacklineLayeredPublish,
) -> RacklineError {
    let asked = Asked { session, at: At::Process, parts, parts_a_block, layers: Some(layers) };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, Prompt { hashes, count, first_depth }, publish) }
}

/// As `rackline_publish_by_layers`, of blocks in the memory of `gpu`, whose copy engines copy them.
/// Each layer is said to be ready with the stream that computes it
/// (`rackline_layered_publish_layer_ready_on_gpu`).
///
/// # Safety
/// As `rackline_publish_by_layers`, with parts in the memory of the GPU. Work that a stream had
/// before a layer was said to be ready with it may still write that layer.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_publish_by_layers_from_gpu(
    session: RacklineSession,
    gpu: RacklineGpu,
    hashes: *const RacklineBlockHash,
    count: usize,
    first_depth: u32,
    parts: *const RacklineSource,
    parts_a_block: usize,
    layers: *const RacklineLayers,
    publish: *mut RacklineLayeredPublish,
) -> RacklineError {
    let asked = Asked { session, at: At::Gpu(gpu), parts, parts_a_block, layers: Some(layers) };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, Prompt { hashes, count, first_depth }, publish) }
}

/// Says that layer number `layer`, counted from 0, is ready in all blocks, and stays as it is until
/// the publish is over. Layers may become ready in any order. Without effect on a publish that was
/// finished or aborted. For memory of a GPU there is
/// `rackline_layered_publish_layer_ready_on_gpu`, and this is `RACKLINE_ERROR_BAD_ARGUMENT`.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_layered_publish_layer_ready(
    publish: RacklineLayeredPublish,
    layer: usize,
) -> RacklineError {
    code(|| {
        let publish = handles::get::<LayeredPublish>(publish.handle)?;
        Ok(publish.publish.layer_ready(layer, None)?)
    })
}

/// Says that layer number `layer`, counted from 0, is ready in all blocks once `stream` (as in
/// `rackline_publish_from_gpu`) has done the work that it had before this call, and stays as that
/// work leaves it until the publish is over. Layers may become ready in any order, with any streams
/// of the GPU. The call records the position of the stream, and does not wait for it. Without effect
/// on a publish that was finished or aborted.
///
/// `RACKLINE_ERROR_GPU`: the copy cannot be ordered after the stream, for example because the stream
/// is being captured into a graph. The publish is aborted then.
///
/// # Safety
/// The stream exists during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_layered_publish_layer_ready_on_gpu(
    publish: RacklineLayeredPublish,
    layer: usize,
    stream: *mut c_void,
) -> RacklineError {
    code(|| {
        let publish = handles::get::<LayeredPublish>(publish.handle)?;
        // SAFETY: by the caller's promise.
        Ok(publish.publish.layer_ready(layer, Some(unsafe { stream_at(stream) }))?)
    })
}

/// Says that the blocks are to be published. Of memory of this process all layers are ready with it.
/// Of memory of a GPU each layer was said to be ready before, with its stream: when one was not, the
/// publish is aborted. Does not wait: `rackline_layered_publish_wait` has the result. Without effect
/// on a publish that was finished or aborted.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_layered_publish_finish(
    publish: RacklineLayeredPublish,
) -> RacklineError {
    code(|| {
        handles::get::<LayeredPublish>(publish.handle)?.publish.finish();
        Ok(())
    })
}

/// Says that nothing is to be published. Layers that are not ready are not read any more; when the
/// publish is over nothing is. Does not wait: `rackline_layered_publish_wait` has the result.
/// Without effect on a publish that was finished or aborted.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_layered_publish_abort(publish: RacklineLayeredPublish) -> RacklineError {
    code(|| {
        handles::get::<LayeredPublish>(publish.handle)?.publish.abort();
        Ok(())
    })
}

/// The result of a publish by layers that was finished or aborted: as `rackline_publish_wait`.
/// Before that it is `RACKLINE_ERROR_BAD_ARGUMENT`, and the publish continues. Of a publish that was
/// aborted, also by closing the pool, nothing is published, and the outcome of each block is
/// `RACKLINE_OUTCOME_ABORTED`.
///
/// # Safety
/// `result` is null or points to a result, and `outcomes` is null or points to room for `capacity`
/// outcomes, that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_layered_publish_wait(
    publish: RacklineLayeredPublish,
    timeout_ms: u64,
    result: *mut RacklinePublishResult,
    outcomes: *mut RacklineOutcome,
    capacity: usize,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let places = unsafe { ResultPlaces::at(result, outcomes, capacity) }?;
        let publish = handles::get::<LayeredPublish>(publish.handle)?;
        places.check(publish.blocks)?;
        if !publish.publish.is_ended() {
            return Err(Failure::bad_argument(
                "the publish was not ended: call rackline_layered_publish_finish or \
                 rackline_layered_publish_abort first",
            ));
        }
        let Published { report, blocks } = publish.publish.pending().wait(timeout_ms)?;
        drop(blocks);
        match report? {
            Some(report) => places.write(&report),
            None => places.write_aborted(publish.blocks),
        }
        Ok(())
    })
}

/// Frees a publish by layers. One that was not finished is aborted. After return it is over: it had
/// not begun, or this call waited for it. A publish that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_layered_publish_free(publish: RacklineLayeredPublish) -> RacklineError {
    handles::free(publish.handle, |publish: &LayeredPublish| {
        publish.publish.abort();
        publish.publish.pending().finish();
    })
}
