//! The places of this host's registry, as a member sees them (rules HOST-N1 to HOST-N4 in
//! `host/places.rs`).

use super::backend::Backend;
use super::member::Member;
use crate::host::{GoneProcess, HolderToken};

impl<B: Backend> Member<B> {
    /// Says that the layer above may name the place of this process from now on (HOST-N1). To be
    /// called before it does.
    pub fn name_place(&self) {
        self.handle.tier().name_place(self.process, self.identity);
    }

    /// Whether no other process has had the place that `token` names since.
    #[must_use]
    pub fn has_place(&self, token: HolderToken) -> bool {
        self.handle.tier().has_place(token)
    }

    /// Processes of this host that died without leaving, or left while the layer above could name
    /// their places. The layer above tidies up after them, then strikes them off with
    /// [`Self::forget_process`].
    #[must_use]
    pub fn gone_processes(&self) -> Vec<GoneProcess> {
        self.handle.tier().gone(&self.liveness).collect()
    }

    /// Strikes a process off the registry that is gone, and after which the layer above has tidied
    /// up: its place passes on. Does nothing, and returns false, when another process has struck it
    /// off (HOST-N3).
    pub fn forget_process(&self, gone: GoneProcess) -> bool {
        self.handle.tier().free_place(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::host::{HostLockName, ProcessIdentity};
    use crate::layout::{Geometry, LockProtocol};
    use crate::lifecycle::LeaveOutcome;
    use crate::verify::SimulatedBackend;
    use crate::verify::fixture::{Died, SMALL, SmallRegion};

    type Process = Member<SimulatedBackend<Died>>;

    fn host() -> (Died, impl Fn(u32) -> Process) {
        let region = SmallRegion::new(Geometry { nodes: 1, ..SMALL }, LockProtocol::Arbitrated);
        let died = Died::default();
        let lives = died.clone();
        let clock = SystemClock::start();
        let join = move |pid| region.join(0, pid, lives.clone(), &clock);
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
                died.add(2);
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
    fn the_lock_of_a_dead_process_is_free_while_another_process_takes_its_place() {
        let (died, join) = host();
        let (stays, dies) = (join(1), join(2));
        let (slot, token) = (dies.process(), dies.token());
        std::mem::forget(dies.try_lock_host(HostLockName::Drives).expect("nobody has it"));
        died.add(2);
        std::mem::forget(dies);
        assert_eq!(stays.forget_unnamed(), 1);
        // A third process, as far as it gets before it has a token.
        let enters = ProcessIdentity::new(3, 1);
        stays.handle.tier().enter(slot, enters).expect("the place is free");
        assert!(stays.has_place(token) && !stays.is_process_alive(slot), "HOST-N4");
        let lock = stays.try_lock_host(HostLockName::Drives).expect("a dead process has it");
        assert!(lock.recovered());
        // It may die there.
        assert!(slots(&stays).is_empty());
        died.add(3);
        assert_eq!((slots(&stays), stays.forget_unnamed()), (vec![slot.0], 1));
        assert_eq!(join(4).process(), slot);
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
        died.add(3);
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
}
