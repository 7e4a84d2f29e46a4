//! Places in a host's process registry, and when a place passes on to another process.
//!
//! The layer above names processes by their places alone: in what they hold, in what they write, and
//! in the chunk that they give back. Some of these names have no room for more than a place.
//!
//! - **N1** A place passes on only when it is *free*. A process whose place the layer above may name
//!   ([`Member::name_place`]) leaves its place as *left*. A place that is left, or whose process died,
//!   stays so until the layer above has tidied up and frees it ([`Member::forget_process`]).
//! - **N2** The place of any other process is free at once when the process leaves. When it dies,
//!   any process of the host may free it, once [`Member::recover_locks`] says that nothing is open
//!   ([`Member::forget_unnamed`]). The host's agent does.
//! - **N3** Whoever frees a place replaces exactly the word that it found. The identity of a dead
//!   process never comes back, and the word of a place that was left has the place's generation: a
//!   place that has passed on in between is not freed.
//!
//! ```text
//! place    0: free    named 1 bit | 0 1 bit | identity of the process 62 bits
//!                     named 1 bit | left 1 bit | generation 62 bits
//! ```

use super::{Liveness, Member, ProcessIdentity, ProcessSlot};
use crate::fabric::{Fabric, HostMemory};
use crate::lock::HolderToken;

const NAMED: u64 = 1 << 63;
const LEFT: u64 = 1 << 62;
const _: () = assert!(ProcessIdentity::BITS & (NAMED | LEFT) == 0);

/// What the word of a place says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nobody's, and named by nothing.
    Free,
    /// A process has it, which may be dead.
    Taken { identity: ProcessIdentity, named: bool },
    /// Its process left, and the layer above may name it still.
    Left { generation: u64 },
}

