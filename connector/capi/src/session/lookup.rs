//! Looking for a prefix, and holding it.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::time::Duration;

use rackline::{
    AsyncSession, Completion, HoldReport, PrefixMatch, RestoreOptions, RestoreReport, SessionError,
};

use super::arguments::{answer_at, open_at, value};
use super::error::{Failure, RacklineError, c_text, keep_message};
use super::handles::{self, Opened};
use super::hashes::{RacklineBlockHash, hashes_at};
use super::opening::RacklineSession;
use super::pending::Pending;
use super::prefix::{Prefix, RacklineBlockHandle, RacklinePrefix, blocks_at};
use super::reason::RacklineReason;

/// A lookup under way, or a hold. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineLookup {
    /// Its number.
    pub handle: u64,
}

/// What a lookup found.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineLookupResult {
    /// The blocks that were found, from the first on; also when there are none. To be freed.
    pub prefix: RacklinePrefix,
    /// How many they are.
    pub blocks: usize,
    /// Why the block after those is not held, or was not restored from its drive; none when all that
    /// were found are, or the lookup did not hold.
    pub reason: RacklineReason,
    /// Blocks of the prefix that were on drives when the lookup began; 0 where it asked no drives.
    pub on_drives: usize,
    /// How many of those were restored, and are held.
    pub restored: usize,
}

/// How long a lookup waits for blocks on drives, or how long a prefetch asks for them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineRestoreOptions {
    /// Milliseconds that agents have, in all. 0: drives are not asked.
    pub wait_ms: u32,
    /// Microseconds that the engine takes to compute one block: what takes longer to restore is
    /// refused at once. 0: not known.
    pub recompute_us: u32,
}

impl RacklineRestoreOptions {
    /// The same for the library.
    pub(super) fn options(&self) -> RestoreOptions {
        let options = RestoreOptions::new(Duration::from_millis(self.wait_ms.into()));
        if self.recompute_us == 0 {
            return options;
        }
        options.with_recompute(Duration::from_micros(self.recompute_us.into()))
    }
}

pub(super) enum Lookup {
    Plain(Pending<Result<PrefixMatch, SessionError>>),
    Held(Pending<Result<HoldReport, SessionError>>),
    Restored(Pending<Result<RestoreReport, SessionError>>),
}

impl Opened for Lookup {
    const KIND: &'static str = "a lookup";
}

impl From<Completion<Result<PrefixMatch, SessionError>>> for Lookup {
    fn from(completion: Completion<Result<PrefixMatch, SessionError>>) -> Self {
        Self::Plain(completion.into())
    }
}

impl From<Completion<Result<HoldReport, SessionError>>> for Lookup {
    fn from(completion: Completion<Result<HoldReport, SessionError>>) -> Self {
        Self::Held(completion.into())
    }
}

impl From<Completion<Result<RestoreReport, SessionError>>> for Lookup {
    fn from(completion: Completion<Result<RestoreReport, SessionError>>) -> Self {
        Self::Restored(completion.into())
    }
}

/// What a lookup found, before it has a handle.
struct Found {
    prefix: Prefix,
    blocks: usize,
    reason: RacklineReason,
    on_drives: usize,
    restored: usize,
}

impl Found {
    fn held(held: HoldReport) -> Self {
        let reason = held.stop().map_or(RacklineReason::None, |stop| {
            keep_message(c_text(&stop.to_string()).into());
            RacklineReason::from(&stop)
        });
        let blocks = held.blocks().len();
        Self { prefix: Prefix::held(held), blocks, reason, on_drives: 0, restored: 0 }
    }

    fn restored(report: RestoreReport) -> Self {
        let (on_drives, restored, stop) = (report.on_drives(), report.restored(), report.stop());
        let mut found = Self { on_drives, restored, ..Self::held(report.into_held()) };
        if let Some(stop) = stop.filter(|_| found.reason == RacklineReason::None) {
            keep_message(c_text(&stop.to_string()).into());
            found.reason = RacklineReason::from(&stop);
        }
        found
    }
}

impl Lookup {
    /// The prefix, and why it is not held to its end.
    fn wait(&self, timeout_ms: u64) -> Result<Found, Failure> {
        Ok(match self {
            Self::Plain(pending) => {
                let found = pending.wait(timeout_ms)??;
                let (prefix, blocks) = (Prefix::found(found.blocks()), found.blocks().len());
                let reason = RacklineReason::None;
                Found { prefix, blocks, reason, on_drives: 0, restored: 0 }
            }
            Self::Held(pending) => Found::held(pending.wait(timeout_ms)??),
            Self::Restored(pending) => Found::restored(pending.wait(timeout_ms)??),
        })
    }
}

/// Starts a lookup on the session, whose handle it writes to `lookup`.
///
/// # Safety
/// `lookup` is null or points to a handle that nothing else uses during the call.
unsafe fn start(
    session: RacklineSession,
    lookup: *mut RacklineLookup,
    submit: impl FnOnce(&AsyncSession) -> Result<Lookup, Failure>,
) -> RacklineError {
    let open = || {
        let session = handles::get::<AsyncSession>(session.handle)?;
        submit(&session)
    };
    // SAFETY: by the caller's promise.
    unsafe { open_at(lookup.cast(), "the place for the lookup", open) }
}

