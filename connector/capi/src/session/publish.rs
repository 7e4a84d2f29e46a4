//! Publishing blocks.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_void;
use std::mem::MaybeUninit;

use rackline::memory::{Access, LentSession};
use rackline::{Layers, NewBlock, PublishOutcome, PublishReport, Published};

use super::arguments::{answer_at, open_at, place, places};
use super::error::{Failure, RacklineError, c_text, code, keep_message};
use super::gpu::{At, RacklineGpu};
use super::handles::{self, Opened};
use super::hashes::{RacklineBlockHash, hashes_at};
use super::lent::{Asked, LentSource, RacklineSource, Transfer};
use super::opening::RacklineSession;
use super::pending::Pending;
use super::reason::RacklineOutcome;

/// A publish under way. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklinePublish {
    /// Its number.
    pub handle: u64,
}

/// How many blocks of a publish are in the pool. When some are missing `rackline_error_message`
/// says why the first of them is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklinePublishResult {
    /// Blocks that every host can find now, because of this call.
    pub published: usize,
    /// Blocks that were there already.
    pub already_there: usize,
}

pub(super) struct Publish {
    blocks: usize,
    pending: Pending<Published<LentSource>>,
}

impl Opened for Publish {
    const KIND: &'static str = "a publish";
}

/// Blocks of a prompt, as C names them.
pub(super) struct Prompt {
    pub(super) hashes: *const RacklineBlockHash,
    pub(super) count: usize,
    pub(super) first_depth: u32,
}

/// The blocks of a publish with their memory, and how the bytes of a block are divided.
pub(super) type Blocks = (LentSession, Vec<NewBlock<LentSource>>, Layers);

impl Prompt {
    /// The publish that is asked for, of these blocks.
    ///
    /// # Safety
    /// As [`rackline_publish`] or [`rackline_publish_from_gpu`]. The layers are null, or as
    /// [`Division::of`](super::layers::Division::of) wants them, and then a layer may be written until
    /// it is ready.
    pub(super) unsafe fn blocks(self, asked: Asked<RacklineSource>) -> Result<Blocks, Failure> {
        let Self { hashes, count, first_depth } = self;
        let named = || {
            // SAFETY: by the caller's promise.
            let hashes = unsafe { hashes_at(hashes, count) }?;
            let last = u32::try_from(count).ok().and_then(|count| first_depth.checked_add(count));
            let too_many = || Failure::bad_argument("a prompt of more than 4 billion blocks");
            last.ok_or_else(too_many).map(|_| hashes)
        };
        // SAFETY: by the caller's promise.
        let Transfer { session, named, memory, layers } =
            unsafe { asked.transfer(Access::Read, named) }?;
        // SAFETY: by the caller's promise, until the publish is over: its completion comes after the
        // blocks were used for the last time.
        let memory = unsafe { memory.into_sources() };
        Ok((session, NewBlock::chain(first_depth, named, memory), layers))
    }
}

/// Starts a publish of the blocks, whose handle it writes to `publish`.
///
/// # Safety
/// As [`rackline_publish`] or [`rackline_publish_from_gpu`].
unsafe fn start(
    asked: Asked<RacklineSource>,
    prompt: Prompt,
    publish: *mut RacklinePublish,
) -> RacklineError {
    let open = || {
        // SAFETY: by the caller's promise.
        let (session, blocks, _) = unsafe { prompt.blocks(asked) }?;
        Ok(Publish { blocks: blocks.len(), pending: session.publish(blocks)?.into() })
    };
    // SAFETY: by the caller's promise.
    unsafe { open_at(publish.cast(), "the place for the publish", open) }
}

/// Publishes `count` blocks that follow one another in a prompt, the first of them behind
/// `first_depth` others. Block `b` has the hash `hashes[b]`, and its bytes are those of the
/// `parts_a_block` parts from `parts[b * parts_a_block]` on, gathered in this order; together they
/// are as long as a block of the session. Blocks that are in the pool are not copied; blocks that
/// cannot be published do not stop the others.
///
/// Does not wait: `rackline_publish_wait` has the result. The arrays are not needed after return;
/// the memory of the parts is lent until the publish is over.
///
/// # Safety
/// `hashes` is null or points to `count` hashes, `parts` is null or points to
/// `count * parts_a_block` parts. The memory of the parts exists, and nothing writes it, until the
/// publish is over. `publish` is null or points to a handle that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_publish(
    session: RacklineSession,
    hashes: *const RacklineBlockHash,
    count: usize,
    first_depth: u32,
    parts: *const RacklineSource,
    parts_a_block: usize,
    publish: *mut RacklinePublish,
) -> RacklineError {
    let asked = Asked { session, at: At::Process, parts, parts_a_block, layers: None };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, Prompt { hashes, count, first_depth }, publish) }
}

