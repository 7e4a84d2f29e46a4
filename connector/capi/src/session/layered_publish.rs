//! Publishing blocks by layers.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackline::cuda::{CudaDma, GpuError};
use rackline::memory::MemoryOf;
use rackline::{AsyncSession, Completion, LayeredPublished};

use super::arguments::place;
use super::error::{Failure, RacklineError, code};
use super::gpu::{RacklineGpu, number_of, stream_at};
use super::handles::{self, Opened};
use super::hashes::RacklineBlockHash;
use super::layers::{RacklineLayers, check_layer};
use super::lent::{LentSource, RacklineSource};
use super::opening::RacklineSession;
use super::pending::Pending;
use super::publish::{Blocks, RacklinePublishResult, ResultPlaces};
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
    /// Held for a moment only.
    stage: Mutex<Stage>,
    blocks: usize,
    layers: usize,
}

/// One of the two is there.
struct Stage {
    /// Until it is finished or aborted.
    open: Option<Open>,
    ended: Option<Arc<Pending<Published>>>,
}

/// One that was not ended, of memory of this process or of a GPU.
enum Open {
    Process(rackline::LayeredPublish<LentSource>),
    Gpu(rackline::LayeredPublish<LentSource, CudaDma>),
}

impl Opened for LayeredPublish {
    const KIND: &'static str = "a publish by layers";
}

impl Open {
    fn finish(self) -> Completion<Published> {
        match self {
            Self::Process(publish) => publish.finish(),
            Self::Gpu(publish) => publish.finish(),
        }
    }

    fn abort(self) -> Completion<Published> {
        match self {
            Self::Process(publish) => publish.abort(),
            Self::Gpu(publish) => publish.abort(),
        }
    }

    fn is_aborted(&self) -> bool {
        match self {
            Self::Process(publish) => publish.is_aborted(),
            Self::Gpu(publish) => publish.is_aborted(),
        }
    }
}

impl Stage {
    /// Ends the publish, if it was not ended before.
    fn end(&mut self, how: impl FnOnce(Open) -> Completion<Published>) {
        if let Some(open) = self.open.take() {
            self.ended = Some(Arc::new(Pending::new(how(open))));
        }
    }
}

impl LayeredPublish {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes of it. One that was aborted by the library is ended here: by closing the pool, or
    /// because the copy of a layer cannot come after its stream.
    fn pending(&self) -> Result<Arc<Pending<Published>>, Failure> {
        let mut stage = self.stage();
        if stage.open.as_ref().is_some_and(Open::is_aborted) {
            stage.end(Open::abort);
        }
        stage.ended.clone().ok_or_else(|| {
            Failure::bad_argument(
                "the publish was not ended: call rackline_layered_publish_finish or \
                 rackline_layered_publish_abort first",
            )
        })
    }
}

/// Starts a publish by layers, whose handle it writes to `publish`; from the memory of `gpu`, if
/// there is one.
///
/// # Safety
/// As [`rackline_publish_by_layers`], or [`rackline_publish_by_layers_from_gpu`].
unsafe fn start(
    session: RacklineSession,
    gpu: Option<RacklineGpu>,
    blocks: Blocks,
    publish: *mut RacklineLayeredPublish,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let publish = unsafe { place(publish, "the place for the publish") }?;
        publish.write(RacklineLayeredPublish { handle: 0 });
        let session = handles::get::<AsyncSession>(session.handle)?;
        let gpu = gpu.map(number_of).transpose()?;
        let (count, block_bytes) = (blocks.count, session.options().block_bytes());
        let of = if gpu.is_some() { MemoryOf::Gpu } else { MemoryOf::Process };
        // SAFETY: by the caller's promise.
        let (blocks, layers) = unsafe { blocks.lent(block_bytes, of) }?;
        let (layer_count, layers) = (layers.count(), Arc::new(layers));
        let open = match gpu {
            None => Open::Process(session.publish_by_layers(blocks, layers)?),
            Some(gpu) => {
                Open::Gpu(session.on_gpu_by_layers(gpu)?.publish_by_layers(blocks, layers)?)
            }
        };
        let stage = Mutex::new(Stage { open: Some(open), ended: None });
        let opened = LayeredPublish { stage, blocks: count, layers: layer_count };
        publish.write(RacklineLayeredPublish { handle: handles::open(opened) });
        Ok(())
    })
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
    let layers = Some(layers);
    let blocks = Blocks { hashes, count, first_depth, parts, parts_a_block, layers };
    // SAFETY: by the caller's promise.
    unsafe { start(session, None, blocks, publish) }
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
    let layers = Some(layers);
    let blocks = Blocks { hashes, count, first_depth, parts, parts_a_block, layers };
    // SAFETY: by the caller's promise.
    unsafe { start(session, Some(gpu), blocks, publish) }
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
        check_layer(layer, publish.layers)?;
        match &publish.stage().open {
            None => {}
            Some(Open::Process(publish)) => publish.layer_ready(layer),
            Some(Open::Gpu(_)) => {
                return Err(Failure::bad_argument(
                    "the publish is of memory of a GPU: call \
                     rackline_layered_publish_layer_ready_on_gpu, with the stream",
                ));
            }
        }
        Ok(())
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
        check_layer(layer, publish.layers)?;
        match &publish.stage().open {
            None => Ok(()),
            Some(Open::Gpu(publish)) => {
                // SAFETY: by the caller's promise.
                let stream = unsafe { stream_at(stream) };
                Ok(publish.layer_ready(layer, stream).map_err(GpuError::Stream)?)
            }
            Some(Open::Process(_)) => Err(Failure::bad_argument(
                "the publish is of memory of this process, without a stream: call \
                 rackline_layered_publish_layer_ready",
            )),
        }
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
        handles::get::<LayeredPublish>(publish.handle)?.stage().end(Open::finish);
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
        handles::get::<LayeredPublish>(publish.handle)?.stage().end(Open::abort);
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
        let Published { report, blocks } = publish.pending()?.wait(timeout_ms)?;
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
    code(|| {
        if publish.handle == 0 {
            return Ok(());
        }
        let publish = handles::close::<LayeredPublish>(publish.handle)?;
        publish.stage().end(Open::abort);
        publish.pending()?.finish();
        Ok(())
    })
}
