//! What can go wrong with named roots.

use crate::heap::{SharedOffset, SweepError};
use cxl_shm::layout::{ROOT_NAME_BYTES_MAX, ROOTS_MAX};
use cxl_shm::lock::LockError;
use cxl_shm::units::NodeId;

/// Why an object was not given a name. Nothing is changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PutRootError {
    /// Empty or too long.
    #[error("a name of {bytes} bytes: names have 1 to {ROOT_NAME_BYTES_MAX}")]
    BadName {
        /// Length asked for.
        bytes: usize,
    },
    /// There is such a root.
    #[error("there is a root \"{name}\" already; destroy it, or replace what it names")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is no such root to replace.
    #[error("there is no root \"{name}\" to replace")]
    NotFound {
        /// The name.
        name: String,
    },
    /// The object has a name.
    #[error("the object at offset {offset} has a name already: an object has one root")]
    AlreadyNamed {
        /// The object.
        offset: SharedOffset,
    },
    /// No allocated object starts there.
    #[error("no allocated object starts at offset {offset}")]
    NotAnObject {
        /// The offset.
        offset: SharedOffset,
    },
    /// The object, or the one it replaces, is in another node's heap.
    #[error("the object at offset {offset} is in the heap of node {owner}; do this on that node")]
    NotOurs {
        /// The object.
        offset: SharedOffset,
        /// Whose it is.
        owner: NodeId,
    },
    /// No room.
    #[error("all {ROOTS_MAX} named roots are taken; destroy some")]
    Full,
    /// The lock of the roots was not acquired.
    #[error("cannot change the named roots: {0}")]
    Lock(#[from] LockError),
    /// The heap that the object is in was not available.
    #[error(transparent)]
    Heap(#[from] SweepError),
}

/// Why a root was not found, nor its absence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GetRootError {
    /// Empty or too long.
    #[error("a name of {bytes} bytes: names have 1 to {ROOT_NAME_BYTES_MAX}")]
    BadName {
        /// Length asked for.
        bytes: usize,
    },
    /// The table was being written at each look.
    #[error(
        "root \"{name}\" was not found, but some roots are being written, or their writer died; \
         try again after that host has been recovered"
    )]
    BeingWritten {
        /// The name.
        name: String,
    },
    /// What it names is no object.
    #[error("root \"{name}\" names offset {offset:#x}, where no object starts: it is damaged")]
    Damaged {
        /// The name.
        name: String,
        /// What it names.
        offset: u64,
    },
}

/// Why a root was not destroyed. Nothing is changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DestroyRootError {
    /// There is no such root.
    #[error("there is no root \"{name}\"")]
    NotFound {
        /// The name.
        name: String,
    },
    /// The lock of the roots was not acquired.
    #[error("cannot change the named roots: {0}")]
    Lock(#[from] LockError),
    /// The heap was not available, and nothing is changed. Or the heap is damaged: then the root is
    /// destroyed, and its object is not freed.
    #[error(transparent)]
    Heap(#[from] SweepError),
}
