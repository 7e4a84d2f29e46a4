//! Carries out placements: layers that are not in the engine's memory are streamed from the pool
//! while the engine decodes.
//!
//! `kv_cache::placement` decides which layers of a request are offloaded, and which moves lead
//! there. This brings them: an [`Executor`] knows the blocks of each request, and has a thread that
//! fetches the layers of an iteration in their order, into two buffers a request. The engine asks
//! before each layer, and says after each layer that it has executed.
//!
//! - **PLAN-E1** The blocks of a request are held from [`admit`](Executor::admit) to
//!   [`forget`](Executor::forget), and the holds are renewed before they end, also those of requests
//!   that are paused or offload nothing: the next plan may offload their layers. So eviction does not
//!   take them. A hold that cannot be renewed is an error once a layer of its request is brought.
//! - **PLAN-E2** `admit` reads each block whole, checks it, and notes the checksum of each layer.
//!   From then on each fetch of a layer is checked by these before the engine gets it.
//! - **PLAN-E3** A block that is lost or damaged is an error with its reason, before its layer
//!   executes. The iteration is over then: what it computed is dropped, and the engine computes the
//!   request again.
//!
//! It works in memory of this process. Between iterations the engine does the moves of a plan:
//! for a layer that leaves it frees its memory, a layer that comes it gets from
//! [`bring`](Executor::bring). Tokens behind the last whole block that was admitted are the
//! engine's affair: their KV stays in its memory.

mod error;
mod iteration;
mod queue;
mod requests;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cxl_shm::clock::SystemClock;
use kv_cache::placement::Placement;

use crate::asynchronous::AsyncSession;
use crate::dma::Layers;
use crate::session::HoldReport;

pub use error::ExecutorError;
pub use iteration::IterationFigures;

use self::iteration::{Freed, Iteration};
use self::requests::Admitted;
use self::stream::{Done, Stream};

/// Streams offloaded layers of requests from the pool, for one engine.
#[derive(Debug)]
pub struct Executor {
    session: AsyncSession,
    layers: Arc<Layers>,
    requests: BTreeMap<u64, Admitted>,
    stream: Stream,
    clock: SystemClock,
    /// `None` between two iterations.
    iteration: Option<Iteration>,
}

/// A layer of a request that is in a buffer, and was found right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamedLayer<'e> {
    /// The request.
    pub request: u64,
    /// The layer's part of each block, from the first block on.
    pub blocks: &'e [Vec<u8>],
}

impl Executor {
    /// An executor for blocks of a session, which are cut into `layers`, and starts its thread.
    ///
    /// # Errors
    /// [`ExecutorError::Layers`], [`ExecutorError::Thread`].
    pub fn new(session: AsyncSession, layers: Layers) -> Result<Self, ExecutorError> {
        let off_line = layers.first_off_line();
        let (layers_bytes, block_bytes) = (layers.bytes(), session.options().block_bytes());
        if off_line.is_some() || layers_bytes != block_bytes {
            return Err(ExecutorError::Layers { off_line, layers_bytes, block_bytes });
        }
        let stream = Stream::start(session.clone()).map_err(ExecutorError::Thread)?;
        let (requests, layers) = (BTreeMap::new(), Arc::new(layers));
        let clock = SystemClock::start();
        Ok(Self { session, layers, requests, stream, clock, iteration: None })
    }

    /// Takes up a request whose blocks are held (PLAN-E1), and reads each of them whole (PLAN-E2).
    /// `on_block` gets each block, by its number and as its layers: an engine imports the layers
    /// that are to be in its memory.
    ///
    /// # Errors
    /// [`ExecutorError::AdmittedTwice`]; [`ExecutorError::Block`] when a block cannot be read,
    /// [`ExecutorError::Hold`] when its hold ended meanwhile, or what submitting and fetching may say.
    /// The holds are released then.
    pub fn admit(
        &mut self,
        request: u64,
        held: HoldReport,
        on_block: &mut dyn FnMut(usize, &[Vec<u8>]),
    ) -> Result<(), ExecutorError> {
        if self.requests.contains_key(&request) {
            return Err(ExecutorError::AdmittedTwice { request });
        }
        let mut admitted = Admitted::new(held, &self.layers);
        loop {
            // Reading a long prompt takes as long as others may be held.
            self.renew()?;
            admitted.renew(request, &self.session)?;
            if !admitted.read_on(request, &self.session, &self.layers, on_block)? {
                break;
            }
        }
        self.requests.insert(request, admitted);
        Ok(())
    }

