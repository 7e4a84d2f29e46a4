//! What the copies of one handle come after.

use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};

use super::driver::CudaError;
use super::memory::EngineStream;
use super::turn::{self, Turn};
use crate::dma::lock;

/// The work of engines' streams that is to be over before a copy begins: how far each stream was when it
/// was named.
///
/// It keeps the GPU's context alive, and not the engine. As with that, a child made by `fork` must not use
/// it, nor drop it.
#[derive(Debug)]
pub(crate) struct Order {
    context: Arc<CudaContext>,
    /// Of what is over none is kept. Held for a moment only, whatever is being copied.
    events: Mutex<Vec<CudaEvent>>,
}

impl Order {
    pub(super) fn new(context: &Arc<CudaContext>) -> Self {
        Self { context: Arc::clone(context), events: Mutex::default() }
    }

    /// Adds what `stream` was given to do so far. Waits for nothing.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Capturing`]; then nothing may be copied that depends on it.
    pub(crate) fn after(&self, stream: EngineStream<'_>) -> Result<(), CudaError> {
        let failed = |error| CudaError::of("cannot wait for the engine's stream", error);
        let _turn = Turn::begin(&self.context).map_err(failed)?;
        let stream = stream.borrowed(&self.context);
        if turn::is_capturing(&stream).map_err(failed)? {
            return Err(CudaError::Capturing);
        }
        let event = stream.record_event(None).map_err(failed)?;
        let mut events = lock(&self.events);
        forget_complete(&mut events);
        events.push(event);
        Ok(())
    }

    /// Has `stream`, in a turn with the GPU, go on behind all of it.
    pub(super) fn comes_before(&self, stream: &CudaStream) -> Result<(), DriverError> {
        let mut events = lock(&self.events);
        forget_complete(&mut events);
        events.iter().try_for_each(|event| stream.wait(event))
    }
}

/// Those whose work failed stay: who waits for them is told.
fn forget_complete(events: &mut Vec<CudaEvent>) {
    events.retain(|event| !event.is_complete());
}

impl Drop for Order {
    fn drop(&mut self) {
        let mut events = lock(&self.events);
        if !events.is_empty() {
            // The end of an event leaves its context as the current one: the turn takes it back.
            let _turn = Turn::begin(&self.context);
            events.clear();
        }
    }
}
