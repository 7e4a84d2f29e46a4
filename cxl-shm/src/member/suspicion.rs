//! Whose heart stands still, by this watcher's own clock. A hint, never a proof: a paused host
//! looks just like a dead one.

use super::slot::Slot;
use crate::fabric::{Fabric, refresh_all};
use crate::layout::Layout;
use crate::units::{Incarnation, NodeId};

/// Watches the hearts of others. No clock inside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suspicion {
    watched: Vec<Watched>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Watched {
    node: NodeId,
    incarnation: Incarnation,
    beat: u64,
    since_ms: u64,
}

impl Suspicion {
    /// Looks at the hearts of all `slots` that are lived in, and forgets those of others.
    /// To be called at least every few hundred milliseconds.
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
            let (node, incarnation) = (slot.node, slot.incarnation);
            let beat = layout.heartbeat(node).cached(fabric);
            let now = Watched { node, incarnation, beat, since_ms: now_ms };
            let same = |old: &&Watched| Watched { since_ms: now_ms, ..**old } == now;
            self.watched.iter().find(same).copied().unwrap_or(now)
        };
        self.watched = inhabited().map(watch).collect();
    }

    /// Whether the heart of `node` has stood still for `ms`.
    pub(crate) fn stands_still(&self, node: NodeId, now_ms: u64, ms: u64) -> bool {
        self.watched
            .iter()
            .any(|watched| watched.node == node && now_ms.saturating_sub(watched.since_ms) >= ms)
    }
}
