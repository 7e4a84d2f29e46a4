//! What the drives of a host have acknowledged, kept where no death reaches it.

use std::collections::BTreeSet;

/// The numbers of acknowledged blocks.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    acknowledged: BTreeSet<u32>,
}

impl Shadow {
    /// A host found the block on the drive.
    pub(super) fn acknowledge(&mut self, number: u32) {
        self.acknowledged.insert(number);
    }

    /// All of them.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.acknowledged.iter().copied()
    }

    /// How many.
    pub(super) fn len(&self) -> usize {
        self.acknowledged.len()
    }

    /// `count` of them, evenly spread, the `turn`-th choice.
    pub(super) fn sample(&self, count: usize, turn: usize) -> Vec<u32> {
        let step = self.acknowledged.len().div_ceil(count).max(1);
        self.numbers().skip(turn % step).step_by(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_take_turns_until_each_block_was_in_one() {
        let mut shadow = Shadow::default();
        assert!(shadow.sample(4, 0).is_empty());
        (0..10).chain(0..10).for_each(|number| shadow.acknowledge(number));
        assert_eq!((shadow.len(), shadow.sample(4, 0)), (10, vec![0, 3, 6, 9]));
        let mut all: Vec<_> = (0..3).flat_map(|turn| shadow.sample(4, turn)).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(shadow.numbers()));
    }
}
