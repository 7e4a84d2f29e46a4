//! Transfers by layers.

use std::sync::Arc;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::Liveness;
use kv_cache::MatchedBlock;

use super::arrivals::{Arrivals, Herald};
use super::lanes::{Desk, Lane};
use super::readiness::{Opener, Readiness};
use super::{
    Destination, Fetched, LayerSource, LayeredFetch, LayeredPublish, LayeredPublished, NewBlock,
    SubmitError, TransferSession,
};
use crate::dma::{CopyLayer, DmaEngine, Layers};
use crate::session::{
    FetchReport, LayeredBlock, LayeredBlocks, PublishReport, Session, SessionError,
};

/// A publish by layers that was not taken up; its blocks, given back. Nothing is changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayeredSubmitError<T> {
    /// As for any transfer.
    #[error("{0}")]
    Refused(SubmitError<T>),
    /// The process was attached without the thread for it.
    #[error("the pool was attached without publishes_by_layers: attach it with that option")]
    NotAskedFor(T),
}

impl<T> LayeredSubmitError<T> {
    /// What was given back.
    pub fn into_inner(self) -> T {
        match self {
            Self::Refused(refused) => refused.into_inner(),
            Self::NotAskedFor(given) => given,
        }
    }
}

impl TransferSession {
    /// Fetches `blocks` by layers:
    /// [`Session::fetch_by_layers`](crate::session::Session::fetch_by_layers).
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn fetch_by_layers<D: Destination>(
        &self,
        blocks: Vec<MatchedBlock>,
        destinations: Vec<D>,
        layers: Arc<Layers>,
    ) -> Result<LayeredFetch<D>, SubmitError<Vec<D>>> {
        let (options, hold_ms) = (*self.options(), self.hold_ms());
        self.announce_layers(destinations, move |desk, destinations: &mut Vec<D>, arrived| {
            let session = desk.session(options).with_hold_ms(hold_ms);
            let parts = destinations.iter_mut().map(Destination::parts_mut).collect();
            session.fetch_by_layers(&blocks, parts, &layers, arrived)
        })
    }

    /// Publishes `blocks` by layers:
    /// [`Session::publish_by_layers`](crate::session::Session::publish_by_layers). Needs
    /// [`TransferOptions::publishes_by_layers`](super::TransferOptions::publishes_by_layers).
    ///
    /// A process works on one at a time: nothing of the next is copied before this one has ended,
    /// whichever layers of it are ready.
    ///
    /// # Errors
    /// [`LayeredSubmitError`].
    pub fn publish_by_layers<S: LayerSource>(
        &self,
        blocks: Vec<NewBlock<S>>,
        layers: Arc<Layers>,
    ) -> Result<LayeredPublish<S>, LayeredSubmitError<Vec<NewBlock<S>>>> {
        let (options, hold_ms) = (*self.options(), self.hold_ms());
        self.await_layers(blocks, layers.count(), move |desk, blocks, readiness| {
            let session = desk.session(options).with_hold_ms(hold_ms);
            let ready = Ready { readiness, take_up: |_| (), parts: LayerSource::layer };
            publish_when_ready(&session, blocks, &layers, ready)
        })
    }

