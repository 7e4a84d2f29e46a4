//! Clearing and pinning the blocks of a tenant in the whole pool.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_char;
use std::path::Path;
use std::time::Duration;

use rackline::{DirectiveError, Namespace, NodeId, Pool};

use super::arguments::{place, text, value};
use super::error::{Failure, RacklineError, code};
use super::options::namespace_at;
use crate::log;

/// Whose blocks: a tenant, and the salt of its cache.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineNamespace {
    /// The tenant; null is the one without a name.
    pub tenant: *const c_char,
    /// The salt of the tenant's cache: `salt_bytes` bytes.
    pub salt: *const u8,
    /// Length of the salt in bytes.
    pub salt_bytes: usize,
}

/// Nothing was asked for.
impl From<DirectiveError> for Failure {
    fn from(refused: DirectiveError) -> Self {
        let code = match refused {
            DirectiveError::Unanswered { .. } => RacklineError::Busy,
            DirectiveError::MembershipLost(_) => RacklineError::MembershipLost,
            // Any other is of the arguments.
            _ => RacklineError::BadArgument,
        };
        Self::new(code, refused)
    }
}

/// Removes the blocks of a namespace from the pool in the memory at `region` and from drives, on all
/// nodes. The calling process attaches as one of `node` for the time of the call, whether it has a
/// pool open or not. Waits until the blocks are gone, for at most `timeout_ms` milliseconds. Bit `n`
/// of `unanswered` says that node `n` has not answered: it is paused, and removes its blocks when it
/// continues; or its agent is down, and removes them from its drives when it starts. When the node is
/// declared dead, clear again. 0 says that all blocks are gone.
///
/// Every block is removed that was published before the call, held or not; a fetch that is under
/// way becomes a miss. A block that is published meanwhile may stay. Namespaces whose 16-bit tag is
/// equal are cleared together. `RACKLINE_ERROR_BUSY` says that a node with blocks has not answered
/// 16 earlier requests of this node; nothing is cleared then.
///
/// # Safety
/// `region` is null or points to a text that ends with a NUL; `name` is null or points to a
/// namespace, with a tenant that is null or ends with a NUL, and a salt that is null or has its
/// length; `unanswered` is null or points to a number that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_clear(
    region: *const c_char,
    node: u16,
    name: *const RacklineNamespace,
    timeout_ms: u64,
    unanswered: *mut u64,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let namespace = unsafe { named(name) }?;
        let clear = |pool: &Pool| {
            let cleared = pool.clear(Some(&namespace), Duration::from_millis(timeout_ms))?;
            Ok(cleared.nodes_left())
        };
        // SAFETY: by the caller's promise.
        unsafe { ask(region, node, unanswered, clear) }
    })
}

/// As `rackline_clear`, of all namespaces.
///
/// # Safety
/// `region` is null or points to a text that ends with a NUL; `unanswered` is null or points to a
/// number that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_clear_all(
    region: *const c_char,
    node: u16,
    timeout_ms: u64,
    unanswered: *mut u64,
) -> RacklineError {
    code(|| {
        let clear = |pool: &Pool| {
            let cleared = pool.clear(None, Duration::from_millis(timeout_ms))?;
            Ok(cleared.nodes_left())
        };
        // SAFETY: by the caller's promise.
        unsafe { ask(region, node, unanswered, clear) }
    })
}

/// Lets the blocks of a namespace leave last when room is short, on all nodes, for `length_ms`
/// milliseconds, at most 365 days: as far as they take `percent` of a node's payload, from 1 to 50.
/// Each node measures the time from when it sees the request. Attaches, waits and answers as
/// `rackline_clear` does, but a node without blocks is not waited for long.
///
/// A pinned block still leaves when there is nothing else, or when another node needs its memory.
/// Where the namespace has a quota on a host, the quota stays; a host has room for 64 quotas and
/// pins. The log names the nodes that do not set the pin. A pin ends on a host with the host's last
/// process. A later pin of the namespace replaces it.
///
/// # Safety
/// As `rackline_clear`.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_pin(
    region: *const c_char,
    node: u16,
    name: *const RacklineNamespace,
    percent: u16,
    length_ms: u64,
    timeout_ms: u64,
    unanswered: *mut u64,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let namespace = unsafe { named(name) }?;
        let (length, timeout) =
            (Duration::from_millis(length_ms), Duration::from_millis(timeout_ms));
        let pin = |pool: &Pool| pool.pin(&namespace, percent, length, timeout);
        // SAFETY: by the caller's promise.
        unsafe { ask(region, node, unanswered, pin) }
    })
}

/// Ends the pin of a namespace on all nodes, whichever node asked for the pin. Attaches, waits and
/// answers as `rackline_pin` does.
///
/// # Safety
/// As `rackline_clear`.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_unpin(
    region: *const c_char,
    node: u16,
    name: *const RacklineNamespace,
    timeout_ms: u64,
    unanswered: *mut u64,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let namespace = unsafe { named(name) }?;
        let unpin = |pool: &Pool| pool.unpin(&namespace, Duration::from_millis(timeout_ms));
        // SAFETY: by the caller's promise.
        unsafe { ask(region, node, unanswered, unpin) }
    })
}

/// The namespace at `name`. A null pointer is an error, so that no mistake clears all of them.
///
/// # Safety
/// As `rackline_clear`.
unsafe fn named(name: *const RacklineNamespace) -> Result<Namespace, Failure> {
    // SAFETY: by the caller's promise.
    let name = unsafe { value(name, "the namespace") }?;
    // SAFETY: by the caller's promise.
    unsafe { namespace_at(name.tenant, name.salt, name.salt_bytes) }
}

/// Attaches for the time of one request, and writes who has not answered.
///
/// # Safety
/// As `rackline_clear_all`.
unsafe fn ask(
    region: *const c_char,
    node: u16,
    unanswered: *mut u64,
    request: impl FnOnce(&Pool) -> Result<Vec<NodeId>, DirectiveError>,
) -> Result<(), Failure> {
    // SAFETY: by the caller's promise.
    let unanswered = unsafe { place(unanswered, "the place for the nodes") }?;
    unanswered.write(0);
    // SAFETY: by the caller's promise.
    let region = unsafe { text(region, "the path of the region") }?;
    log::start();
    let pool = Pool::attach(Path::new(region), node);
    let pool = pool.map_err(|error| Failure::new(RacklineError::Pool, error))?;
    let nodes = request(&pool)?;
    // A region has at most 32 nodes.
    unanswered.write(nodes.iter().fold(0, |bits, node| bits | 1 << node.0));
    Ok(())
}