    /// Holds the blocks of all requests again for which half the time of a hold is over (PLAN-E1).
    /// [`begin`](Self::begin) and [`admit`](Self::admit) do this themselves: it is for an engine that
    /// calls neither for as long as half a hold.
    ///
    /// A request whose blocks are gone is no error here: it may never need them.
    ///
    /// # Errors
    /// [`ExecutorError::Refused`], [`ExecutorError::Session`].
    pub fn renew(&mut self) -> Result<(), ExecutorError> {
        for (request, admitted) in &mut self.requests {
            match admitted.renew(*request, &self.session) {
                // It is tried again, and an error when its request streams.
                Ok(()) | Err(ExecutorError::Hold { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Releases a request: finished, or given up after an error. An iteration under way that streams
    /// layers of it is given up; another goes on.
    pub fn forget(&mut self, request: u64) {
        if self.iteration.as_ref().is_some_and(|iteration| iteration.streams(request)) {
            self.give_up_iteration();
        }
        if let Some(admitted) = self.requests.remove(&request) {
            admitted.release(&self.session);
        }
    }

    /// Brings a layer, counted from 1, to stay: its part of each block. Between two iterations.
    ///
    /// # Errors
    /// [`ExecutorError`]; an iteration under way is given up.
    pub fn bring(&mut self, request: u64, layer: u16) -> Result<Vec<Vec<u8>>, ExecutorError> {
        self.give_up_iteration();
        let index = self.index_of(layer)?;
        let admitted = self.requests.get_mut(&request);
        let admitted = admitted.ok_or(ExecutorError::NotAdmitted { request })?;
        let [buffer, _] = std::mem::take(&mut admitted.buffers);
        let buffer = admitted.fitted(buffer, &self.layers, index);
        let work = admitted.work(&self.layers, request, layer, buffer)?;
        self.stream.begin(work)?;
        let Done { layer: brought, buffer, outcome, .. } = self.stream.next()?;
        outcome.map_err(|error| error.of(request, brought))?;
        Ok(buffer)
    }

    /// Begins a decode iteration of these requests: the first fetches begin (PLAN-X2).
    ///
    /// # Errors
    /// [`ExecutorError::NotAdmitted`], [`ExecutorError::NoSuchLayer`], [`ExecutorError::NamedTwice`],
    /// [`ExecutorError::Hold`] when a hold was not renewed; nothing is fetched then. An iteration under
    /// way is given up.
    pub fn begin(&mut self, batch: &[(u64, Placement)]) -> Result<(), ExecutorError> {
        self.give_up_iteration();
        let mut named = HashSet::new();
        if let Some((request, _)) = batch.iter().find(|(request, _)| !named.insert(*request)) {
            return Err(ExecutorError::NamedTwice { request: *request });
        }
        for (request, placement) in batch {
            if placement.offloaded().is_empty() {
                continue;
            }
            for &layer in placement.offloaded() {
                self.index_of(layer)?;
            }
            let admitted = self.requests.get_mut(request);
            let admitted = admitted.ok_or(ExecutorError::NotAdmitted { request: *request })?;
            admitted.renew(*request, &self.session)?;
        }
        self.renew()?;
        self.free_buffers(batch);
        self.iteration = Some(Iteration::new(batch));
        self.prefetch()
    }

    /// What the engine needs before `layer`, counted from 1, executes: that layer of each request
    /// that offloads it. Waits until it is there. The engine asks for all layers, in their order.
    ///
    /// # Errors
    /// [`ExecutorError::NotNext`], or what fetching may say; the iteration is given up then (PLAN-E3).
    pub fn before(&mut self, layer: u16) -> Result<Vec<StreamedLayer<'_>>, ExecutorError> {
        if let Err(error) = self.wait_for(layer) {
            self.give_up_iteration();
            return Err(error);
        }
        let iteration = self.iteration.as_mut().ok_or(ExecutorError::NoIteration)?;
        iteration.layer_began(self.clock.now_ns());
        Ok(iteration.there(layer))
    }

    /// The engine has executed `layer`: its buffers are free, and the next fetches begin.
    ///
    /// # Errors
    /// [`ExecutorError::NotNext`]; [`ExecutorError::NotAsked`] without [`before`](Self::before);
    /// [`ExecutorError`]; the iteration is given up then.
    pub fn after(&mut self, layer: u16) -> Result<(), ExecutorError> {
        let iteration = self.iteration.as_mut().ok_or(ExecutorError::NoIteration)?;
        let used = match iteration.executed(layer, self.clock.now_ns()) {
            Ok(used) => used,
            Err(error) => {
                self.give_up_iteration();
                return Err(error);
            }
        };
        for Freed { request, number, buffer } in used {
            if let Some(admitted) = self.requests.get_mut(&request) {
                admitted.buffers[number] = buffer;
            }
        }
        let begun = self.prefetch();
        if begun.is_err() {
            self.give_up_iteration();
        }
        begun
    }

    /// The iteration is over: what it took, for the controller.
    ///
    /// # Errors
    /// [`ExecutorError::NoIteration`].
    pub fn end(&mut self) -> Result<IterationFigures, ExecutorError> {
        let iteration = self.iteration.take().ok_or(ExecutorError::NoIteration)?;
        let figures = iteration.figures();
        self.count_waits(&figures);
        Ok(figures)
    }

    /// For the metrics of the host. A closed pool has none.
    fn count_waits(&self, figures: &IterationFigures) {
        if figures.stalls > 0 {
            drop(self.session.count_stream_waits(figures.stalls, figures.stall_ns / 1000));
        }
    }

    /// Bytes of all buffers: of each request of the last batch as many layers as it offloads, two at
    /// most (PLAN-M3).
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        let free = self.requests.values().flat_map(|admitted| &admitted.buffers);
        let free: usize = free.map(|buffer| stream::bytes_of(buffer)).sum();
        free + self.stream.busy_bytes() + self.iteration.as_ref().map_or(0, Iteration::held_bytes)
    }

    /// Drops the buffers that the iteration of `batch` does not use.
    fn free_buffers(&mut self, batch: &[(u64, Placement)]) {
        let offloaded = batch.iter().map(|(request, placement)| (*request, placement.offloaded()));
        let offloaded: HashMap<_, _> = offloaded.collect();
        for (request, admitted) in &mut self.requests {
            let used = offloaded.get(request).map_or(0, |layers| layers.len());
            admitted.buffers.iter_mut().skip(used).for_each(|buffer| *buffer = Vec::new());
        }
    }

    /// The index of a layer that is counted from 1.
    fn index_of(&self, layer: u16) -> Result<usize, ExecutorError> {
        requests::index_of(&self.layers, layer)
    }

    /// Begins the fetches for which a buffer is free.
    fn prefetch(&mut self) -> Result<(), ExecutorError> {
        let Some(iteration) = &mut self.iteration else { return Ok(()) };
        while let Some(fetch) = iteration.begin_next() {
            let admitted = self.requests.get_mut(&fetch.request);
            let admitted = admitted.ok_or(ExecutorError::NotAdmitted { request: fetch.request })?;
            let index = requests::index_of(&self.layers, fetch.layer)?;
            let buffer = std::mem::take(&mut admitted.buffers[fetch.buffer]);
            let buffer = admitted.fitted(buffer, &self.layers, index);
            let work = admitted.work(&self.layers, fetch.request, fetch.layer, buffer)?;
            self.stream.begin(work)?;
        }
        Ok(())
    }

    /// Waits for what a layer needs, and counts the wait as a stall.
    fn wait_for(&mut self, layer: u16) -> Result<(), ExecutorError> {
        let began_ns = self.clock.now_ns();
        let iteration = self.iteration.as_mut().ok_or(ExecutorError::NoIteration)?;
        iteration.is_next(layer)?;
        let mut waited = false;
        while !iteration.is_there(layer) {
            waited |= !self.stream.has_next();
            let done = self.stream.next()?;
            let (request, of) = (done.request, done.layer);
            if let Err(error) = &done.outcome {
                return Err(error.clone().of(request, of));
            }
            iteration.arrived(done);
        }
        if waited {
            iteration.stalled(self.clock.now_ns() - began_ns);
        }
        Ok(())
    }

    /// Ends an iteration that was not ended, and drops its buffers.
    fn give_up_iteration(&mut self) {
        if let Some(iteration) = self.iteration.take() {
            self.count_waits(&iteration.figures());
        }
        self.stream.give_up();
    }
}
