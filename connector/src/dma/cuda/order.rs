//! What the copies of one handle come after.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};

use super::driver::CudaError;
use super::memory::EngineStream;
use super::turn::{self, EndsInTurn, Turn};
use crate::dma::lock;

/// The work of engines' streams that is to be over before a copy begins: how far each stream was
/// when it was named.
///
/// It keeps the GPU's context alive, and not the engine. As with that, a child made by `fork` must
/// not use it, nor drop it.
#[derive(Debug)]
pub(crate) struct Order(EndsInTurn<Named>);

/// What was named so far.
#[derive(Debug)]
struct Named {
    /// Held for a moment only, whatever is being copied.
    events: Mutex<Events>,
    context: Arc<CudaContext>,
    /// What copies come after as well.
    behind: Option<Arc<Order>>,
}

#[derive(Debug, Default)]
struct Events {
    /// What every copy comes after. Of what is over none is kept.
    of_all: Vec<CudaEvent>,
    /// What the copies of a layer come after, until that is taken up.
    of_layers: BTreeMap<usize, Vec<CudaEvent>>,
}

impl Order {
    /// One that names nothing yet, except for what is named by `behind`.
    pub(super) fn new(context: &Arc<CudaContext>, behind: Option<Arc<Order>>) -> Self {
        let (events, context) = (Mutex::default(), Arc::clone(context));
        Self(EndsInTurn::new(Named { events, context, behind }))
    }

    /// Adds what `stream` was given to do so far. Waits for nothing.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Capturing`]; then nothing may be copied that depends on
    /// it.
    pub(crate) fn after(&self, stream: EngineStream<'_>) -> Result<(), CudaError> {
        self.record(stream, |events, event| {
            forget_complete(&mut events.of_all);
            events.of_all.push(event);
        })
    }

    /// The same for copies that begin when `layer` is taken up. An engine launches layers far ahead
    /// of the GPU: the copies of one need not wait for the next.
    pub(crate) fn layer_after(
        &self,
        layer: usize,
        stream: EngineStream<'_>,
    ) -> Result<(), CudaError> {
        self.record(stream, |events, event| events.of_layers.entry(layer).or_default().push(event))
    }

    /// From now on copies come after what `layer` does, too.
    pub(crate) fn take_up(&self, layer: usize) {
        let mut events = lock(&self.0.events);
        let of_layer = events.of_layers.remove(&layer).unwrap_or_default();
        events.of_all.extend(of_layer);
    }

    /// Has `stream`, in a turn with the GPU, go on behind all that its copies come after.
    pub(super) fn comes_before(&self, stream: &CudaStream) -> Result<(), DriverError> {
        if let Some(behind) = &self.0.behind {
            behind.comes_before(stream)?;
        }
        let mut events = lock(&self.0.events);
        forget_complete(&mut events.of_all);
        events.of_all.iter().try_for_each(|event| stream.wait(event))
    }

    fn record(
        &self,
        stream: EngineStream<'_>,
        keep: impl FnOnce(&mut Events, CudaEvent),
    ) -> Result<(), CudaError> {
        let failed = |error| CudaError::of("cannot wait for the engine's stream", error);
        let _turn = Turn::begin(&self.0.context).map_err(failed)?;
        let stream = stream.borrowed(&self.0.context);
        if turn::is_capturing(&stream).map_err(failed)? {
            return Err(CudaError::Capturing);
        }
        let event = stream.record_event(None).map_err(failed)?;
        keep(&mut lock(&self.0.events), event);
        Ok(())
    }
}

/// Those whose work failed stay: a thread that waits for them is told.
fn forget_complete(events: &mut Vec<CudaEvent>) {
    events.retain(|event| !event.is_complete());
}
