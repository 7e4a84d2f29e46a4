//! What happens when in an iteration, to be drawn.

use super::evaluation::{EvaluationError, simulate};
use super::{Batch, Model, Placement};

/// What the GPU does in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It executes this layer.
    Compute(u16),
    /// It waits for KV of this layer.
    Stall(u16),
}

/// What one stream does in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The request, counted from 0.
    pub request: usize,
    /// The layer that is fetched.
    pub layer: u16,
}

/// A time in which nothing changes.
#[derive(Clone, PartialEq, Debug)]
pub struct Interval {
    /// When it begins, in layer times from the beginning of the iteration.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// What the GPU does.
    pub phase: Phase,
    /// The streams that share the link, none when it is idle.
    pub transfers: Vec<Transfer>,
}

/// An iteration, interval by interval.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Timeline {
    /// The intervals, without gaps.
    pub intervals: Vec<Interval>,
}

impl Timeline {
    /// How long the iteration takes, in layer times.
    #[must_use]
    pub fn length(&self) -> f64 {
        self.intervals.last().map_or(0.0, |last| last.end)
    }
}

/// Told of each interval of a simulation.
pub(super) trait Watch {
    /// Whether it wants to know: a simulation that is not watched saves the work.
    const WATCHES: bool;

    /// An interval of `length` layer times.
    fn interval(&mut self, length: f64, phase: Phase, transfers: &[Transfer]);
}

/// Does not watch.
pub(super) struct Unwatched;

impl Watch for Unwatched {
    const WATCHES: bool = false;

    fn interval(&mut self, _: f64, _: Phase, _: &[Transfer]) {}
}

impl Watch for Timeline {
    const WATCHES: bool = true;

    fn interval(&mut self, length: f64, phase: Phase, transfers: &[Transfer]) {
        if length > 0.0 {
            let start = self.length();
            let transfers = transfers.to_vec();
            self.intervals.push(Interval { start, end: start + length, phase, transfers });
        }
    }
}

/// The timeline of an iteration with these placements, one for each request.
///
/// Times are rounded: the timeline is for pictures. [`evaluate`](super::evaluate) is exact.
///
/// # Errors
/// There is not one placement of this model for each request.
pub fn timeline(
    batch: &Batch,
    placements: &[Placement],
    model: Model,
) -> Result<Timeline, EvaluationError> {
    let mut timeline = Timeline::default();
    simulate(batch, placements, model, &mut timeline)?;
    Ok(timeline)
}
