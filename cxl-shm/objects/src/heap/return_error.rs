//! Why idle chunks were not given back.

use cxl_shm::lock::LockError;

/// Why idle chunks were not given back. Those that were are not missed: each is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReturnError {
    /// A lock between hosts was not acquired.
    #[error("cannot give idle chunks back: {0}")]
    Lock(#[from] LockError),
    /// Others of this host kept the heap for as long as was waited.
    #[error(transparent)]
    HeapBusy(#[from] super::error::HeapBusy),
    /// As [`super::error::ObjectError::Damaged`].
    #[error(
        "the lines that describe this node's heap change while its host lock is held: another \
         host writes them; make sure that no two hosts have the same node number"
    )]
    Damaged,
}