/// Looks for the longest prefix of the `count` hashes at `hashes` of which every block is in the
/// pool. Does not wait: `rackline_lookup_wait` has the result.
///
/// # Safety
/// `hashes` is null or points to `count` hashes; `lookup` is null or points to a handle that
/// nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_lookup(
    session: RacklineSession,
    hashes: *const RacklineBlockHash,
    count: usize,
    lookup: *mut RacklineLookup,
) -> RacklineError {
    let submit = |session: &AsyncSession| {
        // SAFETY: by the caller's promise.
        let hashes = unsafe { hashes_at(hashes, count) }?;
        Ok(session.lookup(hashes)?.into())
    };
    // SAFETY: by the caller's promise.
    unsafe { start(session, lookup, submit) }
}

/// As `rackline_lookup`, and holds the blocks that it finds. They stay in the pool until the prefix
/// is released or freed, at most for the session's time. The prefix ends before the first block
/// that could not be held.
///
/// # Safety
/// `hashes` is null or points to `count` hashes; `lookup` is null or points to a handle that
/// nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_lookup_and_hold(
    session: RacklineSession,
    hashes: *const RacklineBlockHash,
    count: usize,
    lookup: *mut RacklineLookup,
) -> RacklineError {
    let submit = |session: &AsyncSession| {
        // SAFETY: by the caller's promise.
        let hashes = unsafe { hashes_at(hashes, count) }?;
        Ok(session.lookup_and_hold(hashes)?.into())
    };
    // SAFETY: by the caller's promise.
    unsafe { start(session, lookup, submit) }
}

/// As `rackline_lookup_and_hold`, and goes on behind the end of the pool's prefix with blocks on
/// drives of hosts. Their agents restore these blocks into the pool, and the result comes when they
/// have, or when the wait is over. The prefix ends before the first block that did not come.
/// Without an agent on this host, and with `wait_ms` 0, this is `rackline_lookup_and_hold`.
///
/// # Safety
/// `hashes` is null or points to `count` hashes; `restore` is null or points to options; `lookup`
/// is null or points to a handle that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_lookup_and_restore(
    session: RacklineSession,
    hashes: *const RacklineBlockHash,
    count: usize,
    restore: *const RacklineRestoreOptions,
    lookup: *mut RacklineLookup,
) -> RacklineError {
    let submit = |session: &AsyncSession| {
        // SAFETY: by the caller's promise.
        let hashes = unsafe { hashes_at(hashes, count) }?;
        // SAFETY: by the caller's promise.
        let restore = unsafe { value(restore, "the options of the restore") }?;
        Ok(session.lookup_and_restore(hashes, restore.options())?.into())
    };
    // SAFETY: by the caller's promise.
    unsafe { start(session, lookup, submit) }
}

/// Holds blocks that another process of the rack found (`rackline_prefix_handles`), one after the
/// other in a prompt. The result is that of `rackline_lookup_and_hold`.
///
/// # Safety
/// `handles` is null or points to `count` handles; `lookup` is null or points to a handle that
/// nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_hold(
    session: RacklineSession,
    handles: *const RacklineBlockHandle,
    count: usize,
    lookup: *mut RacklineLookup,
) -> RacklineError {
    let submit = |session: &AsyncSession| {
        // SAFETY: by the caller's promise.
        let blocks = unsafe { blocks_at(handles, count) }?;
        Ok(session.hold(blocks)?.into())
    };
    // SAFETY: by the caller's promise.
    unsafe { start(session, lookup, submit) }
}

/// The result of a lookup, when it comes within `timeout_ms` milliseconds: 0 only looks, and
/// `RACKLINE_FOREVER_MS` waits without a limit. Without a result `RACKLINE_ERROR_UNDER_WAY`. The
/// result can be taken once.
///
/// # Safety
/// `result` is null or points to a result that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_lookup_wait(
    lookup: RacklineLookup,
    timeout_ms: u64,
    result: *mut RacklineLookupResult,
) -> RacklineError {
    let wait = |lookup: &Lookup| {
        let Found { prefix, blocks, reason, on_drives, restored } = lookup.wait(timeout_ms)?;
        let prefix = RacklinePrefix { handle: handles::open(prefix) };
        Ok(RacklineLookupResult { prefix, blocks, reason, on_drives, restored })
    };
    // SAFETY: by the caller's promise.
    unsafe { answer_at(result, "the place for the result", lookup.handle, wait) }
}

/// `rackline_lookup_wait` that only looks.
///
/// # Safety
/// `result` is null or points to a result that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_lookup_poll(
    lookup: RacklineLookup,
    result: *mut RacklineLookupResult,
) -> RacklineError {
    // SAFETY: by the caller's promise.
    unsafe { rackline_lookup_wait(lookup, 0, result) }
}

/// Revokes a lookup that has not begun, and says so in `cancelled`: then it has no result.
/// Otherwise the lookup continues unchanged.
///
/// # Safety
/// `cancelled` is null or points to a value that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_lookup_cancel(
    lookup: RacklineLookup,
    cancelled: *mut bool,
) -> RacklineError {
    let cancel = |lookup: &Lookup| {
        Ok(match lookup {
            Lookup::Plain(pending) => pending.cancel(),
            Lookup::Held(pending) => pending.cancel(),
            Lookup::Restored(pending) => pending.cancel(),
        })
    };
    // SAFETY: by the caller's promise.
    unsafe { answer_at(cancelled, "the place for the answer", lookup.handle, cancel) }
}

/// Frees a lookup. A lookup under way continues, and the blocks that it finds are released. A
/// lookup that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_lookup_free(lookup: RacklineLookup) -> RacklineError {
    handles::free::<Lookup>(lookup.handle, |_| ())
}
