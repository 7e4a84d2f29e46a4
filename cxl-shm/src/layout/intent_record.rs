//! The head of a redo record.

use bytemuck::{Pod, Zeroable};
use static_assertions::assert_eq_size;

use super::INTENT_LINES;
use crate::fabric::Record;
use crate::units::LockId;

/// Images that a redo record can hold: the lines of its intent except for the head.
pub const INTENT_IMAGES: usize = 7;
const _: () = assert!(INTENT_IMAGES as u64 + 1 == INTENT_LINES, "a head, and the images");

/// Head of a redo record (rule LOCK-L2): which lines of what its lock guards are being written.
/// Their new contents, the images, are the lines behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IntentRecord {
    open: u32,
    lock: u32,
    images: u32,
    images_crc: u32,
    targets: [u32; INTENT_IMAGES],
    reserved: [u32; 3],
}

impl Record for IntentRecord {
    const KIND: u32 = u32::from_le_bytes(*b"INTN");
}

impl IntentRecord {
    /// "Under `lock`, the lines `targets` of what it guards become the images behind this head,
    /// whose CRC-32C is `images_crc`." At most [`INTENT_IMAGES`] targets, the rest is cut off.
    #[must_use]
    pub fn opened(lock: LockId, targets: &[u32], images_crc: u32) -> Self {
        let mut record = Self { open: 1, lock: lock.0, images_crc, ..Self::zeroed() };
        for (to, from) in record.targets.iter_mut().zip(targets) {
            *to = *from;
            record.images += 1;
        }
        record
    }

    /// Nothing in progress.
    #[must_use]
    pub fn closed() -> Self {
        Self::zeroed()
    }

    /// The targets of an update in progress under `lock`, and the CRC-32C of their images; `None`
    /// when nothing is in progress, or it is no update under this lock. The targets are not
    /// checked to be lines of what the lock guards.
    #[must_use]
    pub fn open(&self, lock: LockId) -> Option<(&[u32], u32)> {
        let ours = self.open == 1 && self.lock == lock.0;
        let images = usize::try_from(self.images).ok().filter(|_| ours)?;
        Some((self.targets.get(..images)?, self.images_crc))
    }
}

assert_eq_size!(IntentRecord, [u8; 56]);