    /// Has `fetch` fetch into `destinations`, and whoever waits for a layer told of it.
    pub(super) fn announce_layers<D: Send + 'static>(
        &self,
        destinations: Vec<D>,
        fetch: impl FnOnce(
            &Desk<'_>,
            &mut Vec<D>,
            &mut dyn FnMut(usize),
        ) -> Result<FetchReport, SessionError>
        + Send
        + 'static,
    ) -> Result<LayeredFetch<D>, SubmitError<Vec<D>>> {
        let arrivals = Arrivals::new();
        let given = (destinations, Herald(arrivals.clone()));
        let work = move |desk: &Desk<'_>, (mut destinations, herald): (Vec<D>, Herald)| {
            let report = fetch(desk, &mut destinations, &mut |layer| herald.arrived(layer));
            Fetched { report, destinations }
        };
        let submitted = self.submit_to(Lane::Fetch, given, work);
        let completion = submitted.map_err(|error| error.map(|(destinations, _)| destinations))?;
        Ok(LayeredFetch { arrivals, completion })
    }

    /// Has `publish` publish `blocks` as their layers become ready.
    pub(super) fn await_layers<S: Send + 'static>(
        &self,
        blocks: Vec<NewBlock<S>>,
        layers: usize,
        publish: impl FnOnce(
            &Desk<'_>,
            &[NewBlock<S>],
            &Readiness,
        ) -> Result<Option<PublishReport>, SessionError>
        + Send
        + 'static,
    ) -> Result<LayeredPublish<S>, LayeredSubmitError<Vec<NewBlock<S>>>> {
        let running = self.running();
        // Before any lock, which a fork may have found held by another thread.
        if running.is_forked() {
            return Err(LayeredSubmitError::Refused(SubmitError::Forked(blocks)));
        }
        if !running.publishes_by_layers {
            return Err(LayeredSubmitError::NotAskedFor(blocks));
        }
        let readiness = Arc::new(Readiness::new(layers));
        // Before it can begin to wait: closing ends the wait.
        running.waiting.add(&readiness);
        let opener = Opener::new(Arc::clone(&readiness));
        let work = move |desk: &Desk<'_>, blocks: Vec<NewBlock<S>>| {
            let report = publish(desk, &blocks, &readiness);
            LayeredPublished { report, blocks }
        };
        let submitted = self.submit_to(Lane::Layers, blocks, work);
        let completion = submitted.map_err(LayeredSubmitError::Refused)?;
        Ok(LayeredPublish { opener, completion })
    }
}

/// How the layers of blocks become ready.
pub(super) struct Ready<'r, T, P> {
    pub(super) readiness: &'r Readiness,
    /// What is done once, when a layer is ready and before it is copied.
    pub(super) take_up: T,
    /// Where a layer of a block is.
    pub(super) parts: P,
}

/// Publishes blocks, each layer when it is ready.
pub(super) fn publish_when_ready<'b, S, F, H, L, D, C>(
    session: &Session<'_, F, H, L, D, C>,
    blocks: &'b [NewBlock<S>],
    layers: &Layers,
    ready: Ready<'_, impl FnMut(usize), impl Fn(&'b S, usize) -> Vec<D::Source<'b>>>,
) -> Result<Option<PublishReport>, SessionError>
where
    F: Fabric,
    H: HostMemory,
    L: Liveness,
    D: DmaEngine,
    C: Clock,
{
    let hashes = blocks
        .iter()
        .map(|NewBlock { hash, depth, .. }| LayeredBlock { hash: *hash, depth: *depth });
    let hashes: Vec<_> = hashes.collect();
    session.publish_by_layers(&hashes, layers, &mut WhenReady { blocks, ready })
}

/// Blocks whose layers are copied when they are ready.
struct WhenReady<'b, 'r, S, T, P> {
    blocks: &'b [NewBlock<S>],
    ready: Ready<'r, T, P>,
}

impl<'b, E, S, T, P> LayeredBlocks<E> for WhenReady<'b, '_, S, T, P>
where
    E: DmaEngine,
    T: FnMut(usize),
    P: Fn(&'b S, usize) -> Vec<E::Source<'b>>,
{
    fn layer(&mut self, layer: usize, blocks: &[usize], copy: &mut CopyLayer<'_, E>) -> bool {
        let ready = self.ready.readiness.wait_layer(layer);
        if ready {
            (self.ready.take_up)(layer);
            let block = |number: &usize| &self.blocks[*number].bytes;
            let parts = blocks.iter().map(|number| (self.ready.parts)(block(number), layer));
            copy(&parts.collect::<Vec<_>>());
        }
        ready
    }

    fn complete(&mut self) -> bool {
        self.ready.readiness.wait_finished()
    }
}
