//! Objects, names for them, and a table of locks, on the memory that [`cxl_shm`] shares between
//! hosts: for programs that use that memory without the cache.
//!
//! - [`heap`]: each node has a heap of objects in chunks of its own (rules OBJECT-O1 to OBJECT-O6).
//!   [`Objects`] is what a [`Member`](cxl_shm::node::Member) does with it.
//! - [`root`]: names that all hosts know, for objects from which everything else is found (rules
//!   OBJECT-N1 to OBJECT-N5): [`NamedRoots`].
//! - [`LockTable`]: locks given out to programs that do not number them themselves.
//! - [`ObjectChunks`]: what a process that uses objects is attached with, so that it attends to
//!   other hosts ([`Attachment::attach_with`](cxl_shm::lifecycle::Attachment::attach_with)).
//!
//! The format of a region keeps their parts reserved. After a death `cxl-shm` does what has to be
//! done by the purpose of a chunk alone: the chunks of a dead node's heap pass to its recoverer,
//! which may be a host that never used objects. The next program with objects there sweeps them
//! (OBJECT-O1).

mod attendance;
mod give_back;
pub mod heap;
mod lock_table;
mod objects;
pub mod root;

pub use attendance::ObjectChunks;
pub use heap::{
    FreeError, HeapBusy, HeapUsage, Object, ObjectError, PeerObject, ReturnError, SharedOffset,
    SweepError, SweepReport, TakeOverError,
};
pub use lock_table::{AllocateLockError, FreeLockError, LockTable};
pub use objects::Objects;
pub use root::{DestroyRootError, GetRootError, NamedRoots, PutRootError, Root, RootKind};
