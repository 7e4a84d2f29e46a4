//! What a call copies with: a lane, its own for as long as the call lasts.
//!
//! So calls of several threads copy beside each other, and a copy that waits for the engine's work is
//! in nobody's way. There are as many lanes as there were calls at once.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};

use super::bounce::Bounce;
use super::driver::reason;
use super::engine::Way;
use super::registration::Pins;
use super::sums::SumStream;
use super::turn::{self, Turn};
use crate::dma::lock;

/// Streams and a buffer.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) copies: Arc<CudaStream>,
    /// Where the GPU computes checksums.
    pub(super) sums: Option<SumStream>,
    pub(super) bounce: Bounce,
}

impl Lane {
    fn new(context: &Arc<CudaContext>, with_sums: bool) -> Result<Self, DriverError> {
        let sums = with_sums.then(|| SumStream::new(context)).transpose()?;
        Ok(Self { copies: context.new_stream()?, sums, bounce: Bounce::new(context) })
    }

    /// Waits until nothing of it is under way.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        let sums = self.sums.iter().map(SumStream::stream);
        // For both, also where the first fails.
        let waited: Vec<_> =
            sums.chain([&self.copies]).map(|stream| turn::wait_for(stream)).collect();
        waited.into_iter().collect()
    }
}

/// The lanes of an engine.
#[derive(Debug)]
pub(super) struct Lanes {
    context: Arc<CudaContext>,
    with_sums: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Lane>,
    /// Since the driver could not wait for a lane.
    broken: Option<DriverError>,
}

impl Lanes {
    pub(super) fn new(context: &Arc<CudaContext>, with_sums: bool) -> Self {
        Self { context: Arc::clone(context), with_sums, state: Mutex::default() }
    }

    /// A lane for copies that go this way, and a turn with the GPU.
    ///
    /// # Errors
    /// The driver's. Once it could not wait for a lane that error: what the GPU does is not known
    /// any more (CUDA-E2).
    pub(super) fn take(&self, way: &Way) -> Result<LaneOfCall<'_>, DriverError> {
        let turn = Turn::begin(&self.context)?;
        let free = {
            let mut state = lock(&self.state);
            if let Some(error) = state.broken {
                return Err(error);
            }
            state.free.pop()
        };
        let lane = match free {
            Some(lane) => lane,
            None => Lane::new(&self.context, self.with_sums)?,
        };
        let pins = match way {
            Way::Straight(pins) => Some(Arc::clone(pins)),
            Way::Bounced => None,
        };
        Ok(LaneOfCall { lanes: self, lane: Some(lane), pins, _turn: turn })
    }

    /// Whether nothing is under way on any lane, and never will be: no call is.
    pub(super) fn is_broken(&self) -> bool {
        lock(&self.state).broken.is_some()
    }
}

/// The lane of a call. At its end nothing of it is under way any more, also when the call panics.
#[derive(Debug)]
pub(super) struct LaneOfCall<'e> {
    lanes: &'e Lanes,
    /// There until it is given back.
    lane: Option<Lane>,
    /// What its copies touch of the pool.
    pins: Option<Arc<Pins>>,
    _turn: Turn,
}

impl LaneOfCall<'_> {
    /// Waits until nothing of it is under way.
    ///
    /// # Errors
    /// The driver's: what was copied may still be under way (CUDA-E1, CUDA-E2).
    pub(super) fn end(mut self) -> Result<(), DriverError> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), DriverError> {
        let Some(lane) = self.lane.take() else { return Ok(()) };
        let waited = lane.wait();
        let mut state = lock(&self.lanes.state);
        let Err(error) = waited else {
            state.free.push(lane);
            return Ok(());
        };
        // Its memory stays, and what it touches of the pool stays registered (CUDA-R1): the GPU may
        // write there.
        std::mem::forget(lane);
        std::mem::forget(self.pins.take());
        // At the end of the process the driver goes first. That is no error to tell of.
        let is_end = error == DriverError(sys::CUresult::CUDA_ERROR_DEINITIALIZED);
        if state.broken.replace(error).is_none() && !is_end {
            tracing::error!(
                reason = reason(error),
                "the GPU cannot be waited for: an error of another library of this process may be \
                 the cause, see its log and the driver's. This process copies nothing to or from \
                 this GPU any more. Blocks that were being stored stay reserved until the process \
                 leaves the pool; end it, and start it again"
            );
        }
        Err(error)
    }
}

impl Drop for LaneOfCall<'_> {
    fn drop(&mut self) {
        // Where a call drops it, the call has an error to tell already, or panics.
        let _told = self.give_back();
    }
}

impl Deref for LaneOfCall<'_> {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        self.lane.as_ref().expect("it is there until it is given back")
    }
}

impl DerefMut for LaneOfCall<'_> {
    fn deref_mut(&mut self) -> &mut Lane {
        self.lane.as_mut().expect("it is there until it is given back")
    }
}
