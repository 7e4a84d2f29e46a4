//! How the tokens come while a plan holds, against how they are to come (PLAN-W1).
//!
//! Iterations between two growths take equally long. So which of their tokens are late is computed
//! for all of them at once: a window of a million steps takes as long as one of a hundred.

use std::ops::RangeInclusive;

use num_bigint::BigInt;
use num_rational::{BigRational, Ratio};

use super::window::{Horizon, Window};
use crate::placement::Batch;

/// The pace of a batch, from one growth of its requests to the next.
pub(super) struct Pace {
    tolerated: BigRational,
    /// When the last step ended, in layer times.
    time: BigRational,
    readers: Vec<Reader>,
}

/// The reader of a request with a promise.
struct Reader {
    /// The request, counted from 1.
    request: usize,
    slo: BigRational,
    /// When the last token is released; `None` before the first.
    released: Option<BigRational>,
    /// Tokens that were late.
    late: u32,
}

/// The late tokens of a reader in steps of one length: `late` by the end of each step up to
/// `on_time`, and one more by the end of each step after that.
struct Lateness {
    late: u32,
    on_time: u32,
}

impl Pace {
    pub(super) fn new(batch: &Batch, horizon: &Horizon) -> Self {
        let reader = |(number, request): (usize, &crate::placement::Request)| {
            let slo = big(request.slo_layer_times?);
            // The first of the deposited tokens is released at once, where none was.
            let waiting = match request.since_release {
                None => request.deposit_tokens.checked_sub(1),
                Some(_) => Some(request.deposit_tokens),
            };
            let since = big(request.since_release.unwrap_or_default());
            let released =
                waiting.map(|tokens| &slo * BigRational::from_integer(tokens.into()) - since);
            Some(Reader { request: number + 1, slo, released, late: 0 })
        };
        Self {
            tolerated: big(horizon.tolerated),
            time: BigRational::from_integer(0.into()),
            readers: batch.requests().iter().enumerate().filter_map(reader).collect(),
        }
    }

    /// How long the first step may take for no token to be late; `None` where it may take any time.
    pub(super) fn longest_step(&self) -> Option<BigRational> {
        let until = |reader: &Reader| Some(reader.released.as_ref()? + &reader.slo);
        self.readers.iter().filter_map(until).min()
    }

    /// Steps of this length each. Enters the last of them by whose end no request has too many late
    /// tokens, and else which request has.
    pub(super) fn advance(
        &mut self,
        length: &BigRational,
        steps: RangeInclusive<u32>,
        window: &mut Window,
    ) {
        let (first, last) = steps.into_inner();
        let count = last - first + 1;
        let lateness: Vec<_> = self
            .readers
            .iter_mut()
            .map(|reader| reader.advance(&self.time, length, first, count))
            .collect();
        self.time += length * BigRational::from_integer(count.into());
        let is_late =
            |of: &(&Lateness, &Reader)| of.0.last_good(last, &self.tolerated) != Some(last);
        let too_many = lateness.iter().zip(&self.readers).find(is_late);
        let late = too_many.map(|(_, reader)| reader.request);
        // What one reader takes, another may not: the step goes down until all do.
        let mut step = last;
        while step >= first {
            let good = lateness.iter().map(|of| of.last_good(step, &self.tolerated).unwrap_or(0));
            match good.min() {
                Some(good) if good < step => step = good,
                _ => {
                    *window = Window { steps: step, late: late.filter(|_| step < last) };
                    return;
                }
            }
        }
        window.late = late;
    }
}

impl Reader {
    /// Enters `count` steps of this length from step `first` on, where the step before ended at
    /// `time`.
    fn advance(
        &mut self,
        time: &BigRational,
        length: &BigRational,
        first: u32,
        count: u32,
    ) -> Lateness {
        let whole = |number: u32| BigRational::from_integer(number.into());
        let end = time + length * whole(count);
        // The first token comes just in time, whenever it comes (PLAN-D2).
        let released = self.released.take().unwrap_or_else(|| time + length - &self.slo);
        let spare = &released + &self.slo - time - length;
        let is_on_time = spare >= whole(0);
        if *length <= self.slo {
            // At most the first is late: from then on none takes longer than promised.
            self.released = Some(if is_on_time {
                released + &self.slo * whole(count)
            } else {
                time + length + &self.slo * whole(count - 1)
            });
            self.late += u32::from(!is_on_time);
            return Lateness { late: self.late, on_time: u32::MAX };
        }
        // Each step takes as much of what is spare. When nothing is left, all are late.
        let on_time = if is_on_time {
            let steps = (spare / (length - &self.slo)).to_integer() + BigInt::from(1);
            u32::try_from(steps).unwrap_or(u32::MAX).min(count)
        } else {
            0
        };
        let lateness = Lateness { late: self.late, on_time: first - 1 + on_time };
        self.released =
            Some(if on_time == count { released + &self.slo * whole(count) } else { end });
        self.late += count - on_time;
        lateness
    }
}

impl Lateness {
    /// The last step up to `step` by whose end no more tokens are late than tolerated.
    fn last_good(&self, step: u32, tolerated: &BigRational) -> Option<u32> {
        let share = |step: u32| tolerated * BigRational::from_integer(step.into());
        let late = BigRational::from_integer(self.late.into());
        if step > self.on_time {
            // late + s - on_time <= tolerated s, for s up to (on_time - late) / (1 - tolerated).
            let each = BigRational::from_integer(1.into()) - tolerated;
            let most = BigRational::from_integer(self.on_time.into()) - &late;
            let is_good = &each * BigRational::from_integer(step.into()) <= most;
            if is_good {
                return Some(step);
            }
            let most = u32::try_from((most / each).floor().to_integer()).unwrap_or(0);
            if most > self.on_time {
                return Some(most);
            }
        }
        // Fewer steps tolerate fewer late tokens: no step before this one is better.
        let step = step.min(self.on_time);
        Some(step).filter(|step| late <= share(*step))
    }
}

fn big(ratio: Ratio<u64>) -> BigRational {
    BigRational::new((*ratio.numer()).into(), (*ratio.denom()).into())
}
