//! Members of a model: they joined on a rack, and continue in memory that is explored.

use super::handle::NodeHandle;
use super::member::Member;
use crate::fabric::{Fabric, HostMemory};
use crate::host::{HostTier, Liveness};
use crate::layout::NodeState;

impl<F: Fabric, H: HostMemory, L> Member<F, H, L> {
    /// Says that this member's node is in `state`, and does nothing else that goes with it.
    ///
    /// # Panics
    /// When the line of the node cannot be read.
    pub fn say(&self, state: NodeState) {
        let line = self.handle.node_line();
        let said = line.own(&self.fabric).expect("the node has joined");
        line.publish(&self.fabric, &said.with_state(state));
    }
}

impl<F, H: HostMemory, L> Member<F, H, L> {
    /// This member on other memory, which is to hold what this one's does, with other means to tell
    /// who lives. Nothing is read or written; dropped, it leaves the host's registry alone.
    pub fn carried_to<G, M: HostMemory, K: Liveness>(
        &self,
        fabric: G,
        memory: M,
        liveness: K,
    ) -> Member<G, M, K> {
        let layout = *self.handle.layout();
        let tier = HostTier::new(memory, layout.locks());
        Member {
            fabric,
            superblock: self.superblock,
            handle: NodeHandle::new(layout, self.handle.lock_protocol(), self.handle.node(), tier),
            incarnation: self.incarnation,
            process: self.process,
            identity: self.identity,
            token: self.token,
            liveness,
            agent: Default::default(),
            office: Default::default(),
            registered: None,
        }
    }
}
