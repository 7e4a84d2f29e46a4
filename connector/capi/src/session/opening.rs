//! Opening a session for the blocks of one model and namespace.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_char;

use connector::session::SessionOptions;
use connector::transfer::{TransferSession, Transfers};
use kv_cache::{HOLD_MS, HOLD_MS_MAX, Namespace};

use super::arguments::{optional, place};
use super::error::{Failure, RacklineError, code};
use super::handles::{self, Opened};
use super::model::{RacklineModel, model_at};
use super::options::namespace_at;
use super::pool::RacklinePool;

const CHUNK_TIMEOUT_MS: u64 = 2000;

/// A way to the blocks of one model and namespace. Zero is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineSession {
    /// Its number.
    pub handle: u64,
}

impl Opened for TransferSession {
    const KIND: &'static str = "a session";
}

/// Who shares the blocks of a session, and how long it waits. What is zero has its default.
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
    /// How long what is held stays at most, in milliseconds; by default 30000, and 2097088 (35
    /// minutes) at most.
    pub hold_ms: u64,
}

/// Opens a session for the blocks of `model`, of `block_bytes` bytes each. Blocks of other models,
/// lengths, tenants or salts are misses in it. Without `options` (null) all have their defaults.
///
/// # Safety
/// `model` is null or points to a model whose texts are null or end with a NUL; `options` is null or
/// points to options whose tenant is null or ends with a NUL, and whose salt is null or has its
/// length; `session` is null or points to a handle that nobody else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_session_open(
    pool: RacklinePool,
    model: *const RacklineModel,
    block_bytes: u64,
    options: *const RacklineSessionOptions,
    session: *mut RacklineSession,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let session = unsafe { place(session, "the place for the session") }?;
        session.write(RacklineSession { handle: 0 });
        // SAFETY: by the caller's promise.
        let model = unsafe { model_at(model) }?.fingerprint();
        let or_default = |chosen, default| if chosen == 0 { default } else { chosen };
        // SAFETY: by the caller's promise.
        let (namespace, chunk_timeout_ms, hold_ms) = match unsafe { optional(options, "options") }?
        {
            None => (Namespace::new("", b""), CHUNK_TIMEOUT_MS, HOLD_MS),
            Some(options) => (
                // SAFETY: by the caller's promise.
                unsafe { namespace_at(options.tenant, options.salt, options.salt_bytes) }?,
                or_default(options.chunk_timeout_ms, CHUNK_TIMEOUT_MS),
                or_default(options.hold_ms, HOLD_MS),
            ),
        };
        if hold_ms > HOLD_MS_MAX {
            let message = format!("hold_ms is {hold_ms}, {HOLD_MS_MAX} at most");
            return Err(Failure::bad_argument(message));
        }
        let options = SessionOptions { model, namespace, block_bytes, chunk_timeout_ms };
        let opened = handles::get::<Transfers>(pool.handle)?.open_session(options)?;
        session.write(RacklineSession { handle: handles::open(opened.with_hold_ms(hold_ms)) });
        Ok(())
    })
}

/// Frees a session. What it has under way goes on. A session that is zero is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_session_free(session: RacklineSession) -> RacklineError {
    code(|| {
        if session.handle != 0 {
            handles::close::<TransferSession>(session.handle)?;
        }
        Ok(())
    })
}
