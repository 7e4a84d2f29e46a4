//! What a lock guards, for figures of locks.

use super::tier::HostLockName;
use crate::layout::{CHUNK_LOCK, FIRST_FREE_LOCK, LOCK_TABLE_LOCK, PROFILE_LOCK, ROOT_LOCK};
use crate::units::LockId;

/// Locks that are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockKind {
    /// Between hosts: the table of named roots.
    Roots,
    /// Between hosts: the chunk table.
    ChunkTable,
    /// Between hosts: the table of locks in use.
    LockTable,
    /// Between hosts: the profile of the platform.
    Profile,
    /// Between hosts: all locks of programs.
    Programs,
    /// Of this host: the node's blocks and chunks.
    Heap,
    /// Of this host: the heap of objects.
    Objects,
    /// Of this host: which node is reclaimed.
    Orphan,
}

impl LockKind {
    /// All, in the order of their words.
    pub const ALL: [Self; 8] = [
        Self::Roots,
        Self::ChunkTable,
        Self::LockTable,
        Self::Profile,
        Self::Programs,
        Self::Heap,
        Self::Objects,
        Self::Orphan,
    ];

    /// A short name, for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Roots => "roots",
            Self::ChunkTable => "chunk_table",
            Self::LockTable => "lock_table",
            Self::Profile => "profile",
            Self::Programs => "programs",
            Self::Heap => "heap",
            Self::Objects => "objects",
            Self::Orphan => "orphan",
        }
    }

    /// Whether it is between hosts. Other locks are among the processes of one host.
    #[must_use]
    pub const fn is_between_hosts(self) -> bool {
        matches!(
            self,
            Self::Roots | Self::ChunkTable | Self::LockTable | Self::Profile | Self::Programs
        )
    }

    /// The kind of a lock between hosts. `None` of those that nothing uses yet.
    #[must_use]
    pub fn of(lock: LockId) -> Option<Self> {
        match lock {
            ROOT_LOCK => Some(Self::Roots),
            CHUNK_LOCK => Some(Self::ChunkTable),
            LOCK_TABLE_LOCK => Some(Self::LockTable),
            PROFILE_LOCK => Some(Self::Profile),
            LockId(FIRST_FREE_LOCK..) => Some(Self::Programs),
            LockId(_) => None,
        }
    }

    /// The kind of a host lock. `None` of those for which nobody waits.
    #[must_use]
    pub fn of_host(lock: HostLockName) -> Option<Self> {
        match lock {
            HostLockName::Heap => Some(Self::Heap),
            HostLockName::Objects => Some(Self::Objects),
            HostLockName::Orphan => Some(Self::Orphan),
            HostLockName::Agent
            | HostLockName::Manager
            | HostLockName::ChunkDemand
            | HostLockName::Drives => None,
        }
    }
}
