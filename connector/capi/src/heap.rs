//! Objects of a node's heap.
#![expect(unsafe_code, reason = "functions that C calls")]

use cxl_shm_objects::Objects;
use std::ffi::c_void;

use cxl_shm_objects::{FreeError, ObjectError, SharedOffset};

use crate::attached::{clock, with_thread};
use crate::error::{CxlShmError, Failure, code};
use crate::locks::OWN_LOCK_MS;
use crate::memory::{address_of, extent_at};

/// Allocates `bytes` bytes in the region, on lines of their own, and returns their address; null
/// when there is no room. Their contents are whatever was there before.
///
/// The object lives until it is freed, as long as a process of this host is attached. After that it
/// lives only when a named root leads to it, directly or through offsets in other objects.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn shmalloc(bytes: usize) -> *mut c_void {
    let address = with_thread(|thread| {
        let object = thread.member().allocate(clock(), OWN_LOCK_MS, bytes as u64);
        let object = object.map_err(|error| {
            let code = match error {
                ObjectError::TooLarge { .. } | ObjectError::Exhausted { .. } => {
                    CxlShmError::Exhausted
                }
                ObjectError::Lock(_) | ObjectError::HeapBusy { .. } => CxlShmError::Lock,
                ObjectError::Damaged => CxlShmError::Damaged,
            };
            Failure::new(code, error)
        })?;
        address_of(thread.fabric(), object.extent())
    });
    address.unwrap_or_else(|failure| (failure.keep(), std::ptr::null_mut()).1)
}

/// Frees an object of this or another host's heap, by the address from `shmalloc` or `cxl_shm_get`,
/// or from `cxl_shm_get_ptr` of its offset. No program may use the object any more.
/// `cxl_shm_destroy` frees an object that a root names. A null pointer is ignored.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn shfree(object: *mut c_void) -> CxlShmError {
    code(with_thread(|thread| {
        if object.is_null() {
            return Ok(());
        }
        let offset = offset_of(thread.fabric(), object)?;
        thread.member().free(clock(), OWN_LOCK_MS, offset).map_err(|error| {
            let code = match error {
                FreeError::Foreign { .. }
                | FreeError::NotAnObject { .. }
                | FreeError::NotAllocated { .. }
                | FreeError::OtherLife { .. }
                | FreeError::Named { .. } => CxlShmError::BadArgument,
                FreeError::Backlog { .. } => CxlShmError::Exhausted,
                FreeError::OwnerUnknown { .. }
                | FreeError::Lock(_)
                | FreeError::HeapBusy { .. } => CxlShmError::Lock,
                FreeError::Damaged => CxlShmError::Damaged,
            };
            Failure::new(code, error)
        })
    }))
}

/// The offset of the object at `address`.
pub(crate) fn offset_of(
    fabric: &cxl_shm::fabric::MappedFabric,
    address: *const c_void,
) -> Result<SharedOffset, Failure> {
    let extent = extent_at(fabric, address, 1)?;
    SharedOffset::new(extent.offset()).ok_or_else(|| {
        let message =
            format!("no object starts at {address:p}: objects start on lines of 64 bytes");
        Failure::new(CxlShmError::BadArgument, message)
    })
}
