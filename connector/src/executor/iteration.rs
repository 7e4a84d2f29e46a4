//! One decode iteration: what is there, and what it took.

use std::collections::BTreeMap;

use kv_cache::placement::{Fetch, Measured, Placement, Prefetch};

use super::StreamedLayer;
use super::error::ExecutorError;
use super::stream::{Done, bytes_of};

/// What an iteration took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IterationFigures {
    /// For the controller: the mean time of a layer, and of the transfer of one layer of a block.
    pub measured: Measured,
    /// Layers of blocks that were brought.
    pub blocks: u64,
    /// Bytes that were brought.
    pub bytes: u64,
    /// Layers for which the engine had to wait.
    pub stalls: u64,
    /// How long it waited in all, in nanoseconds.
    pub stall_ns: u64,
}

/// A buffer whose layer has executed.
#[derive(Debug)]
pub(super) struct Freed {
    pub(super) request: u64,
    /// Which of the request's two.
    pub(super) number: usize,
    pub(super) buffer: Vec<Vec<u8>>,
}

/// An iteration under way.
#[derive(Debug)]
pub(super) struct Iteration {
    prefetch: Prefetch,
    /// What is in buffers, by request and layer.
    there: BTreeMap<(u64, u16), Vec<Vec<u8>>>,
    /// The layer to ask for, or the one that executes.
    next: u16,
    /// When the layer began to execute; `None` when the engine has not asked for it.
    began_ns: Option<u64>,
    layers: u64,
    layers_ns: u64,
    transfers_ns: u64,
    blocks: u64,
    bytes: u64,
    stalls: u64,
    stall_ns: u64,
}

impl Iteration {
    pub(super) fn new(batch: &[(u64, Placement)]) -> Self {
        Self {
            prefetch: Prefetch::new(batch),
            there: BTreeMap::new(),
            next: 1,
            began_ns: None,
            layers: 0,
            layers_ns: 0,
            transfers_ns: 0,
            blocks: 0,
            bytes: 0,
            stalls: 0,
            stall_ns: 0,
        }
    }

    /// Bytes of the buffers that have layers for the engine.
    pub(super) fn held_bytes(&self) -> usize {
        self.there.values().map(|buffer| bytes_of(buffer)).sum()
    }

    pub(super) fn begin_next(&mut self) -> Option<Fetch> {
        self.prefetch.begin_next()
    }

    /// Whether it streams layers of `request`.
    pub(super) fn streams(&self, request: u64) -> bool {
        self.prefetch.streams(request)
    }

    pub(super) fn is_there(&self, layer: u16) -> bool {
        let mut needed = self.prefetch.of_layer(layer);
        needed.all(|fetch| self.there.contains_key(&(fetch.request, layer)))
    }

    pub(super) fn there(&self, layer: u16) -> Vec<StreamedLayer<'_>> {
        let needed = self.prefetch.of_layer(layer);
        let there = needed.filter_map(|fetch| {
            let blocks = self.there.get(&(fetch.request, layer))?;
            Some(StreamedLayer { request: fetch.request, blocks })
        });
        there.collect()
    }

    pub(super) fn arrived(&mut self, done: Done) {
        self.transfers_ns += done.took_ns;
        self.blocks += done.buffer.len() as u64;
        self.bytes += done.buffer.iter().map(|block| block.len() as u64).sum::<u64>();
        self.there.insert((done.request, done.layer), done.buffer);
    }

    pub(super) const fn stalled(&mut self, ns: u64) {
        self.stalls += 1;
        self.stall_ns += ns;
    }

    /// Refuses a layer that is not the next one.
    pub(super) const fn is_next(&self, layer: u16) -> Result<(), ExecutorError> {
        if layer == self.next {
            return Ok(());
        }
        Err(ExecutorError::NotNext { layer, next: self.next })
    }

    pub(super) const fn layer_began(&mut self, now_ns: u64) {
        self.began_ns = Some(now_ns);
    }

    /// Enters that a layer has executed. The buffers that are free now.
    pub(super) fn executed(
        &mut self,
        layer: u16,
        now_ns: u64,
    ) -> Result<Vec<Freed>, ExecutorError> {
        self.is_next(layer)?;
        let began_ns = self.began_ns.take();
        let began_ns = began_ns.ok_or(ExecutorError::NotAsked { layer })?;
        self.next = self.next.saturating_add(1);
        self.layers += 1;
        self.layers_ns += now_ns.saturating_sub(began_ns);
        self.prefetch.executed(layer);
        let used = self.prefetch.of_layer(layer);
        let free = used.filter_map(|fetch| {
            let buffer = self.there.remove(&(fetch.request, layer))?;
            Some(Freed { request: fetch.request, number: fetch.buffer, buffer })
        });
        Ok(free.collect())
    }

    pub(super) fn figures(&self) -> IterationFigures {
        let measured = Measured {
            layer_ns: self.layers_ns / self.layers.max(1),
            block_ns: self.transfers_ns.checked_div(self.blocks),
        };
        let Self { blocks, bytes, stalls, stall_ns, .. } = *self;
        IterationFigures { measured, blocks, bytes, stalls, stall_ns }
    }
}
