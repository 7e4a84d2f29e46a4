//! What compute and transfers take, as measured.

use std::collections::VecDeque;

/// What was measured in one decode iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Time in which a layer executes, on average over the layers, in nanoseconds.
    pub layer_ns: u64,
    /// Time in which the link brings a block, in nanoseconds. `None` when nothing was moved.
    pub block_ns: Option<u64>,
}

/// Averages of the last measurements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Profile {
    layer: Average,
    block: Average,
}

/// The average of the last few numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Average {
    last: VecDeque<u64>,
    most: usize,
    /// What was assumed before anything was measured, or planned with last.
    planned: u64,
}

impl Average {
    const fn new(planned: u64, most: usize) -> Self {
        Self { last: VecDeque::new(), most, planned }
    }

    fn add(&mut self, number: u64) {
        if self.last.len() == self.most {
            self.last.pop_front();
        }
        // Something that takes no time cannot be planned with.
        self.last.push_back(number.max(1));
    }

    /// The average, once there are enough numbers.
    fn value(&self) -> Option<u64> {
        let sum: u128 = self.last.iter().map(|&number| u128::from(number)).sum();
        let full = self.last.len() == self.most;
        full.then(|| u64::try_from(sum / self.most as u128).unwrap_or(u64::MAX))
    }

    /// Whether the average differs by more than `percent` from what was planned with.
    fn differs(&self, percent: u32) -> bool {
        let off = |value: u64| u128::from(value.abs_diff(self.planned)) * 100;
        let most = u128::from(self.planned) * u128::from(percent);
        self.value().is_some_and(|value| off(value) > most)
    }

    /// What to plan with from now on.
    fn plan_with(&mut self) -> u64 {
        self.planned = self.value().unwrap_or(self.planned);
        self.planned
    }
}

impl Profile {
    pub(super) const fn new(layer_ns: u64, block_ns: u64, measurements: usize) -> Self {
        let layer = Average::new(layer_ns, measurements);
        Self { layer, block: Average::new(block_ns, measurements) }
    }

    pub(super) fn add(&mut self, measured: Measured) {
        self.layer.add(measured.layer_ns);
        if let Some(block_ns) = measured.block_ns {
            self.block.add(block_ns);
        }
    }

    pub(super) fn differs(&self, percent: u32) -> bool {
        self.layer.differs(percent) || self.block.differs(percent)
    }

    /// Times of a layer and of a block that were planned with last.
    pub(super) const fn planned(&self) -> (u64, u64) {
        (self.layer.planned, self.block.planned)
    }

    /// Times of a layer and of a block, to plan with from now on.
    pub(super) fn plan_with(&mut self) -> (u64, u64) {
        (self.layer.plan_with(), self.block.plan_with())
    }
}
