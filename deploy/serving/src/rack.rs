//! Which workers there are, and on which node each runs.

/// Nodes and their workers. Workers are spread over the nodes in turn, those for prefill first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rack {
    nodes: u16,
    prefill: u16,
    decode: u16,
}

/// Why there is no such rack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RackError {
    /// Something is 0.
    #[error("a rack without {0}: give one or more")]
    Without(&'static str),
    /// A node would have no worker.
    #[error("{nodes} nodes and {workers} workers: a node would have none, so give fewer nodes")]
    Idle {
        /// Nodes.
        nodes: u16,
        /// Workers.
        workers: u32,
    },
}

impl Rack {
    /// A rack of `nodes` with these workers.
    ///
    /// # Errors
    /// [`RackError`].
    pub fn new(nodes: u16, prefill: u16, decode: u16) -> Result<Self, RackError> {
        let counts = [(nodes, "nodes"), (prefill, "prefill workers"), (decode, "decode workers")];
        if let Some((_, what)) = counts.into_iter().find(|(count, _)| *count == 0) {
            return Err(RackError::Without(what));
        }
        let workers = u32::from(prefill) + u32::from(decode);
        if u32::from(nodes) > workers {
            return Err(RackError::Idle { nodes, workers });
        }
        Ok(Self { nodes, prefill, decode })
    }

    /// Nodes.
    #[must_use]
    pub const fn nodes(&self) -> u16 {
        self.nodes
    }

    /// Prefill workers.
    #[must_use]
    pub const fn prefill(&self) -> u16 {
        self.prefill
    }

    /// Decode workers.
    #[must_use]
    pub const fn decode(&self) -> u16 {
        self.decode
    }

    /// The node of a prefill worker.
    #[must_use]
    pub const fn prefill_node(&self, worker: u16) -> u16 {
        worker % self.nodes
    }

    /// The prefill workers of a node.
    #[must_use]
    pub fn prefill_of(&self, node: u16) -> Vec<u16> {
        (0..self.prefill).filter(|worker| self.prefill_node(*worker) == node).collect()
    }

    /// The decode workers of a node.
    #[must_use]
    pub fn decode_of(&self, node: u16) -> Vec<u16> {
        (0..self.decode).filter(|worker| self.decode_node(*worker) == node).collect()
    }

    /// Nodes that have a prefill worker: the first ones.
    #[must_use]
    pub fn prefill_nodes(&self) -> u16 {
        self.prefill.min(self.nodes)
    }

    /// The node of a decode worker.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of nodes")]
    pub const fn decode_node(&self, worker: u16) -> u16 {
        ((self.prefill as u32 + worker as u32) % self.nodes as u32) as u16
    }

    /// Whether there is such a node, and prefill and decode workers are left when those of `node` have died.
    #[must_use]
    pub fn survives(&self, node: u16) -> bool {
        node < self.nodes
            && (0..self.prefill).any(|worker| self.prefill_node(worker) != node)
            && (0..self.decode).any(|worker| self.decode_node(worker) != node)
    }

    /// Most workers that one node has.
    #[must_use]
    pub fn workers_per_node(&self) -> u16 {
        let workers = u32::from(self.prefill) + u32::from(self.decode);
        u16::try_from(workers.div_ceil(self.nodes.into())).unwrap_or(u16::MAX)
    }
}
