//! A prefix that was found.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::sync::{Mutex, PoisonError};

use rackline::{HoldReport, MatchedBlock};

use super::arguments::{answer_at, places, values};
use super::error::{Failure, RacklineError, code};
use super::handles::{self, Opened};

/// The blocks that a lookup found, from the first of the prompt on. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklinePrefix {
    /// Its number.
    pub handle: u64,
}

/// Names a block that was found. Any process of the rack may fetch or hold the block by it. Wrong
/// bytes do no harm: the named block is checked, and a block that is gone is a miss.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineBlockHandle {
    /// Its bytes.
    pub bytes: [u8; 34],
}

pub(super) struct Prefix {
    blocks: Vec<MatchedBlock>,
    held: Mutex<Option<HoldReport>>,
}

impl Opened for Prefix {
    const KIND: &'static str = "a prefix";
}

impl Prefix {
    pub(super) fn found(blocks: &[MatchedBlock]) -> Self {
        Self { blocks: blocks.to_vec(), held: Mutex::new(None) }
    }

    pub(super) fn held(held: HoldReport) -> Self {
        Self { blocks: held.blocks(), held: Mutex::new(Some(held)) }
    }

    /// `count` of its blocks, from `first` on.
    pub(super) fn part(&self, first: usize, count: usize) -> Result<&[MatchedBlock], Failure> {
        let end = first.checked_add(count);
        end.and_then(|end| self.blocks.get(first..end)).ok_or_else(|| {
            let blocks = self.blocks.len();
            let message = format!("{count} blocks from number {first} on: the prefix has {blocks}");
            Failure::bad_argument(message)
        })
    }
}

/// The blocks that the `count` handles at `handles` name.
///
/// # Safety
/// `handles` is null or points to `count` handles that stay unchanged during the call.
pub(super) unsafe fn blocks_at(
    handles: *const RacklineBlockHandle,
    count: usize,
) -> Result<Vec<MatchedBlock>, Failure> {
    // SAFETY: by the caller's promise.
    let handles = unsafe { values(handles, count, "the block handles") }?;
    Ok(handles.iter().map(|handle| MatchedBlock::from_bytes(&handle.bytes)).collect())
}

/// How many blocks a prefix has.
///
/// # Safety
/// `blocks` is null or points to a number that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_prefix_blocks(
    prefix: RacklinePrefix,
    blocks: *mut usize,
) -> RacklineError {
    let count = |prefix: &Prefix| Ok(prefix.blocks.len());
    // SAFETY: by the caller's promise.
    unsafe { answer_at(blocks, "the place for the number of blocks", prefix.handle, count) }
}

/// Handles of `count` blocks of a prefix, from number `first` on, by which any process of the rack
/// can fetch them.
///
/// # Safety
/// `handles` is null or points to room for `count` handles that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_prefix_handles(
    prefix: RacklinePrefix,
    first: usize,
    count: usize,
    handles: *mut RacklineBlockHandle,
) -> RacklineError {
    code(|| {
        let prefix = handles::get::<Prefix>(prefix.handle)?;
        let blocks = prefix.part(first, count)?;
        // SAFETY: by the caller's promise.
        let places = unsafe { places(handles, count, "the place for the block handles") }?;
        for (place, block) in places.iter_mut().zip(blocks) {
            place.write(RacklineBlockHandle { bytes: block.to_bytes() });
        }
        Ok(())
    })
}

/// Whether the blocks of a prefix are held by it.
///
/// # Safety
/// `held` is null or points to a value that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_prefix_held(
    prefix: RacklinePrefix,
    held: *mut bool,
) -> RacklineError {
    let is_held =
        |prefix: &Prefix| Ok(prefix.held.lock().unwrap_or_else(PoisonError::into_inner).is_some());
    // SAFETY: by the caller's promise.
    unsafe { answer_at(held, "the place for the answer", prefix.handle, is_held) }
}

/// Releases the blocks of a prefix: the pool may evict them again. They can still be fetched as
/// long as they are there.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_prefix_release(prefix: RacklinePrefix) -> RacklineError {
    code(|| {
        let prefix = handles::get::<Prefix>(prefix.handle)?;
        let held = prefix.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(held);
        Ok(())
    })
}

/// Frees a prefix, and releases its blocks. A prefix that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_prefix_free(prefix: RacklinePrefix) -> RacklineError {
    handles::free::<Prefix>(prefix.handle, |_| ())
}
