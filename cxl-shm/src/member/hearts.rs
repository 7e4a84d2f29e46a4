//! Which nodes live, as far as one can see: their hearts watched on our own clock.

use super::SUSPECT_MS;
use crate::clock::Clock;
use crate::fabric::{Fabric, LineError, refresh_all};
use crate::layout::{Layout, NodeState};
use crate::units::{Incarnation, NodeId};

/// A node slot that was ever joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeHeart {
    /// The node.
    pub node: NodeId,
    /// What it says of itself; `None` when its line cannot be read.
    pub state: Option<NodeState>,
    /// How many times the slot was joined.
    pub incarnation: Incarnation,
    /// The host's name.
    pub host: String,
    /// Whether its heart was seen to beat. A suspicion when not, never a proof of death.
    pub beats: bool,
}

/// Watches the hearts of all nodes that say they take part, until each has beaten or
/// [`SUSPECT_MS`] have passed. Writes nothing, and needs no membership.
pub fn watch_hearts<F: Fabric>(layout: &Layout, fabric: &F, clock: &impl Clock) -> Vec<NodeHeart> {
    refresh_all(fabric, layout.nodes().map(|node| layout.node_line(node).range()));
    let mut watched: Vec<(NodeHeart, u64)> = layout
        .nodes()
        .filter_map(|node| {
            let line = match layout.node_line(node).cached(fabric) {
                Err(LineError::Blank { .. }) => return None,
                line => line.ok(),
            };
            let host = layout.host_name(node).fresh(fabric);
            let heart = NodeHeart {
                node,
                state: line.and_then(|line| line.state()),
                incarnation: line.map_or(Incarnation(0), |line| line.incarnation()),
                host: host.map_or_else(|_| "unknown".to_owned(), |name| name.to_string()),
                beats: false,
            };
            Some((heart, layout.heartbeat(node).fresh(fabric)))
        })
        .collect();
    let until_ms = clock.now_ms().saturating_add(SUSPECT_MS);
    let mut tries = 0;
    loop {
        let mut all = true;
        for (heart, first) in &mut watched {
            if !heart.state.is_some_and(NodeState::is_vacant) && !heart.beats {
                heart.beats = layout.heartbeat(heart.node).fresh(fabric) != *first;
                all &= heart.beats;
            }
        }
        if all || clock.now_ms() >= until_ms {
            return watched.into_iter().map(|(heart, _)| heart).collect();
        }
        clock.pause(tries);
        tries += 1;
    }
}
