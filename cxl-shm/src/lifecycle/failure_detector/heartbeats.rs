//! Which nodes live, as far as one can see: their heartbeats watched on our own clock.

use crate::clock::Clock;
use crate::fabric::Fabric;
use crate::layout::{Layout, NodeState};
use crate::node::SUSPECT_MS;
use crate::node::Slot;
use crate::node::Stillness;
use crate::units::{Incarnation, NodeId};

/// A node slot that was ever joined, or that a host has come for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeHeartbeat {
    /// The node.
    pub node: NodeId,
    /// What it says of itself; `None` when its line cannot be read, or says nothing of its present
    /// life yet.
    pub state: Option<NodeState>,
    /// How many times the slot was joined.
    pub incarnation: Incarnation,
    /// The host's name.
    pub host: String,
    /// A host came for the slot, and is not admitted yet, or has died before. Its heartbeat does
    /// not advance yet.
    pub in_admission: bool,
    /// Whether its heartbeat was seen to advance. A suspicion when not, never a proof of death.
    pub beats: bool,
}

/// Watches the heartbeats of all nodes that take part, until each has beaten or was watched for
/// [`SUSPECT_MS`] without a gap (BEAT-G0). Writes nothing, and needs no membership.
pub fn watch_heartbeats<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    clock: &impl Clock,
) -> Vec<NodeHeartbeat> {
    let slots = Slot::all(layout, fabric);
    let heartbeat = |slot: &Slot| {
        // A host in admission has not published its name: the line has the name of the host before
        // it.
        let host = layout.host_name(slot.node).fresh(fabric).ok().filter(|_| !slot.in_admission);
        NodeHeartbeat {
            node: slot.node,
            state: slot.line.and_then(|line| line.state()),
            incarnation: slot.incarnation,
            host: host.map_or_else(|| "unknown".to_owned(), |name| name.to_string()),
            in_admission: slot.in_admission,
            beats: false,
        }
    };
    let mut watched: Vec<_> = slots
        .iter()
        .map(|slot| (heartbeat(slot), layout.heartbeat(slot.node).fresh(fabric)))
        .collect();
    let (mut watching, mut tries) = (Stillness::default(), 0);
    loop {
        let mut all = true;
        for (heartbeat, first) in &mut watched {
            if !heartbeat.state.is_some_and(NodeState::is_vacant) && !heartbeat.beats {
                heartbeat.beats = layout.heartbeat(heartbeat.node).fresh(fabric) != *first;
                all &= heartbeat.beats;
            }
        }
        if all || watching.look((), clock.now_ms()) >= SUSPECT_MS {
            return watched.into_iter().map(|(heartbeat, _)| heartbeat).collect();
        }
        clock.pause(tries);
        tries += 1;
    }
}
