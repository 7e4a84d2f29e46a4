//! Which blocks are put on a drive, and which leave it: decisions alone, without a drive.
//!
//! The caller gives the time and does what is decided. The store, the agent of a host and `rackline
//! replay` use the same code, so that a replay says what a drive will do. Nothing here is random.
//!
//! - **DRIVE-P1**: A block is written when it has been READY for the age of backups and admission
//!   takes it ([`Backups`]). A block that the drive has is not written again.
//! - **DRIVE-P2**: The blocks that were used longest ago leave first. Of blocks that were used in one
//!   moment the deeper leave first ([`LeafOrder`]). A caller that tells the blocks of a request in
//!   one moment so keeps a prefix longer than what builds on it.
//! - **DRIVE-P3**: Nothing leaves up to the high watermark. Above it blocks leave down to the low one.
//! - **DRIVE-P4**: When blocks have to leave, namespaces over their budgets give first, and not below
//!   their budgets ([`Budgets`]). All blocks give the rest.
//! - **DRIVE-P5**: Every list has a bound. What does not fit is forgotten or not written, and counted.

mod admission;
mod backups;
mod budgets;
mod endurance;
mod leaf_order;
mod recent_keys;
mod sketch;

use kv_cache::{BlockKey, Watermarks};

pub use admission::{Admission, AdmissionKind, UnknownAdmission};
pub use backups::{BACKUP_AGE_MS, BackupFigures, BackupOptions, Backups};
pub use budgets::Budgets;
pub use endurance::drive_writes_per_day;
pub use leaf_order::{LeafOrder, Oldest};

/// Between which levels of use a drive is kept, unless others are chosen: 90 and 85 percent.
///
/// The rest has segments that are being filled, and what a batch of backups adds before blocks leave.
#[must_use]
pub fn usual_watermarks() -> Watermarks {
    Watermarks::new(90, 85).unwrap_or_default()
}

/// A name of a block that policies remember.
pub trait PolicyKey: Copy + Eq + std::hash::Hash {
    /// 64 bits that are uniform over all names. Equal for equal names.
    fn bits(&self) -> u64;
}

impl PolicyKey for BlockKey {
    fn bits(&self) -> u64 {
        bytemuck::pod_read_unaligned(&self.as_bytes()[..8])
    }
}

/// The number of a block in a trace.
impl PolicyKey for u32 {
    fn bits(&self) -> u64 {
        let mut word = u64::from(*self).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}
