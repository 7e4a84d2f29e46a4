//! Places in a host's process registry, and when a place passes on to another process.
//!
//! The layer above names processes by their places alone: in what they hold, in what they write,
//! and in the chunk that they give back. Some of these names have no room for more than a place.
//!
//! - **HOST-N1** A place passes on only when it is *free*. A process whose place the layer above
//!   may name ([`Member::name_place`]) leaves its place as *left*. A place that is left, or whose
//!   process died, stays so until the layer above has tidied up and frees it
//!   ([`Member::forget_process`]).
//! - **HOST-N2** The place of any other process is free at once when the process leaves. When it
//!   dies, any process of the host may free it, once [`Member::recover_locks`] says that nothing is
//!   open ([`Member::forget_unnamed`]). The host's agent does.
//! - **HOST-N3** A process that frees a place replaces exactly the word that it found. The identity
//!   of a dead process never comes back, and the word of a place that was left has the place's
//!   generation: a place that has passed on in between is not freed.
//!
//! - **HOST-N4** A process that takes a place is *entering* until the place's generation is its own. A
//!   token of the process before names nobody in that time, though the place has a living process.
//!
//! ```text
//! place    0: free    named 1 bit | 0 1 bit | entering 1 bit | identity of the process 61 bits
//!                     named 1 bit | left 1 bit | 0 1 bit | generation 61 bits
//! ```

use super::process::{Liveness, ProcessIdentity, ProcessSlot};

const NAMED: u64 = 1 << 63;
const LEFT: u64 = 1 << 62;
const ENTERING: u64 = 1 << 61;
const _: () = assert!(ProcessIdentity::BITS & (NAMED | LEFT | ENTERING) == 0);

/// What the word of a place says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nobody's, and named by nothing.
    Free,
    /// A process takes it, and has no token yet (HOST-N4). It may be dead.
    Entering { identity: ProcessIdentity },
    /// A process has it, which may be dead.
    Taken { identity: ProcessIdentity, named: bool },
    /// Its process left, and the layer above may name it still.
    Left { generation: u64 },
}

impl Place {
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Entering { identity } => ENTERING | identity.word(),
            Self::Taken { identity, named } => identity.word() | if named { NAMED } else { 0 },
            Self::Left { generation } => NAMED | LEFT | generation & ProcessIdentity::BITS,
        }
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let low = word & ProcessIdentity::BITS;
        if word & LEFT != 0 {
            return Self::Left { generation: low };
        }
        let taken = |identity| match word & ENTERING {
            0 => Self::Taken { identity, named: word & NAMED != 0 },
            _ => Self::Entering { identity },
        };
        ProcessIdentity::from_word(low).map_or(Self::Free, taken)
    }
}

/// A process of a host that died, or that left a place which the layer above may still name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GoneProcess {
    slot: ProcessSlot,
    place: Place,
}

impl GoneProcess {
    /// The process that had `slot`, if it is gone.
    pub(super) fn of(slot: ProcessSlot, place: Place, liveness: &impl Liveness) -> Option<Self> {
        let is_gone = match place {
            Place::Free => false,
            Place::Entering { identity } | Place::Taken { identity, .. } => {
                !liveness.is_alive(identity)
            }
            Place::Left { .. } => true,
        };
        is_gone.then_some(Self { slot, place })
    }

    /// Its place in the registry.
    #[must_use]
    pub fn slot(&self) -> ProcessSlot {
        self.slot
    }

    /// The process, if it died and the layer above may name this place. `None` when it left in order.
    #[must_use]
    pub fn died(&self) -> Option<ProcessIdentity> {
        match self.place {
            Place::Taken { identity, named: true } => Some(identity),
            _ => None,
        }
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Whether the layer above may name its place.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self.place, Place::Taken { named: true, .. } | Place::Left { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_their_words() {
        let identity = ProcessIdentity::new(u32::MAX, u32::MAX);
        for place in [
            Place::Free,
            Place::Entering { identity },
            Place::Taken { identity, named: false },
            Place::Taken { identity, named: true },
            Place::Left { generation: 0 },
            Place::Left { generation: 7 },
        ] {
            assert_eq!(Place::from_word(place.word()), place);
        }
    }
}
