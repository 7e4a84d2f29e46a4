//! What can go wrong with objects.

use super::object::SharedOffset;
use cxl_shm::chunk::AllocateError;
use cxl_shm::lock::LockError;
use cxl_shm::units::NodeId;

/// The heap of this node was not free within the time-out of the caller. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the lock of this node's heap was not acquired within {timeout_ms} ms: {}", in_words(*.holder))]
pub struct HeapBusy {
    /// How long the caller waited, in milliseconds.
    pub timeout_ms: u64,
    /// The id of the living process of this host that was in the heap when the time was over.
    /// `None` when no process was: then other threads of the host had their turns before the
    /// caller.
    pub holder: Option<u32>,
}

fn in_words(holder: Option<u32>) -> String {
    match holder {
        Some(pid) => format!(
            "process {pid} of this host lives and is in the heap; if process {pid} is stopped, by a \
             debugger or SIGSTOP say, let it go on or end it, and try again"
        ),
        None => {
            "other threads of this host came first; try again, with a longer time-out".to_owned()
        }
    }
}

/// Why no object was allocated. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ObjectError {
    /// Larger than a chunk.
    #[error(
        "an object of {bytes} bytes is larger than any chunk can hold: the most is {bytes_max}; \
         split it, or format the region with larger chunks"
    )]
    TooLarge {
        /// Asked for.
        bytes: u64,
        /// The most that one object can have.
        bytes_max: u64,
    },
    /// No room in this host's chunks, and no further chunk.
    #[error(
        "no room for {bytes} bytes: this node's heap has {free_bytes} bytes free in \
         {heap_chunks} chunks, none large enough in one piece, and no further chunk: {source}"
    )]
    Exhausted {
        /// Asked for.
        bytes: u64,
        /// Free in this node's heap, in pieces.
        free_bytes: u64,
        /// Chunks of this node's heap.
        heap_chunks: u64,
        /// Why there is no further chunk.
        source: AllocateError,
    },
    /// The locks under which a heap is rebuilt were not acquired.
    #[error("this node's heap cannot be rebuilt: {0}")]
    Lock(#[from] LockError),
    /// Others of this host kept the heap for as long as was waited.
    #[error(transparent)]
    HeapBusy(#[from] HeapBusy),
    /// Somebody else writes the heap's own lines.
    #[error(
        "the lines that describe this node's heap change while its host lock is held: another \
         host writes them; make sure that no two hosts have the same node number"
    )]
    Damaged,
}

/// Why an object was not freed. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FreeError {
    /// Not in a heap.
    #[error("offset {offset} is in no heap: it was not allocated here")]
    Foreign {
        /// The offset.
        offset: SharedOffset,
    },
    /// In a heap, but no object starts there.
    #[error("offset {offset} is in a heap, but no object starts there")]
    NotAnObject {
        /// The offset.
        offset: SharedOffset,
    },
    /// A double free.
    #[error("the object at offset {offset} is free already")]
    NotAllocated {
        /// The offset.
        offset: SharedOffset,
    },
    /// A root names it.
    #[error("a named root holds the object at offset {offset}: destroy the root instead")]
    Named {
        /// The offset.
        offset: SharedOffset,
    },
    /// The object belongs to another host, which does not keep up with its frees.
    #[error(
        "node {owner}, whose heap the object is in, has not taken {waiting} frees from this node \
         yet; try again later, and start a lock manager on that node if no process there uses \
         objects"
    )]
    Backlog {
        /// The owner.
        owner: NodeId,
        /// Frees that wait for it.
        waiting: u64,
    },
    /// The object is in a heap that waits to be rebuilt: then what no root reaches is free.
    #[error(
        "node {owner}, whose heap the object is in, has not rebuilt it since a host died; try again \
         later if a root reaches the object"
    )]
    OwnerUnknown {
        /// The owner.
        owner: NodeId,
    },
    /// The heap was rebuilt since the object was looked up: what no root reached is free already.
    #[error(
        "the heap of the object at offset {offset} is being rebuilt after its host died: the \
         object is free unless a root reaches it; look it up again from a root"
    )]
    OtherLife {
        /// The offset.
        offset: SharedOffset,
    },
    /// The locks under which a heap is rebuilt were not acquired.
    #[error("this node's heap cannot be rebuilt: {0}")]
    Lock(#[from] LockError),
    /// Others of this host kept the heap for as long as was waited.
    #[error(transparent)]
    HeapBusy(#[from] HeapBusy),
    /// As [`ObjectError::Damaged`].
    #[error(
        "the lines that describe this node's heap change while its host lock is held: another \
         host writes them; make sure that no two hosts have the same node number"
    )]
    Damaged,
}

/// Why an object is not this host's to write now. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TakeOverError {
    /// Not in a heap, or no object starts there.
    #[error("no object of any heap starts at offset {offset}")]
    NotAnObject {
        /// The offset.
        offset: SharedOffset,
    },
}

/// Why a heap was not swept. Nothing is freed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SweepError {
    /// The locks of the roots and of the chunk table were not acquired.
    #[error("this node's heap cannot be swept: {0}")]
    Lock(#[from] LockError),
    /// Others of this host kept the heap for as long as was waited.
    #[error(transparent)]
    HeapBusy(#[from] HeapBusy),
    /// As [`ObjectError::Damaged`].
    #[error(
        "the lines that describe this node's heap change while its host lock is held: another \
         host writes them; make sure that no two hosts have the same node number"
    )]
    Damaged,
}

impl From<SweepError> for ObjectError {
    fn from(error: SweepError) -> Self {
        match error {
            SweepError::Lock(error) => Self::Lock(error),
            SweepError::HeapBusy(busy) => Self::HeapBusy(busy),
            SweepError::Damaged => Self::Damaged,
        }
    }
}

impl From<SweepError> for FreeError {
    fn from(error: SweepError) -> Self {
        match error {
            SweepError::Lock(error) => Self::Lock(error),
            SweepError::HeapBusy(busy) => Self::HeapBusy(busy),
            SweepError::Damaged => Self::Damaged,
        }
    }
}

impl From<SweepError> for super::return_error::ReturnError {
    fn from(error: SweepError) -> Self {
        match error {
            SweepError::Lock(error) => Self::Lock(error),
            SweepError::HeapBusy(busy) => Self::HeapBusy(busy),
            SweepError::Damaged => Self::Damaged,
        }
    }
}
