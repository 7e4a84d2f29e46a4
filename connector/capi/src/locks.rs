//! Locks that exclude the threads of all hosts.
#![expect(unsafe_code, reason = "functions that C calls")]

use cxl_shm_objects::LockTable;
use std::collections::hash_map::Entry;

use cxl_shm::layout::FIRST_FREE_LOCK;
use cxl_shm::lock::LockError;
use cxl_shm::units::LockId;
use cxl_shm_objects::{AllocateLockError, FreeLockError};

use crate::attached::{Thread, clock, with_thread};
use crate::error::{CxlShmError, Failure, code};

/// How long a call waits for a lock of the region's own.
pub(crate) const OWN_LOCK_MS: u64 = 10_000;
/// How long `cxl_shm_acquire_lock` waits between two looks at whether a lock manager can grant it.
const WAIT_MS: u64 = 1_000;

fn refused(error: LockError) -> Failure {
    Failure::new(CxlShmError::Lock, error)
}

/// Gives out a lock that no program uses, until `cxl_shm_free_lock`. Its number, which is the same
/// on all hosts, is written to `lock`.
///
/// # Safety
/// `lock` is null or points to a number that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_allocate_lock(lock: *mut u32) -> CxlShmError {
    code(with_thread(|thread| {
        if lock.is_null() {
            let message = "the place for the lock's number is a null pointer";
            return Err(Failure::new(CxlShmError::BadArgument, message));
        }
        let allocated = thread.member().allocate_lock(clock(), OWN_LOCK_MS);
        let allocated = allocated.map_err(|error| match error {
            AllocateLockError::Exhausted { .. } => Failure::new(CxlShmError::Exhausted, error),
            AllocateLockError::Lock(_) => Failure::new(CxlShmError::Lock, error),
        })?;
        // SAFETY: not null (checked above); valid for writing by the caller's promise.
        unsafe { lock.write(allocated.0) };
        Ok(())
    }))
}

/// Takes a lock back. No thread may hold it, wait for it, or use it any more.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_free_lock(lock: u32) -> CxlShmError {
    code(with_thread(|thread| {
        if thread.held.contains_key(&lock) {
            let message = format!("lock {lock} is held by this thread: release it first");
            return Err(Failure::new(CxlShmError::BadArgument, message));
        }
        let freed = thread.member().free_lock(clock(), OWN_LOCK_MS, LockId(lock));
        freed.map_err(|error| match error {
            FreeLockError::NotInUse { .. } => Failure::new(CxlShmError::NotFound, error),
            FreeLockError::Damaged(_) => Failure::new(CxlShmError::Damaged, error),
            FreeLockError::Lock(_) => Failure::new(CxlShmError::Lock, error),
        })
    }))
}

/// Acquires a lock, and waits for it as long as it takes. Fails only when no lock manager runs that
/// can grant it, or this node was declared dead. A host that has noticed the missing lock manager
/// refuses at once, until one runs again.
///
/// Call `cxl_shm_refresh` before reading what the lock protects.
///
/// `CXL_SHM_ERROR_HOLDER_DIED` means that the calling thread holds the lock, and that an earlier
/// holder panicked, or died with its process or its host. When a host died it is unknown whether it
/// held the lock or waited for it: the code is returned in both cases. Each holder gets this code
/// until one calls `cxl_shm_lock_is_consistent`. The library promises:
///
/// - Any part of what the dead thread stored under the lock may be visible, line by line of 64
///   bytes, whether it had published it or not. The program has to check and repair the data.
/// - None of its stores appears later: before the lock was released, the host of the dead thread
///   moved everything that its programs may have written to the device. This covers objects whose
///   address `shmalloc`, `cxl_shm_get` or `cxl_shm_get_ptr` returned, and bytes that were published
///   or refreshed. It takes about 3 ms for each chunk of 64 MiB with such objects, and no thread
///   has the lock in that time.
/// - After the death of a host its stores have arrived, or are lost, before the lock is free: a
///   host is fenced before its locks are released.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_acquire_lock(lock: u32) -> CxlShmError {
    code(with_thread(|thread| {
        loop {
            match acquire(thread, lock, WAIT_MS)? {
                Err(LockError::TimedOut { .. }) => {}
                outcome => return outcome.map_err(refused).and_then(told),
            }
        }
    }))
}

/// Acquires a lock as `cxl_shm_acquire_lock` does, and waits for it at most `timeout_ms`
/// milliseconds. After a time-out nothing is held or left behind.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_acquire_lock_within(lock: u32, timeout_ms: u64) -> CxlShmError {
    code(with_thread(|thread| {
        let after_death = acquire(thread, lock, timeout_ms)?.map_err(refused)?;
        told(after_death)
    }))
}

/// Says that the data of a lock is consistent again after `CXL_SHM_ERROR_HOLDER_DIED`, and has been
/// published. Later holders no longer get that code. The calling thread must hold the lock. Does
/// nothing when no holder had died.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_lock_is_consistent(lock: u32) -> CxlShmError {
    code(with_thread(|thread| match thread.held.get_mut(&lock) {
        Some(guard) => {
            guard.set_consistent();
            Ok(())
        }
        None => Err(not_held(lock)),
    }))
}

/// Releases a lock that this thread holds. Publish the protected data first.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_release_lock(lock: u32) -> CxlShmError {
    // CAPI-I2.
    code(with_thread(|thread| match thread.held.remove(&lock) {
        Some(guard) => {
            drop(guard);
            Ok(())
        }
        None => Err(not_held(lock)),
    }))
}

fn not_held(lock: u32) -> Failure {
    Failure::new(CxlShmError::NotHeld, format!("lock {lock} is not held by this thread"))
}

/// The lock is acquired; `after_death` when the caller is to be told.
fn told(after_death: bool) -> Result<(), Failure> {
    if !after_death {
        return Ok(());
    }
    let message = "the lock is acquired; a thread that held it died, and what it protects may be half \
                   done: repair it, publish it, and call cxl_shm_lock_is_consistent";
    Err(Failure::new(CxlShmError::HolderDied, message))
}

/// Whether a holder before died, when the lock is acquired.
fn acquire(
    thread: &mut Thread,
    lock: u32,
    timeout_ms: u64,
) -> Result<Result<bool, LockError>, Failure> {
    let member = thread.member();
    let locks = member.layout().locks();
    if !(FIRST_FREE_LOCK..locks).contains(&lock) {
        let message = format!("{lock} is no lock for programs: {FIRST_FREE_LOCK} to {}", locks - 1);
        return Err(Failure::new(CxlShmError::BadArgument, message));
    }
    match thread.held.entry(lock) {
        Entry::Occupied(_) => {
            let message = format!("lock {lock} is held by this thread already");
            Err(Failure::new(CxlShmError::NotHeld, message))
        }
        Entry::Vacant(free) => {
            let guard = member.lock_shared(LockId(lock), clock(), timeout_ms);
            Ok(guard.map(|guard| free.insert(guard).previous_holder_died()))
        }
    }
}
