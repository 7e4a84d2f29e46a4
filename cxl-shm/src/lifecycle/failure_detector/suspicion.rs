//! Whose heartbeat has stopped, by this watcher's own clock (BEAT-G0). A hint, never a proof: a
//! paused host looks just like a dead one.

use crate::fabric::{Fabric, refresh_all};
use crate::layout::Layout;
use crate::node::Slot;
use crate::node::Stillness;
use crate::units::{Incarnation, NodeId};

/// Watches the heartbeats of others. No clock inside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suspicion {
    watched: Vec<(NodeId, Stillness<(Incarnation, u64)>)>,
}

impl Suspicion {
    /// Looks at the heartbeats of all `slots` that are lived in, and forgets those of others.
    /// To be called at least every few hundred milliseconds: a longer gap starts every watch anew.
    pub(crate) fn look<F: Fabric>(
        &mut self,
        layout: &Layout,
        fabric: &F,
        slots: &[Slot],
        now_ms: u64,
    ) {
        let inhabited = || slots.iter().filter(|slot| !slot.vacant);
        refresh_all(fabric, inhabited().map(|slot| layout.heartbeat(slot.node).range()));
        let watch = |slot: &Slot| {
            let known = self.watched.iter().find(|(node, _)| *node == slot.node);
            let mut watch = known.map(|(_, watch)| *watch).unwrap_or_default();
            watch.look((slot.incarnation, layout.heartbeat(slot.node).cached(fabric)), now_ms);
            (slot.node, watch)
        };
        self.watched = inhabited().map(watch).collect();
    }

    /// Whether the heartbeat of `node` had stood still for `ms` at the last look.
    pub(crate) fn stands_still(&self, node: NodeId, ms: u64) -> bool {
        self.watched.iter().any(|(watched, watch)| *watched == node && watch.still_ms() >= ms)
    }
}
