//! Leaving a node slot.

use super::write_back::flush_own;
use crate::crash::{self, CrashPoint};
use crate::fabric::Fabric;
use crate::host::Liveness;
use crate::layout::NodeState;
use crate::node::{Backend, Member};

/// What leaving meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaveOutcome {
    /// Other processes of the host are still members.
    OthersRemain,
    /// It was the host's last process: the node has left, the host tier can be removed.
    NodeLeft,
}

impl<B: Backend> Member<B> {
    /// Leaves. The last process of a host leaves the node slot too: after return every host sees
    /// that the node has left. The caller keeps other processes of the host from joining or
    /// leaving meanwhile.
    ///
    /// Does nothing in a child made by `fork`: the member is its parent's.
    pub fn leave(mut self) -> LeaveOutcome {
        // FAULT-F4: cut off, it left when its memory failed, and sees nobody of its host.
        if self.is_forked() || self.fabric.is_cut_off() {
            return LeaveOutcome::OthersRemain;
        }
        self.unregister();
        crash::reach(CrashPoint::ProcessUnregistered);
        let others =
            self.handle.tier().processes().any(|(_, identity)| self.liveness.is_alive(identity));
        if others {
            return LeaveOutcome::OthersRemain;
        }
        let ends_in_order = self.end_life();
        self.handle.tier().set_member(false);
        crash::reach(CrashPoint::LeaveTierClosed);
        if ends_in_order
            && self.has_slot()
            && let Ok(line) = self.handle.node_line().own(&self.fabric)
            && line.incarnation() == self.incarnation
        {
            self.handle.node_line().publish(&self.fabric, &line.with_state(NodeState::Left));
        }
        crash::reach(CrashPoint::LeaveSaid);
        LeaveOutcome::NodeLeft
    }

    /// What the last process of a host ends before it says that the node has left. False when the
    /// slot or the region was lost (BEAT-G4): then nothing more is written. It looks before each of
    /// the steps that may take long.
    fn end_life(&self) -> bool {
        if !self.has_slot() {
            return false;
        }
        // Whatever dead processes of this host left of the region's locks ends here.
        crate::lock::recover_all(&self.handle, &self.fabric, || self.tick_in_slot());
        if !self.has_slot() {
            return false;
        }
        // The agent's thread has ended, or there was none: the heartbeat continues from here. What
        // a lock manager of this host was at when it died passes on now (DEATH-R4).
        crate::lifecycle::recovery::resign(self);
        flush_own(self.layout(), &self.fabric, self.node(), || {
            self.tick_in_slot();
        });
        if !self.has_slot() {
            return false;
        }
        // ORPHAN-W3.
        super::orphans::end_reclaim(&self.handle, &self.fabric);
        true
    }
}
