//! Addresses and offsets, and what other hosts see of the bytes at them.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_void;

use cxl_shm::fabric::{Fabric, MappedFabric};
use cxl_shm::units::{Extent, LineRange};

use crate::attached::with_thread;
use crate::error::{CxlShmError, Failure, code};

/// No offset: offset 0 is the superblock, which is nobody's object.
const NO_OFFSET: u64 = 0;

/// The extent of `bytes` bytes at `address`.
pub(crate) fn extent_at(
    fabric: &MappedFabric,
    address: *const c_void,
    bytes: usize,
) -> Result<Extent, Failure> {
    let outside = || {
        Failure::new(
            CxlShmError::BadArgument,
            format!("{bytes} bytes at {address:p} are not in the region"),
        )
    };
    let whole = Extent::new(0, fabric.bytes()).ok_or_else(outside)?;
    let base = fabric.mapping().address(whole).ok_or_else(outside)?;
    let offset = address.addr().checked_sub(base.addr()).ok_or_else(outside)?;
    whole.part(offset as u64, bytes as u64).ok_or_else(outside)
}

/// The address of `extent` in this process.
pub(crate) fn address_of(fabric: &MappedFabric, extent: Extent) -> Result<*mut c_void, Failure> {
    fabric.mapping().address(extent).map(<*mut u8>::cast).ok_or_else(|| {
        Failure::new(
            CxlShmError::BadArgument,
            format!("offset {:#x} is not in the region", extent.offset()),
        )
    })
}

/// The offset of `address` in the region, the same in every process; 0 when it is not in the
/// region.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_get_offset(address: *const c_void) -> u64 {
    with_thread(|thread| extent_at(thread.fabric(), address, 0))
        .map_or_else(|failure| (failure.keep(), NO_OFFSET).1, Extent::offset)
}

/// The address of `offset` in this process; null when it is not in the region.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_get_ptr(offset: u64) -> *mut c_void {
    let address = with_thread(|thread| {
        let extent = Extent::new(offset, 1).filter(|_| offset != NO_OFFSET).ok_or_else(|| {
            Failure::new(CxlShmError::BadArgument, format!("{offset:#x} is no offset of an object"))
        })?;
        thread.member().may_write(extent);
        address_of(thread.fabric(), extent)
    });
    address.unwrap_or_else(|failure| (failure.keep(), std::ptr::null_mut()).1)
}

fn lines_at(
    address: *const c_void,
    bytes: usize,
    f: impl FnOnce(&MappedFabric, LineRange),
) -> CxlShmError {
    code(with_thread(|thread| {
        let extent = extent_at(thread.fabric(), address, bytes)?;
        thread.member().may_write(extent);
        f(thread.fabric(), LineRange::covering(extent));
        Ok(())
    }))
}

/// Makes what this host wrote to `bytes` bytes at `address` visible: after return every host that
/// refreshes them sees at least that.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_publish(address: *const c_void, bytes: usize) -> CxlShmError {
    lines_at(address, bytes, |fabric, lines| fabric.publish(lines))
}

/// Drops `bytes` bytes at `address` from this host's caches: the next reads see at least what was
/// published before the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_refresh(address: *const c_void, bytes: usize) -> CxlShmError {
    lines_at(address, bytes, |fabric, lines| fabric.refresh(lines))
}

/// Writes `bytes` bytes at `address` back and drops them from this host's caches: publish and
/// refresh in one, for programs written against `clflush`.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_clflush(address: *const c_void, bytes: usize) -> CxlShmError {
    lines_at(address, bytes, |fabric, lines| {
        fabric.publish(lines);
        fabric.refresh(lines);
    })
}
