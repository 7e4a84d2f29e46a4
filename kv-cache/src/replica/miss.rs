//! Why a block that was looked up is a miss.

use crate::format::DescriptorError;

/// Why a fetch of one block failed. Always harmless: the engine computes the block itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Miss {
    /// The block was removed: its descriptor is free.
    #[error("the block was removed")]
    Absent,
    /// The block made room for others.
    #[error("the block was evicted")]
    Evicted,
    /// The descriptor's block is not complete, or cannot be held because its owner does not come to
    /// the end of removing it.
    #[error("the block is still being written, or just being removed")]
    NotReady,
    /// The block's owner died before the block was complete, or with the drive that has its bytes.
    #[error("the block's owner is dead, and the block is not in the pool")]
    OwnerDead,
    /// The block's bytes are on a drive of its owner.
    #[error("the block is not in the pool but on a drive of its owner")]
    Spilled,
    /// This process has failed to read the block before (INDEX-R3).
    #[error("this process has failed to read the block before")]
    Quarantined,
    /// The descriptor describes a later block.
    #[error("the block was replaced by a later one")]
    StaleGeneration,
    /// The descriptor describes a block with another key.
    #[error("the descriptor is that of another block")]
    WrongKey,
    /// The block has the part of the key by which blocks are found, and another witness: it is of
    /// another model, as when a handle came from a process with that model, or of other tokens.
    #[error("the block is of another model, or of other tokens with a key that collides")]
    KeyCollision,
    /// The block has another length than the reader expects.
    #[error("the block has another length")]
    WrongLength,
    /// The descriptor's seal does not fit.
    #[error("the descriptor is torn or damaged")]
    Torn,
    /// The descriptor names a state, owner or payload that cannot be, or the handle a descriptor
    /// that does not exist.
    #[error("the descriptor or its handle names something outside the region")]
    Malformed,
    /// The second look found the descriptor changed: the bytes may be of two blocks.
    #[error("the block was removed or replaced while it was read")]
    Changed,
    /// The bytes are not those that were published.
    #[error("the payload is damaged: its checksum differs")]
    Checksum,
    /// The device could not read a page of the payload (FAULT-F3).
    #[error(
        "the memory of the payload failed: the device reported an error that it cannot correct"
    )]
    MemoryFailed,
}

impl Miss {
    /// All reasons, in the order in which they are counted.
    pub const ALL: [Self; 15] = [
        Self::Absent,
        Self::Evicted,
        Self::NotReady,
        Self::OwnerDead,
        Self::Spilled,
        Self::Quarantined,
        Self::StaleGeneration,
        Self::WrongKey,
        Self::KeyCollision,
        Self::WrongLength,
        Self::Torn,
        Self::Malformed,
        Self::Changed,
        Self::Checksum,
        Self::MemoryFailed,
    ];

    /// A short name, for metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Evicted => "evicted",
            Self::NotReady => "not_ready",
            Self::OwnerDead => "owner_dead",
            Self::Spilled => "spilled",
            Self::Quarantined => "quarantined",
            Self::StaleGeneration => "stale_generation",
            Self::WrongKey => "wrong_key",
            Self::KeyCollision => "key_collision",
            Self::WrongLength => "wrong_length",
            Self::Torn => "torn",
            Self::Malformed => "malformed",
            Self::Changed => "changed",
            Self::Checksum => "checksum",
            Self::MemoryFailed => "memory_failed",
        }
    }

    /// Whether the block is good, and only not the one that its reader wants: no reason to
    /// quarantine it (INDEX-R3).
    #[must_use]
    pub fn is_mismatch(self) -> bool {
        matches!(self, Self::WrongKey | Self::KeyCollision | Self::WrongLength)
    }

    /// Whether the block itself is bad, and not just gone: its owner removes it.
    #[must_use]
    pub fn is_damage(self) -> bool {
        matches!(self, Self::Torn | Self::Malformed | Self::Checksum | Self::MemoryFailed)
    }
}

impl From<DescriptorError> for Miss {
    fn from(error: DescriptorError) -> Self {
        match error {
            DescriptorError::Torn(_) => Self::Torn,
            DescriptorError::Malformed => Self::Malformed,
        }
    }
}
