//! Names for objects, known to all hosts.
#![expect(unsafe_code, reason = "functions that C calls")]

use cxl_shm_objects::NamedRoots;
use std::ffi::{c_char, c_void};

use cxl_shm_objects::SweepError;
use cxl_shm_objects::{DestroyRootError, GetRootError, PutRootError, RootKind};

use crate::attached::{clock, with_thread};
use crate::error::{CxlShmError, Failure, code};
use crate::heap::offset_of;
use crate::locks::OWN_LOCK_MS;
use crate::memory::address_of;
use crate::text::text_at;

/// Names an object that a process of this host allocated, so that every host finds it by
/// `cxl_shm_get`. Publish its contents first. A name has 1 to 128 bytes and is given once. An
/// object has one name.
///
/// Objects that a named object refers to by offset (`cxl_shm_get_offset`), in words aligned to 8
/// bytes, are kept with it when its host dies.
///
/// # Safety
/// `name` is null or points to a text that ends with a NUL.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_put(name: *const c_char, object: *const c_void) -> CxlShmError {
    // SAFETY: by the caller's promise.
    let name = unsafe { text_at(name, "the name") };
    code(with_thread(|thread| {
        let offset = offset_of(thread.fabric(), object)?;
        let put = thread.member().put_root(clock(), OWN_LOCK_MS, name?, offset, RootKind::Linked);
        put.map_err(|error| {
            let code = match error {
                PutRootError::BadName { .. }
                | PutRootError::NotAnObject { .. }
                | PutRootError::NotOurs { .. } => CxlShmError::BadArgument,
                PutRootError::Exists { .. } | PutRootError::AlreadyNamed { .. } => {
                    CxlShmError::Exists
                }
                PutRootError::NotFound { .. } => CxlShmError::NotFound,
                PutRootError::Full => CxlShmError::Exhausted,
                PutRootError::Lock(_)
                | PutRootError::Heap(SweepError::Lock(_) | SweepError::HeapBusy { .. }) => {
                    CxlShmError::Lock
                }
                PutRootError::Heap(_) => CxlShmError::Damaged,
            };
            Failure::new(code, error)
        })
    }))
}

/// The address in this process of the object of that name; null when there is none. Takes no lock.
/// Call `cxl_shm_refresh` before reading the object.
///
/// # Safety
/// `name` is null or points to a text that ends with a NUL.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_get(name: *const c_char) -> *mut c_void {
    // SAFETY: by the caller's promise.
    let name = unsafe { text_at(name, "the name") };
    let address = with_thread(|thread| {
        let name = name?;
        let root = thread.member().root(name).map_err(|error| {
            let code = match error {
                GetRootError::BadName { .. } => CxlShmError::BadArgument,
                GetRootError::BeingWritten { .. } => CxlShmError::Lock,
                GetRootError::Damaged { .. } => CxlShmError::Damaged,
            };
            Failure::new(code, error)
        })?;
        let root = root.ok_or_else(|| {
            Failure::new(CxlShmError::NotFound, format!("there is no object named \"{name}\""))
        })?;
        thread.member().may_write(root.object.extent());
        address_of(thread.fabric(), root.object.extent())
    });
    address.unwrap_or_else(|failure| (failure.keep(), std::ptr::null_mut()).1)
}

/// Takes a name back and frees the named object, on any host. No program may use the object any
/// more.
///
/// # Safety
/// `name` is null or points to a text that ends with a NUL.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_destroy(name: *const c_char) -> CxlShmError {
    // SAFETY: by the caller's promise.
    let name = unsafe { text_at(name, "the name") };
    code(with_thread(|thread| {
        thread.member().destroy_root(clock(), OWN_LOCK_MS, name?).map_err(|error| {
            let code = match error {
                DestroyRootError::NotFound { .. } => CxlShmError::NotFound,
                DestroyRootError::Lock(_)
                | DestroyRootError::Heap(SweepError::Lock(_) | SweepError::HeapBusy { .. }) => {
                    CxlShmError::Lock
                }
                DestroyRootError::Heap(_) => CxlShmError::Damaged,
            };
            Failure::new(code, error)
        })
    }))
}