impl Place {
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Taken { identity, named } => identity.word() | if named { NAMED } else { 0 },
            Self::Left { generation } => NAMED | LEFT | generation & ProcessIdentity::BITS,
        }
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let low = word & ProcessIdentity::BITS;
        if word & LEFT != 0 {
            return Self::Left { generation: low };
        }
        let taken = |identity| Self::Taken { identity, named: word & NAMED != 0 };
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
            Place::Taken { identity, .. } => !liveness.is_alive(identity),
            Place::Left { .. } => true,
        };
        is_gone.then_some(Self { slot, place })
    }

    /// Its place in the registry.
    #[must_use]
    pub fn slot(&self) -> ProcessSlot {
        self.slot
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Whether the layer above may name its place.
    fn is_named(&self) -> bool {
        !matches!(self.place, Place::Free | Place::Taken { named: false, .. })
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> Member<F, H, L> {
    /// Says that the layer above may name the place of this process from now on (N1). To be called
    /// before it does.
    pub fn name_place(&self) {
        self.seat.tier().name_place(self.process, self.identity);
    }

    /// Whether no other process has had the place that `token` names since.
    #[must_use]
    pub fn has_place(&self, token: HolderToken) -> bool {
        self.seat.tier().has_place(token)
    }

    /// Processes of this host that died without leaving, or left while the layer above could name
    /// their places. The layer above tidies up after them, then strikes them off with
    /// [`Self::forget_process`].
    #[must_use]
    pub fn gone_processes(&self) -> Vec<GoneProcess> {
        self.seat.tier().gone(&self.liveness).collect()
    }

    /// Strikes a process off the registry that is gone, and after which the layer above has tidied
    /// up: its place passes on. Does nothing when another process has struck it off (N3).
    pub fn forget_process(&self, gone: GoneProcess) {
        self.seat.tier().free_place(gone);
    }

    /// Strikes off the dead processes of this host whose places the layer above never names (N2),
    /// unless an update of this node is open. The host's agent does so now and then. Returns how
    /// many there were.
    pub fn forget_unnamed(&self) -> usize {
        let mut gone = self.gone_processes();
        gone.retain(|gone| !gone.is_named());
        // In this order: all of them were dead when the locks were recovered.
        if gone.is_empty() || !self.recover_locks() {
            return 0;
        }
        gone.into_iter().map(|gone| self.forget_process(gone)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::clock::SystemClock;
    use crate::fabric::simulated::{SimulatedHost, SimulatedHostMemory, SimulatedRack};
    use crate::layout::{Geometry, Superblock, format_superblock};
    use crate::member::{HostIdentity, HostTier, LeaveOutcome};

    /// Who died, by process id.
    #[derive(Clone, Default)]
    struct Died(Rc<RefCell<Vec<u32>>>);

    impl Liveness for Died {
        fn is_alive(&self, process: ProcessIdentity) -> bool {
            !self.0.borrow().contains(&process.pid())
        }
    }

    type Process = Member<SimulatedHost, SimulatedHostMemory, Died>;

    fn host() -> (Died, impl Fn(u32) -> Process) {
        let geometry = Geometry {
            region_bytes: 16 << 20,
            nodes: 1,
            locks: 8,
            chunk_bytes: 1 << 20,
            area_lines: 64,
            host_words: 0,
        };
        let rack = SimulatedRack::sticky(1, geometry.region_bytes);
        let superblock = Superblock::new([1, 2], geometry, [0; 6]);
        format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
        let died = Died::default();
        let lives = died.clone();
        let join = move |pid| {
            let memory = rack.host_memory(0, HostTier::words_of(&geometry));
            let (identity, me) = (HostIdentity::simulated(0), ProcessIdentity::new(pid, 1));
            let clock = SystemClock::start();
            Member::join(rack.host(0), memory, 0, &identity, me, lives.clone(), &clock).unwrap()
        };
        (died, join)
    }

    fn slots(member: &Process) -> Vec<u16> {
        member.gone_processes().iter().map(|gone| gone.slot().0).collect()
    }

    #[test]
    fn a_place_that_the_layer_above_names_passes_on_only_when_it_is_forgotten() {
        let (died, join) = host();
        let stays = join(1);
        for dies in [false, true] {
            let goes = join(2);
            let (slot, token) = (goes.process(), goes.token());
            assert_eq!(slot.0, 1);
            goes.name_place();
            if dies {
                died.0.borrow_mut().push(2);
                std::mem::forget(goes);
            } else {
                assert_eq!(goes.leave(), LeaveOutcome::OthersRemain);
            }
            assert!(!stays.is_process_alive(slot));
            let next = join(3);
            assert_ne!(next.process(), slot, "the layer above still names it; dies: {dies}");
            assert_eq!((slots(&stays), stays.forget_unnamed()), (vec![slot.0], 0));
            assert!(stays.has_place(token));
            for gone in stays.gone_processes() {
                stays.forget_process(gone);
            }
            assert!(slots(&stays).is_empty());
            let heir = join(4);
            assert_eq!(heir.process(), slot);
            assert!(!stays.has_place(token) && stays.has_place(heir.token()));
        }
    }

    #[test]
    fn a_place_that_nothing_names_passes_on_at_once() {
        let (died, join) = host();
        let stays = join(1);
        let leaves = join(2);
        let slot = leaves.process();
        assert_eq!(leaves.leave(), LeaveOutcome::OthersRemain);
        let dies = join(3);
        assert_eq!(dies.process(), slot);
        died.0.borrow_mut().push(3);
        std::mem::forget(dies);
        assert_eq!(slots(&stays), [slot.0]);
        assert_eq!(stays.forget_unnamed(), 1);
        assert_eq!(join(4).process(), slot);
    }

    #[test]
    fn who_is_late_does_not_free_a_place_that_has_passed_on() {
        let (_, join) = host();
        let stays = join(1);
        let leave = |pid| {
            let leaves = join(pid);
            leaves.name_place();
            assert_eq!(leaves.leave(), LeaveOutcome::OthersRemain);
            stays.gone_processes()[0]
        };
        let first = leave(2);
        stays.forget_process(first);
        // Somebody else had the same place, and left it with the names that the layer above has.
        let second = leave(2);
        stays.forget_process(first);
        assert_eq!(stays.gone_processes(), [second]);
    }

    #[test]
    fn places_survive_their_words() {
        let identity = ProcessIdentity::new(u32::MAX, u32::MAX);
        for place in [
            Place::Free,
            Place::Taken { identity, named: false },
            Place::Taken { identity, named: true },
            Place::Left { generation: 0 },
            Place::Left { generation: 7 },
        ] {
            assert_eq!(Place::from_word(place.word()), place);
        }
    }
}
