//! Members of a model: they joined on a rack, and continue in memory that is explored.

use super::backend::Backend;
use super::handle::NodeHandle;
use super::member::Member;
use crate::host::HostTier;
use crate::layout::NodeState;

impl<B: Backend> Member<B> {
    /// Says that this member's node is in `state`, and does nothing else that goes with it.
    ///
    /// # Panics
    /// When the line of the node cannot be read.
    pub fn say(&self, state: NodeState) {
        let line = self.handle.node_line();
        let said = line.own(&self.fabric).expect("the node has joined");
        line.publish(&self.fabric, &said.with_state(state));
    }

    /// This member on other memory, which is to hold what this one's does, with other means to tell
    /// who lives. Nothing is read or written; dropped, it leaves the host's registry alone.
    pub fn carried_to<C: Backend>(
        &self,
        fabric: C::Fabric,
        memory: C::HostMemory,
        liveness: C::Liveness,
    ) -> Member<C> {
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
