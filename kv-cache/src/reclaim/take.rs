//! Becoming the reclaimer of an orphan, and ceasing to be.

use cxl_shm::clock::Clock;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::NodeId;

use crate::process::Cache;

impl<B: Backend> Cache<'_, B> {
    /// Makes this host the reclaimer of `orphan` (ORPHAN-W1). False, and nothing is changed, when
    /// it may not be: the orphan has come back, another host looks after it, or this one after
    /// another.
    pub(crate) fn take_orphan(&self, clock: &impl Clock, orphan: NodeId) -> bool {
        let member = self.member();
        let _guard = member.lock_orphan(clock);
        member.end_reclaim();
        if member.reclaimer_word().own(member.fabric()) != 0 {
            return false;
        }
        let ours = member.take_orphan(orphan);
        if !ours {
            member.reclaimer_word().publish(member.fabric(), 0);
        }
        ours
    }

    /// Ceases to be a reclaimer.
    pub(crate) fn leave_orphan(&self, clock: &impl Clock) {
        let _guard = self.member().lock_orphan(clock);
        self.member().reclaimer_word().publish(self.member().fabric(), 0);
    }
}

/// Ends what a process of this host left that was a reclaimer, and is gone (ORPHAN-W4). Takes no
/// lock while there is nothing to end, and not that of the heap: all that the orphan published may
/// have to be written back.
pub(crate) fn end_reclaim<B: Backend>(member: &Member<B>, clock: &impl Clock) {
    if member.reclaimer_word().own(member.fabric()) != 0 {
        let _guard = member.lock_orphan(clock);
        member.end_reclaim();
    }
}
