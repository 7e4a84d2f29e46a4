//! Transfers by layers.

use std::sync::Arc;

use kv_cache::MatchedBlock;

use super::arrivals::{Arrivals, Herald};
use super::engine::Copies;
use super::readiness::{Opener, Readiness};
use super::turns::Lane;
use super::{
    AsyncEngine, AsyncSession, Completion, Destination, Fetched, LayeredFetch, LayeredPublish,
    LayeredPublished, Source, SubmitError, SubmitErrorKind,
};
use crate::block::NewBlock;
use crate::dma::{Checksum, CopyLayer, Layers};
use crate::session::LayeredBlocks;

impl<E: AsyncEngine> AsyncSession<E> {
    /// Fetches `blocks` by layers: [`Session::fetch_by_layers`](crate::Session::fetch_by_layers).
    /// What uses a layer after it has arrived finds its bytes: this process, or any stream of the
    /// GPU.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn fetch_by_layers<D: Destination<E>>(
        &self,
        blocks: Vec<MatchedBlock>,
        destinations: Vec<D>,
        layers: Arc<Layers>,
    ) -> Result<LayeredFetch<D>, SubmitError<Vec<D>>> {
        let arrivals = Arrivals::new();
        let given = (destinations, Herald(arrivals.clone()));
        let submitted = self.copy(Lane::Fetch, given, move |session, given, _| {
            let (mut destinations, herald): (Vec<D>, Herald) = given;
            let parts = destinations.iter_mut().map(Destination::parts_mut).collect();
            let arrived = &mut |layer| herald.arrived(layer);
            let report = session.fetch_by_layers(&blocks, parts, &layers, arrived);
            Fetched { report, destinations }
        });
        let completion = submitted.map_err(|error| error.map(|(destinations, _)| destinations))?;
        Ok(LayeredFetch { arrivals, completion })
    }

    /// Fetches one layer of `blocks`: [`Session::fetch_layer`](crate::Session::fetch_layer). A
    /// destination is as long as the layer.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn fetch_layer<D: Destination<E>>(
        &self,
        blocks: Arc<Vec<MatchedBlock>>,
        (layers, layer): (Arc<Layers>, usize),
        checksums: Arc<Vec<Checksum>>,
        destinations: Vec<D>,
    ) -> Result<Completion<Fetched<D>>, SubmitError<Vec<D>>> {
        self.copy(Lane::Fetch, destinations, move |session, mut destinations, _| {
            let parts = destinations.iter_mut().map(Destination::parts_mut).collect();
            let report = session.fetch_layer(&blocks, (&layers, layer), &checksums, parts);
            Fetched { report, destinations }
        })
    }

    /// Publishes `blocks` by layers:
    /// [`Session::publish_by_layers`](crate::Session::publish_by_layers). Needs
    /// [`AsyncOptions::with_publishes_by_layers`](crate::AsyncOptions::with_publishes_by_layers).
    ///
    /// A process works on one at a time: nothing of the next is copied before this one has ended,
    /// whichever layers of it are ready.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn publish_by_layers<S: Source<E>>(
        &self,
        blocks: Vec<NewBlock<S>>,
        layers: Arc<Layers>,
    ) -> Result<LayeredPublish<S, E>, SubmitError<Vec<NewBlock<S>>>> {
        let running = self.running();
        // First: a fork may have found any lock held by another thread.
        let engine = match E::of(running, self.order()) {
            Ok(engine) => engine,
            Err(kind) => return Err(kind.with(blocks)),
        };
        if !running.publishes_by_layers {
            return Err(SubmitErrorKind::NoLayers.with(blocks));
        }
        let readiness = Arc::new(Readiness::new(layers.count()));
        // Before it can begin to wait: closing ends the wait.
        running.waiting.add(&readiness);
        let opener = Opener::<E>::new(Arc::clone(&readiness), engine.order());
        let completion =
            self.copy_by(engine, Lane::Layers, blocks, move |session, blocks, engine| {
                let mut ready = WhenReady { blocks: &blocks, readiness: &readiness, engine };
                let report = session.publish_by_layers(&blocks, &layers, &mut ready);
                LayeredPublished { report, blocks }
            })?;
        Ok(LayeredPublish { opener, completion })
    }
}

/// Blocks whose layers are copied when they are ready.
struct WhenReady<'b, S, E> {
    blocks: &'b [NewBlock<S>],
    readiness: &'b Readiness,
    engine: &'b E,
}

impl<E: AsyncEngine, S: Source<E>> LayeredBlocks<E> for WhenReady<'_, S, E> {
    fn layer(&mut self, layer: usize, blocks: &[usize], copy: &mut CopyLayer<'_, E>) -> bool {
        let ready = self.readiness.wait_layer(layer);
        if ready {
            Copies::take_up(self.engine, layer);
            let parts = blocks.iter().map(|number| self.blocks[*number].bytes.layer(layer));
            copy(&parts.collect::<Vec<_>>());
        }
        ready
    }

    fn complete(&mut self) -> bool {
        self.readiness.wait_finished()
    }
}
