//! Making a region, for programs that need no KV cache in it.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_char;
use std::path::Path;

use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::region::{Region, RegionUse};

use crate::error::{CxlShmError, Failure, code};
use crate::text::text_at;

/// Locks of a region made here: the most there can be.
const LOCKS: u32 = cxl_shm::layout::LOCKS_MAX;
/// From this size on a region has large chunks.
const LARGE_BYTES: u64 = 16 << 30;

/// How locks between hosts work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum CxlShmLocks {
    /// A lock manager grants them: start `rackline lock-manager` on one host.
    Arbitrated = 0,
    /// The hosts agree among themselves.
    Bakery = 1,
}

/// Makes a region of `bytes` bytes for `nodes` hosts in a new file at `region`, for a single host.
/// Use `rackline format` for a device. A file that exists already is an error, and stays unchanged.
///
/// # Safety
/// `region` is null or points to a text that ends with a NUL.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_init(
    region: *const c_char,
    bytes: u64,
    nodes: u16,
    locks: u32,
) -> CxlShmError {
    // SAFETY: by the caller's promise.
    let region = unsafe { text_at(region, "the path of the region") };
    code(region.and_then(|region| init(Path::new(region), bytes, nodes, protocol(locks)?)))
}

/// A number, not the enum: C may pass any.
fn protocol(locks: u32) -> Result<LockProtocol, Failure> {
    match locks {
        code if code == CxlShmLocks::Arbitrated as u32 => Ok(LockProtocol::Arbitrated),
        code if code == CxlShmLocks::Bakery as u32 => Ok(LockProtocol::Bakery),
        code => {
            let message = format!("{code} is no lock protocol: see CxlShmLocks");
            Err(Failure::new(CxlShmError::BadArgument, message))
        }
    }
}

fn init(path: &Path, bytes: u64, nodes: u16, protocol: LockProtocol) -> Result<(), Failure> {
    let bad = |error: &dyn ToString| Failure::new(CxlShmError::BadArgument, error.to_string());
    let geometry = Geometry {
        region_bytes: bytes,
        nodes,
        locks: LOCKS,
        chunk_bytes: if bytes >= LARGE_BYTES { 64 << 20 } else { 1 << 20 },
        // Nothing above the shared memory itself.
        area_lines: 1,
        host_words: 0,
    };
    // What cannot be laid out is refused before there is a file.
    Layout::new(geometry).map_err(|error| bad(&error))?;
    let failed = |error: &dyn ToString| Failure::new(CxlShmError::Region, error.to_string());
    let region = Region::create_file(path, bytes).map_err(|error| failed(&error))?;
    let made = RegionUse::exclusive(&region).map_err(|error| failed(&error)).and_then(|_alone| {
        let geometry = Geometry { region_bytes: region.bytes(), ..geometry };
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        let superblock = Superblock::new([high, low], geometry, [0; 6]);
        let superblock = Superblock { lock_protocol: protocol, ..superblock };
        format_superblock(region.fabric(), &superblock, |_, _| ()).map_err(|error| bad(&error))
    });
    match made {
        Ok(_) => Ok(()),
        Err(failure) => {
            region.remove_file().map_err(|error| failed(&error))?;
            Err(failure)
        }
    }
}
