//! Opening a session for the blocks of one model and namespace.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_char;
use std::time::Duration;

use rackline::{AsyncPool, AsyncSession, SessionOptions};

use super::arguments::{open_at, optional};
use super::error::RacklineError;
use super::handles::{self, Opened};
use super::model::{RacklineModel, model_at};
use super::options::namespace_at;
use super::pool::RacklinePool;

/// A way to the blocks of one model and namespace. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineSession {
    /// Its number.
    pub handle: u64,
}

impl Opened for AsyncSession {
    const KIND: &'static str = "a session";
}

/// The tenant whose blocks a session shares, and how long the session waits. A zero stands for the
/// default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineSessionOptions {
    /// The tenant; null is the one without a name.
    pub tenant: *const c_char,
    /// The salt of the tenant's cache: `salt_bytes` bytes.
    pub salt: *const u8,
    /// Length of the salt in bytes.
    pub salt_bytes: usize,
    /// How long a publish waits for other hosts when this node needs more memory, in milliseconds;
    /// by default 2000.
    pub chunk_timeout_ms: u64,
    /// The longest time that a block is held, in milliseconds: by default 30000, at most 2097088
    /// (35 minutes).
    pub hold_ms: u64,
}

/// Opens a session for the blocks of `model`, of `block_bytes` bytes each. Blocks of other models,
/// lengths, tenants or salts are misses in it. Without `options` (null) all have their defaults.
///
/// # Safety
/// `model` is null or points to a model whose texts are null or end with a NUL; `options` is null
/// or points to options whose tenant is null or ends with a NUL, and whose salt is null or has its
/// length; `session` is null or points to a handle that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_session_open(
    pool: RacklinePool,
    model: *const RacklineModel,
    block_bytes: u64,
    options: *const RacklineSessionOptions,
    session: *mut RacklineSession,
) -> RacklineError {
    let open = || {
        // SAFETY: by the caller's promise.
        let model = unsafe { model_at(model) }?;
        let mut chosen = SessionOptions::new(model, block_bytes);
        // SAFETY: by the caller's promise.
        if let Some(options) = unsafe { optional(options, "options") }? {
            // SAFETY: by the caller's promise.
            let namespace =
                unsafe { namespace_at(options.tenant, options.salt, options.salt_bytes) }?;
            chosen = chosen.with_namespace(namespace);
            if options.chunk_timeout_ms != 0 {
                chosen = chosen.with_chunk_timeout(Duration::from_millis(options.chunk_timeout_ms));
            }
            if options.hold_ms != 0 {
                chosen = chosen.with_hold(Duration::from_millis(options.hold_ms));
            }
        }
        Ok(handles::get::<AsyncPool>(pool.handle)?.session(chosen)?)
    };
    // SAFETY: by the caller's promise.
    unsafe { open_at(session.cast(), "the place for the session", open) }
}

/// Frees a session. What it has under way continues. A session that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_session_free(session: RacklineSession) -> RacklineError {
    handles::free::<AsyncSession>(session.handle, |_| ())
}
