//! Named roots: a few names, known to all hosts, for objects from which everything else is found.
//!
//! - **N1** The table is written under lock 0 with an intent: a root is there whole, or not at all.
//! - **N2** Readers take no lock. The lines of a root are sealed and carry the sequence number of
//!   their root; lines that do not belong together are read again.
//! - **N3** A root is put by the host whose heap the object is in, which knows that it is
//!   allocated. An object has at most one root. While it has, it cannot be freed.
//! - **N4** Destroying a root frees its object, whichever host destroys it: the entry becomes
//!   `Retired`, and free after the object's owner has freed the object, once. The caller has made
//!   sure that nobody uses the object (O4 of [`crate::alloc::heap`]).
//! - **N5** What roots reach survives the death of any host, see O1 and O2 there.

mod error;
mod read;
pub(crate) mod table;
mod write;

#[cfg(test)]
mod tests;

pub use error::{DestroyRootError, GetRootError, PutRootError};
pub(crate) use write::{collect, retired_by_others, try_collect};

use crate::alloc::{PeerObject, SharedOffset};
use crate::clock::Clock;
use crate::fabric::{Fabric, HostMemory};
use crate::layout::ROOT_NAME_BYTES_MAX;
use crate::member::{Liveness, Member};

/// What a root's object is to a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RootKind {
    /// It refers to no other object.
    Leaf,
    /// Its words may be offsets of other objects, and theirs of more: all of them are kept.
    Linked,
}

impl RootKind {
    fn code(self) -> u32 {
        match self {
            Self::Leaf => 1,
            Self::Linked => 2,
        }
    }

    /// The kind in a record; `None` for one that this version does not know.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Leaf),
            2 => Some(Self::Linked),
            _ => None,
        }
    }
}

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

impl<F: Fabric, H: HostMemory, L: Liveness> Member<F, H, L> {
    /// Names an object of this node's heap. After return every host finds it.
    ///
    /// # Errors
    /// [`PutRootError`]; nothing is changed then.
    pub fn put_root(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        name: &str,
        offset: SharedOffset,
        kind: RootKind,
    ) -> Result<(), PutRootError> {
        write::put(self, clock, timeout_ms, name, offset, kind)
    }

    /// Lets a root name another object of this node's heap, in one step: every reader finds the
    /// old one or the new one. The old one, which must be of this node's heap too, is the caller's
    /// to free.
    ///
    /// # Errors
    /// [`PutRootError`]; nothing is changed then.
    pub fn replace_root(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        name: &str,
        offset: SharedOffset,
        kind: RootKind,
    ) -> Result<PeerObject, PutRootError> {
        write::replace(self, clock, timeout_ms, name, offset, kind)
    }

    /// The root of that name, or that there is none. Takes no lock and waits for nobody.
    ///
    /// # Errors
    /// [`GetRootError`].
    pub fn root(&self, name: &str) -> Result<Option<Root>, GetRootError> {
        read::get(self, name)
    }

    /// All roots that can be read, in no order. Takes no lock.
    #[must_use]
    pub fn roots(&self) -> Vec<Root> {
        read::list(self)
    }

    /// Destroys a root and frees its object, at once when it is of this node's heap, else as soon
    /// as the owner looks. The caller has made sure that nobody uses the object.
    ///
    /// # Errors
    /// [`DestroyRootError`].
    pub fn destroy_root(
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
