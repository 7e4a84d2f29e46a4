//! Becoming the guardian of a ward, and ceasing to be.

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::Liveness;
use cxl_shm::units::NodeId;

use super::{Guardian, guardian_of, is_dead};
use crate::cache::Cache;
use crate::heap::LockedHeap;

impl<F: Fabric, H: HostMemory, L: Liveness> Cache<'_, F, H, L> {
    /// Makes this host the guardian of `ward` (W1). False, and nothing is changed, when it may not
    /// be: the ward has come back, another host looks after it, or this one after another.
    pub(crate) fn take_ward(&self, clock: &impl Clock, ward: NodeId) -> bool {
        if !self.locked(clock, |heap| heap.name_ward(ward)) {
            return false;
        }
        let (member, areas) = (self.member(), self.areas());
        let ours = is_dead(member, areas, ward) && guardian_of(member, areas, ward).is_none();
        if !ours {
            self.leave_ward(clock);
        }
        ours
    }

    /// Ceases to be a guardian.
    pub(crate) fn leave_ward(&self, clock: &impl Clock) {
        self.locked(clock, |heap| heap.guardian.publish(heap.fabric(), 0));
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    fn name_ward(&mut self, ward: NodeId) -> bool {
        self.settle_ward();
        if self.guardian.own(self.fabric()) != 0 {
            return false;
        }
        let (process, incarnation) = (self.member.process(), self.member.incarnation());
        let word = Guardian { ward, process, incarnation }.word();
        self.guardian.publish(self.fabric(), word);
        crash::reach(CrashPoint::WardTaken);
        true
    }

    /// Ends what a process left that died while its host was a guardian by it, or this one when it
    /// panicked, or an earlier life of the node (W4).
    pub(crate) fn settle_ward(&self) {
        let Some(guardian) = Guardian::from_word(self.guardian.own(self.fabric())) else { return };
        let lives = guardian.incarnation == self.member.incarnation()
            && guardian.process != self.member.process()
            && self.member.is_process_alive(guardian.process);
        if lives {
            return;
        }
        if let Some(ward) = self.areas.layout().node(guardian.ward.0) {
            // M8: what it stored has arrived before anybody else writes there.
            self.fabric().publish(self.areas.published(ward));
        }
        self.guardian.publish(self.fabric(), 0);
    }
}
