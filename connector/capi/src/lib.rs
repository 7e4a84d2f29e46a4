//! The C interface: sessions of the KV cache (`rackline_*`), and the paper's `cxl_shm` calls over
//! one region that this process is attached to.
//!
//! The header `include/cxl_shm.h` is generated from the sources in this folder and checked in; a
//! test fails when it is not current. Sessions have a folder and a header of their own
//! ([`session`]).
//!
//! - **CAPI-I1** Every call is safe from any thread; a thread that calls becomes a member of the
//!   host's tier of its own at its first call, and stops being one when it ends.
//! - **CAPI-I2** A lock is released by the thread that acquired it. A thread that ends releases
//!   what it holds.
//! - **CAPI-I3** No panic crosses into C: a call that would panic ends the process with its
//!   message, as `extern "C"` functions do.
//! - **CAPI-I4** A child of `fork` has no thread that sends its host's heartbeat and shares the
//!   parent's identity: every call in it but `cxl_shm_last_error` is refused.

mod attached;
mod error;
mod heap;
mod init;
mod locks;
mod log;
mod memory;
mod per_process;
mod roots;
pub mod session;
mod text;

pub use attached::{cxl_shm_attach, cxl_shm_detach};
pub use error::{CxlShmError, cxl_shm_last_error};
pub use heap::{shfree, shmalloc};
pub use init::{CxlShmLocks, cxl_shm_init};
pub use locks::{
    cxl_shm_acquire_lock, cxl_shm_acquire_lock_within, cxl_shm_allocate_lock, cxl_shm_free_lock,
    cxl_shm_lock_is_consistent, cxl_shm_release_lock,
};
pub use memory::{
    cxl_shm_clflush, cxl_shm_get_offset, cxl_shm_get_ptr, cxl_shm_publish, cxl_shm_refresh,
};
pub use roots::{cxl_shm_destroy, cxl_shm_get, cxl_shm_put};
