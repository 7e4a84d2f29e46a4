//! Keeping what was measured.

use cxl_shm::clock::Clock;
use cxl_shm::layout::{
    PROFILE_LOCK, PlatformProfile, Superblock, SuperblockError, replace_profile,
};
use cxl_shm::lock::LockError;
use cxl_shm::node::{Backend, Member};

/// Why a profile was not stored. The old one is in force then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The lock that guards the superblock was not acquired.
    #[error("the profile cannot be stored: {0}")]
    Lock(#[from] LockError),
    /// The superblock cannot be read.
    #[error("the profile cannot be stored: {0}")]
    Superblock(#[from] SuperblockError),
}

/// Stores `profile` in the superblock, or takes the one that is there away.
///
/// After return every process that attaches, on any host, goes by it. Those that are attached go
/// on as they are.
///
/// # Errors
/// [`StoreError`]; nothing is changed then.
pub fn store_profile<B: Backend>(
    member: &Member<B>,
    profile: Option<PlatformProfile>,
    clock: &impl Clock,
    timeout_ms: u64,
) -> Result<Superblock, StoreError> {
    let _guard = member.lock_shared(PROFILE_LOCK, clock, timeout_ms)?;
    Ok(replace_profile(member.fabric(), profile)?)
}
