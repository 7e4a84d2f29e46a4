//! Becoming the guardian of a ward, and ceasing to be.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::{Liveness, Member};
use cxl_shm::units::NodeId;

use crate::cache::Cache;

impl<F: Fabric, H: HostMemory, L: Liveness> Cache<'_, F, H, L> {
    /// Makes this host the guardian of `ward` (W1). False, and nothing is changed, when it may not
    /// be: the ward has come back, another host looks after it, or this one after another.
    pub(crate) fn take_ward(&self, clock: &impl Clock, ward: NodeId) -> bool {
        let member = self.member();
        let _guard = member.lock_ward(clock);
        member.settle_ward();
        if member.guardian_word().own(member.fabric()) != 0 {
            return false;
        }
        let ours = member.take_ward(ward);
        if !ours {
            member.guardian_word().publish(member.fabric(), 0);
        }
        ours
    }

    /// Ceases to be a guardian.
    pub(crate) fn leave_ward(&self, clock: &impl Clock) {
        let _guard = self.member().lock_ward(clock);
        self.member().guardian_word().publish(self.member().fabric(), 0);
    }
}

/// Ends what a process of this host left that was a guardian, and is gone (W4). Takes no lock while
/// there is nothing to end, and not that of the heap: all that the ward published may have to be
/// written back.
pub(crate) fn settle_ward<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
) {
    if member.guardian_word().own(member.fabric()) != 0 {
        let _guard = member.lock_ward(clock);
        member.settle_ward();
    }
}
