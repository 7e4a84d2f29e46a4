//! A small formatted region with its nodes joined: where the models of locks start.

use crate::fabric::LineWords;
use crate::host::HostTier;
use crate::layout::{CHUNK_BYTES_MIN, Geometry, Layout, LockProtocol, NodeLine, NodeState};
use crate::lock::arbitrated::obey_newest_term;
use crate::node::NodeHandle;
use crate::units::{Incarnation, LINE_WORDS, LineOffset, LineRange, NodeId, WordOffset};
use crate::verify::explored::{Constant, ExploredHostMemory, Model, Task};
use crate::verify::simulated::{SimulatedHost, SimulatedRack};
use crate::verify::{ExploredBackend, SimulatedBackend};

pub(super) const UUID: [u64; 2] = [7, 9];
const INCARNATION: Incarnation = Incarnation(1);

/// A region on a simulated rack, to be carried over into a model.
#[derive(Debug)]
pub(super) struct Ground {
    rack: SimulatedRack,
    layout: Layout,
    protocol: LockProtocol,
    words: usize,
}

/// A node's handle in a model: it acts on the host on which the present step runs.
pub(super) type ExploredHandle = Constant<NodeHandle<ExploredBackend>>;

impl Ground {
    /// A region for `nodes` nodes that have joined it. It has only the locks that the model uses:
    /// all loops over locks run over these, as they run over thousands in a real region.
    pub(super) fn joined(nodes: u16, locks: u32, protocol: LockProtocol) -> Self {
        let geometry = Geometry {
            region_bytes: 8 << 20,
            nodes,
            locks,
            chunk_bytes: CHUNK_BYTES_MIN,
            area_lines: 1,
            host_words: 0,
        };
        let layout = Layout::with_counts_unchecked(geometry).expect("8 MiB hold a few nodes");
        let words = HostTier::words_of(&geometry);
        let rack = SimulatedRack::sticky(usize::from(nodes), geometry.region_bytes);
        let ground = Self { rack, layout, protocol, words };
        for node in layout.nodes() {
            let (handle, fabric) = (ground.simulated_handle(node), ground.fabric(node));
            handle.tier().reset(UUID, node, INCARNATION, 1);
            let id = [u64::from(node.0) + 1, 0];
            let line = NodeLine::new(NodeState::Joined, INCARNATION, id, id);
            handle.node_line().publish(&fabric, &line);
            handle.tier().set_member(true);
        }
        ground
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn fabric(&self, node: NodeId) -> SimulatedHost {
        self.rack.host(node.index())
    }

    /// A node's handle on the rack, for what happens before the model starts.
    pub(super) fn simulated_handle(&self, node: NodeId) -> NodeHandle<SimulatedBackend> {
        let memory = self.rack.host_memory(node.index(), self.words);
        let tier = HostTier::new(memory, self.layout.locks());
        NodeHandle::new(self.layout, self.protocol, node, tier)
    }

    /// A node's handle in the model.
    pub(super) fn node_handle(&self, node: NodeId) -> ExploredHandle {
        let memory = ExploredHostMemory::with_words(self.words);
        let tier = HostTier::new(memory, self.layout.locks());
        Constant::new(NodeHandle::new(self.layout, self.protocol, node, tier))
    }

    /// Every host follows the newest manager.
    pub(super) fn obey(&self) {
        for node in self.layout.nodes() {
            obey_newest_term(&self.simulated_handle(node), &self.fabric(node));
        }
    }

    /// A line of payload: what the locks of the models guard.
    pub(super) fn payload(&self, index: u64) -> LineOffset {
        let at = self.layout.payload().offset() + index * 64;
        LineOffset::new(at).expect("payload is aligned")
    }

    /// A model that starts from what the rack holds now, with cold caches.
    pub(super) fn model<T: Task>(&self) -> Model<T> {
        let hosts = usize::from(self.layout.geometry().nodes);
        let mut model = Model::new(hosts, self.layout.geometry().region_bytes);
        for at in LineRange::covering(self.layout.metadata()).iter() {
            let words: LineWords =
                std::array::from_fn(|index| self.rack.device_word(word(at, index)));
            if words != [0; LINE_WORDS] {
                model.lines.push((at, words));
            }
        }
        for node in self.layout.nodes() {
            let memory = self.rack.host_memory(node.index(), self.words);
            for index in 0..self.words {
                let value = crate::fabric::HostMemory::load(&memory, index);
                if value != 0 {
                    model.own_words.push((node.index(), index, value));
                }
            }
        }
        for node in self.layout.nodes() {
            model.left_out.push(self.layout.heartbeat(node).range());
            model.left_out.push(self.layout.manager_heartbeat(node).range());
        }
        self.name(&mut model);
        model
    }

    fn name<T>(&self, model: &mut Model<T>) {
        let layout = &self.layout;
        let mut name = |lines: LineRange, name: String| model.names.push((lines, name));
        for node in layout.nodes() {
            name(layout.node_line(node).range(), format!("node line {node}"));
            name(layout.claim_word(node).range(), format!("claim word {node}"));
            name(layout.join_marks(node), format!("join marks {node}"));
            name(layout.manager_claim(node).range(), format!("claim {node}"));
            name(layout.summary(node).range(), format!("summary {node}"));
            name(layout.requests(node).range(), format!("requests {node}"));
            name(layout.acks(node).range(), format!("acks {node}"));
            name(layout.grants(node).range(), format!("grants of {node}"));
            name(layout.intents(node).range(), format!("intents {node}"));
            name(layout.ballots(node).range(), format!("ballots {node}"));
        }
        name(layout.chunk_table(), "chunk table".to_owned());
        name(LineRange::covering(layout.payload()), "payload".to_owned());
    }
}

/// Word `index` of the line at `at`.
pub(super) fn word(at: LineOffset, index: usize) -> WordOffset {
    at.word(index).expect("an index below the words of a line")
}