/// As `rackline_publish`, of blocks in the memory of `gpu`, whose copy engines copy them. The copy
/// is ordered after the work that `stream` had before this call: a `CUstream` or `cudaStream_t` of
/// the GPU's primary context, or one of CUDA's own (0 or 1 the default stream, 2 that of the
/// calling thread). The call records the position of the stream, and does not wait for it.
///
/// # Safety
/// As `rackline_publish`, with parts in the memory of the GPU, which earlier work of the stream may
/// still write. The stream exists during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_publish_from_gpu(
    session: RacklineSession,
    gpu: RacklineGpu,
    stream: *mut c_void,
    hashes: *const RacklineBlockHash,
    count: usize,
    first_depth: u32,
    parts: *const RacklineSource,
    parts_a_block: usize,
    publish: *mut RacklinePublish,
) -> RacklineError {
    let at = At::GpuBehind(gpu, stream);
    let asked = Asked { session, at, parts, parts_a_block, layers: None };
    // SAFETY: by the caller's promise.
    unsafe { start(asked, Prompt { hashes, count, first_depth }, publish) }
}

/// The result of a publish, when it comes within `timeout_ms` milliseconds: 0 only looks, and
/// `RACKLINE_FOREVER_MS` waits without a limit. Without a result `RACKLINE_ERROR_UNDER_WAY`; after
/// `RACKLINE_ERROR_OK` and `RACKLINE_ERROR_NO_RESULT` the publish is over. The result can be taken
/// once.
///
/// The outcome of each block is written to `outcomes`, which has room for `capacity` of them, at
/// least as many as blocks. It may be null, with a capacity of 0.
///
/// # Safety
/// `result` is null or points to a result, and `outcomes` is null or points to room for `capacity`
/// outcomes, that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_publish_wait(
    publish: RacklinePublish,
    timeout_ms: u64,
    result: *mut RacklinePublishResult,
    outcomes: *mut RacklineOutcome,
    capacity: usize,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let places = unsafe { ResultPlaces::at(result, outcomes, capacity) }?;
        let publish = handles::get::<Publish>(publish.handle)?;
        places.check(publish.blocks)?;
        let Published { report, blocks } = publish.pending.wait(timeout_ms)?;
        drop(blocks);
        places.write(&report?);
        Ok(())
    })
}

/// Where C wants the result of a publish.
pub(super) struct ResultPlaces<'p> {
    result: &'p mut MaybeUninit<RacklinePublishResult>,
    outcomes: &'p mut [MaybeUninit<RacklineOutcome>],
}

impl ResultPlaces<'_> {
    /// # Safety
    /// As [`rackline_publish_wait`].
    pub(super) unsafe fn at(
        result: *mut RacklinePublishResult,
        outcomes: *mut RacklineOutcome,
        capacity: usize,
    ) -> Result<Self, Failure> {
        // SAFETY: by the caller's promise.
        let result = unsafe { place(result, "the place for the result") }?;
        // SAFETY: by the caller's promise.
        let outcomes = unsafe { places(outcomes, capacity, "the place for the outcomes") }?;
        Ok(Self { result, outcomes })
    }

    /// Refuses places for fewer outcomes than `blocks`. Before the result is taken, which is had
    /// once.
    pub(super) fn check(&self, blocks: usize) -> Result<(), Failure> {
        let capacity = self.outcomes.len();
        if capacity != 0 && capacity < blocks {
            let message = format!("{blocks} blocks, and room for {capacity} outcomes");
            return Err(Failure::bad_argument(message));
        }
        Ok(())
    }

    pub(super) fn write(self, report: &PublishReport) {
        for (place, outcome) in self.outcomes.iter_mut().zip(report.outcomes()) {
            place.write(outcome.into());
        }
        if let Some(message) = report.outcomes().iter().find_map(PublishOutcome::why_missing) {
            keep_message(c_text(&message).into());
        }
        let published = report.published();
        let already_there = report.available() - published;
        self.result.write(RacklinePublishResult { published, already_there });
    }

    /// Writes that of a publish of so many blocks that was aborted.
    pub(super) fn write_aborted(self, blocks: usize) {
        for place in self.outcomes.iter_mut().take(blocks) {
            place.write(RacklineOutcome::Aborted);
        }
        if blocks > 0 {
            keep_message(c"the publish was aborted: nothing of it is in the pool".into());
        }
        self.result.write(RacklinePublishResult { published: 0, already_there: 0 });
    }
}

/// `rackline_publish_wait` that only looks, without the outcomes of blocks.
///
/// # Safety
/// `result` is null or points to a result that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_publish_poll(
    publish: RacklinePublish,
    result: *mut RacklinePublishResult,
) -> RacklineError {
    // SAFETY: by the caller's promise.
    unsafe { rackline_publish_wait(publish, 0, result, std::ptr::null_mut(), 0) }
}

/// Revokes a publish that has not begun, and says so in `cancelled`: then it is over, and has no
/// result. Otherwise the publish continues unchanged.
///
/// # Safety
/// `cancelled` is null or points to a value that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_publish_cancel(
    publish: RacklinePublish,
    cancelled: *mut bool,
) -> RacklineError {
    let cancel = |publish: &Publish| Ok(publish.pending.cancel());
    // SAFETY: by the caller's promise.
    unsafe { answer_at(cancelled, "the place for the answer", publish.handle, cancel) }
}

/// Frees a publish. After return it is over: it was cancelled, or this call waited for it. A
/// publish that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_publish_free(publish: RacklinePublish) -> RacklineError {
    handles::free(publish.handle, |publish: &Publish| publish.pending.finish())
}
