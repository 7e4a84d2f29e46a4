//! Payloads in steps: what is handed to the driver at once, and has one event.
//!
//! A long payload is several steps, so the processor flushes one while the GPU copies another. Short
//! payloads share a step: a call of the driver takes microseconds.

use std::ops::Range;

use cxl_shm::units::Extent;

use super::copies::Copies;
use super::engine::{Direction, Inner};
use super::registration::Pins;
use super::sums::Pieces;

/// Bytes of a step, about.
const STEP_BYTES: u64 = 512 << 10;

/// A payload that can be copied, and its parts (address and length).
pub(super) type Job = (Extent, Vec<(u64, usize)>);

#[derive(Debug)]
pub(super) struct Step {
    pub(super) copies: Copies,
    /// What it touches of the pool.
    pub(super) lines: Vec<Extent>,
    /// Which payloads, by their numbers.
    pub(super) jobs: Range<usize>,
    /// What of the memory of the GPU is summed with it.
    pub(super) pieces: Range<usize>,
    pub(super) bytes: u64,
}

/// All steps of a call.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) all: Vec<Step>,
    pub(super) pieces: Pieces,
    /// The pieces of each payload.
    pub(super) of_jobs: Vec<Range<usize>>,
}

impl Inner {
    /// The steps of `jobs`; those that are `None` are not copied.
    pub(super) fn steps<'j>(
        &self,
        direction: Direction,
        jobs: impl Iterator<Item = Option<&'j Job>> + Clone,
        pool: &Pins,
    ) -> Steps {
        let total = jobs.clone().flatten().map(|(payload, _)| payload.bytes()).sum();
        let mut steps =
            Steps { all: Vec::new(), pieces: Pieces::of_about(total), of_jobs: Vec::new() };
        for (number, job) in jobs.enumerate() {
            let mut of_job = steps.pieces.none();
            if let Some((payload, parts)) = job {
                let mut parts = Parts { parts, at: 0 };
                for lines in cut(*payload) {
                    let parts = parts.take(lines.bytes());
                    let pieces = steps.pieces.add(parts.iter().copied());
                    of_job.end = pieces.end;
                    let step = steps.open(number, pieces.start);
                    self.add(direction, &mut step.copies, lines, parts.into_iter(), pool);
                    step.lines.push(lines);
                    step.jobs.end = number + 1;
                    step.pieces.end = pieces.end;
                    step.bytes += lines.bytes();
                }
            }
            steps.of_jobs.push(of_job);
        }
        steps
    }
}

impl Steps {
    /// The last step, or a new one when it is long enough.
    fn open(&mut self, job: usize, piece: usize) -> &mut Step {
        if self.all.last().is_none_or(|step| step.bytes >= STEP_BYTES) {
            self.all.push(Step {
                copies: Copies::default(),
                lines: Vec::new(),
                jobs: job..job,
                pieces: piece..piece,
                bytes: 0,
            });
        }
        self.all.last_mut().expect("it was just made")
    }
}

/// Runs of whole lines of a payload, but for its end.
fn cut(payload: Extent) -> impl Iterator<Item = Extent> {
    (0..payload.bytes()).step_by(usize::try_from(STEP_BYTES).expect("it is short")).map(move |at| {
        let bytes = (payload.bytes() - at).min(STEP_BYTES);
        payload.part(at, bytes).expect("it lies in the payload")
    })
}

/// Parts that are used up.
struct Parts<'p> {
    parts: &'p [(u64, usize)],
    /// Bytes of the first that were taken.
    at: usize,
}

impl Parts<'_> {
    /// The next bytes.
    fn take(&mut self, bytes: u64) -> Vec<(u64, usize)> {
        let mut left = usize::try_from(bytes).expect("a step is short");
        let mut taken = Vec::new();
        while left > 0 {
            let ((address, length), rest) = self.parts.split_first().expect("parts are as long");
            let now = left.min(length - self.at);
            if now > 0 {
                taken.push((address + self.at as u64, now));
            }
            left -= now;
            self.at += now;
            if self.at == *length {
                (self.parts, self.at) = (rest, 0);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_in_order_and_once() {
        let all = [(100, 10), (0, 0), (500, 3), (900, 7)];
        let mut parts = Parts { parts: &all, at: 0 };
        let taken = [4, 6, 5, 5].map(|bytes| parts.take(bytes));
        let expected = [vec![(100, 4)], vec![(104, 6)], vec![(500, 3), (900, 2)], vec![(902, 5)]];
        assert_eq!(taken, expected);
    }

    #[test]
    fn a_payload_is_cut_into_whole_lines() {
        let payload = Extent::new(64, STEP_BYTES + 100).unwrap();
        let cut: Vec<_> = cut(payload).map(|lines| (lines.offset(), lines.bytes())).collect();
        assert_eq!(cut, [(64, STEP_BYTES), (64 + STEP_BYTES, 100)]);
    }
}
