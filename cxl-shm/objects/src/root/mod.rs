//! Named roots: a few names, known to all hosts, for objects from which everything else is found.
//!
//! - **OBJECT-N1** The table is written under lock 0 with an intent: a root is there whole, or not
//!   at all.
//! - **OBJECT-N2** Readers take no lock. The lines of a root are sealed and carry the sequence
//!   number of their root; lines that do not belong together are read again.
//! - **OBJECT-N3** A root is put by the host whose heap the object is in, which knows that it is
//!   allocated. An object has at most one root. While it has, it cannot be freed.
//! - **OBJECT-N4** Destroying a root frees its object, whichever host destroys it: the entry
//!   becomes `Retired`, and free after the object's owner has freed the object, once. The caller
//!   has made sure that nobody uses the object (OBJECT-O4 of [`crate::heap`]).
//! - **OBJECT-N5** What roots reach survives the death of any host, see OBJECT-O1 and OBJECT-O2
//!   there.

mod error;
mod read;
pub(crate) mod table;
mod write;

#[cfg(test)]
mod collect_tests;
#[cfg(test)]
mod tests;

pub use error::{DestroyRootError, GetRootError, PutRootError};
pub use table::RootKind;
pub(crate) use write::{collect, is_to_collect, try_collect};

use super::heap::{PeerObject, SharedOffset};
use cxl_shm::clock::Clock;
use cxl_shm::layout::ROOT_NAME_BYTES_MAX;
use cxl_shm::node::{Backend, Member};

/// A named root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// Its name.
    pub name: String,
    /// What it names.
    pub object: PeerObject,
    /// What that is to a sweep; `None` for a kind that this version does not know.
    pub kind: Option<RootKind>,
}

/// What a member does with named roots.
pub trait NamedRoots {
    /// Names an object of this node's heap. After return every host finds it.
    ///
    /// # Errors
    /// [`PutRootError`]; nothing is changed then.
    fn put_root(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        name: &str,
        offset: SharedOffset,
        kind: RootKind,
    ) -> Result<(), PutRootError>;

    /// Lets a root name another object of this node's heap, in one step: every reader finds the
    /// old one or the new one. The old one, which must be of this node's heap too, is the caller's
    /// to free.
    ///
    /// # Errors
    /// [`PutRootError`]; nothing is changed then.
    fn replace_root(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        name: &str,
        offset: SharedOffset,
        kind: RootKind,
    ) -> Result<PeerObject, PutRootError>;

    /// The root of that name, or that there is none. Takes no lock and waits for nobody.
    ///
    /// # Errors
    /// [`GetRootError`].
    fn root(&self, name: &str) -> Result<Option<Root>, GetRootError>;

    /// All roots that can be read, in no order. Takes no lock.
    #[must_use]
    fn roots(&self) -> Vec<Root>;

    /// Destroys a root and frees its object, at once when it is of this node's heap, else as soon
    /// as the owner looks. The caller has made sure that nobody uses the object.
    ///
    /// # Errors
    /// [`DestroyRootError`].
    fn destroy_root(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        name: &str,
    ) -> Result<(), DestroyRootError>;
}

impl<B: Backend> NamedRoots for Member<B> {
    fn put_root(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        name: &str,
        offset: SharedOffset,
        kind: RootKind,
    ) -> Result<(), PutRootError> {
        write::put(self, clock, timeout_ms, name, offset, kind)
    }

    fn replace_root(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        name: &str,
        offset: SharedOffset,
        kind: RootKind,
    ) -> Result<PeerObject, PutRootError> {
        write::replace(self, clock, timeout_ms, name, offset, kind)
    }

    fn root(&self, name: &str) -> Result<Option<Root>, GetRootError> {
        read::get(self, name)
    }

    fn roots(&self) -> Vec<Root> {
        read::list(self)
    }

    fn destroy_root(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        name: &str,
    ) -> Result<(), DestroyRootError> {
        write::destroy(self, clock, timeout_ms, name)
    }
}

/// Whether a root can have that name.
fn is_name(name: &str) -> bool {
    (1..=ROOT_NAME_BYTES_MAX).contains(&name.len())
}
