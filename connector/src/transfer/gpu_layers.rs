//! Transfers by layers of blocks in the memory of a GPU.
//!
//! A layer that is fetched has arrived when its copy is over: what is launched from then on, on any stream,
//! finds it. A layer that is published is ready when the stream that computes it says so: how far the stream
//! is is recorded for the copies of this layer before any thread may begin with it, and there is no way to
//! say that a layer is ready without its stream.

use std::sync::Arc;

use cxl_shm::fork::ProcessMark;
use kv_cache::MatchedBlock;

use super::layered::{Ready, publish_when_ready};
use super::{
    Completion, GpuDestination, GpuSubmitError, LayeredFetch, LayeredPublish, LayeredPublished,
    LayeredSubmitError, NewBlock, TransferSession,
};
use crate::dma::Layers;
use crate::dma::cuda::{CudaError, DeviceSource, EngineStream, Order};

/// Blocks in the memory of a GPU that are published by layers: a layer stays as the stream leaves it that
/// it was said to be ready with, until the transfer gives it back.
pub trait GpuLayerSource: Send + 'static {
    /// The memory of a layer that is ready, in pieces that are gathered in this order. The other layers may
    /// be written meanwhile.
    fn layer(&self, layer: usize) -> Vec<DeviceSource<'_>>;
}

/// A publish by layers of memory of a GPU that was not taken up; its blocks, given back. Nothing is
/// changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GpuLayeredSubmitError<T> {
    /// As for any transfer with such memory.
    #[error("{0}")]
    Gpu(GpuSubmitError<T>),
    /// The process was attached without the thread for it.
    #[error("the pool was attached without publishes_by_layers: attach it with that option")]
    NotAskedFor(T),
}

impl<T> GpuLayeredSubmitError<T> {
    /// What was given back.
    pub fn into_inner(self) -> T {
        match self {
            Self::Gpu(refused) => refused.into_inner(),
            Self::NotAskedFor(given) => given,
        }
    }
}

/// A publish by layers of a GPU's memory under way: it goes on as its layers become ready. Dropping it
/// aborts it.
///
/// In a child made by `fork` nothing that is said to it has any effect: the publish is the parent's.
#[derive(Debug)]
#[must_use = "dropping it aborts the publish"]
pub struct GpuLayeredPublish<S> {
    publish: LayeredPublish<S>,
    order: OrderOfProcess,
}

impl<S> GpuLayeredPublish<S> {
    /// Says that `layer` is ready in all blocks once `stream` has done what it was given so far: its bytes
    /// stay as that leaves them. Layers may become ready in any order, of any streams. Waits for nothing.
    ///
    /// # Errors
    /// [`CudaError`], with which the publish is aborted: its copies cannot come after the stream.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn layer_ready(&self, layer: usize, stream: EngineStream<'_>) -> Result<(), CudaError> {
        let readiness = self.publish.opener.readiness();
        let (Some(readiness), Some(order)) = (readiness, &self.order.order) else { return Ok(()) };
        assert!(readiness.has_layer(layer), "there is no layer {layer}");
        // Before anybody may begin with the layer.
        let recorded = order.layer_after(layer, stream);
        match recorded {
            Ok(()) => readiness.layer_ready(layer),
            Err(_) => readiness.abort(),
        }
        recorded
    }

    /// Says that the blocks are worth publishing. They are not when it was aborted before; and it is
    /// aborted when a layer was not said to be ready, of which nobody knows when it is.
    pub fn finish(self) -> Completion<LayeredPublished<S>> {
        if let Some(readiness) = self.publish.opener.readiness()
            && !readiness.is_all_ready()
        {
            readiness.abort();
        }
        self.publish.finish()
    }

    /// Says that the blocks are not to be published. When it is completed nobody reads them any more.
    pub fn abort(self) -> Completion<LayeredPublished<S>> {
        self.publish.abort()
    }

    /// Whether it was aborted, which closing the pool does, too. For a child made by `fork` it is.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.publish.is_aborted()
    }
}

/// What the copies come after. A child made by `fork` leaves it alone: it is the driver's.
#[derive(Debug)]
struct OrderOfProcess {
    /// There until it is dropped.
    order: Option<Arc<Order>>,
    process: ProcessMark,
}

impl Drop for OrderOfProcess {
    fn drop(&mut self) {
        if !self.process.is_of_this() {
            std::mem::forget(self.order.take());
        }
    }
}

impl TransferSession {
    /// Fetches `blocks` by layers, each into its destination in a GPU's memory, when `stream` is done with
    /// what it was given before this call:
    /// [`Session::fetch_by_layers`](crate::session::Session::fetch_by_layers). What is launched after a
    /// layer has arrived finds it.
    ///
    /// # Errors
    /// [`GpuSubmitError`].
    pub fn fetch_into_gpu_by_layers<D: GpuDestination>(
        &self,
        gpu: usize,
        stream: EngineStream<'_>,
        blocks: Vec<MatchedBlock>,
        destinations: Vec<D>,
        layers: Arc<Layers>,
    ) -> Result<LayeredFetch<D>, GpuSubmitError<Vec<D>>> {
        let (engine, destinations) = self.running().after(gpu, stream, destinations)?;
        let (options, hold_ms) = (*self.options(), self.hold_ms());
        let fetch = self.announce_layers(destinations, move |desk, destinations, arrived| {
            let session = desk.cuda_session(&engine, options).with_hold_ms(hold_ms);
            let parts = destinations.iter_mut().map(GpuDestination::parts_mut).collect();
            session.fetch_by_layers(&blocks, parts, &layers, arrived)
        });
        fetch.map_err(GpuSubmitError::Refused)
    }

    /// Publishes `blocks` of a GPU's memory by layers:
    /// [`Session::publish_by_layers`](crate::session::Session::publish_by_layers). Needs
    /// [`TransferOptions::publishes_by_layers`](super::TransferOptions::publishes_by_layers).
    ///
    /// A process works on one at a time, as on those of the processor's memory.
    ///
    /// # Errors
    /// [`GpuLayeredSubmitError`].
    pub fn publish_from_gpu_by_layers<S: GpuLayerSource>(
        &self,
        gpu: usize,
        blocks: Vec<NewBlock<S>>,
        layers: Arc<Layers>,
    ) -> Result<GpuLayeredPublish<S>, GpuLayeredSubmitError<Vec<NewBlock<S>>>> {
        let opened = self.running().handle(gpu, blocks).map_err(GpuLayeredSubmitError::Gpu);
        let (engine, blocks) = opened?;
        let order = Some(Arc::clone(engine.order()));
        let (options, hold_ms) = (*self.options(), self.hold_ms());
        let publish = self.await_layers(blocks, layers.count(), move |desk, blocks, readiness| {
            let session = desk.cuda_session(&engine, options).with_hold_ms(hold_ms);
            let take_up = |layer| engine.order().take_up(layer);
            let ready = Ready { readiness, take_up, parts: GpuLayerSource::layer };
            publish_when_ready(&session, blocks, &layers, ready)
        });
        let publish = publish.map_err(|refused| match refused {
            LayeredSubmitError::Refused(refused) => {
                GpuLayeredSubmitError::Gpu(GpuSubmitError::Refused(refused))
            }
            LayeredSubmitError::NotAskedFor(given) => GpuLayeredSubmitError::NotAskedFor(given),
        })?;
        let order = OrderOfProcess { order, process: ProcessMark::of_this() };
        Ok(GpuLayeredPublish { publish, order })
    }
}
