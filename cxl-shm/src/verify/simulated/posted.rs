//! Writes that have left a host and have not reached the device.

use std::collections::VecDeque;

use super::Random;
use super::device::Device;
use super::line_map::LineMap;
use crate::fabric::LineWords;
use crate::units::LineOffset;

/// Writes of one host on their way. Those of one line arrive in order, different lines in any.
#[derive(Debug, Default)]
pub(super) struct Posted {
    queues: LineMap<VecDeque<LineWords>>,
}

impl Posted {
    pub(super) fn push(&mut self, line: LineOffset, words: LineWords) {
        self.queues.get_or_insert_with(line, VecDeque::new).push_back(words);
    }

    pub(super) fn contains(&self, line: LineOffset) -> bool {
        self.queues.contains(line)
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = LineOffset> {
        self.queues.lines()
    }

    pub(super) fn pick(&self, random: &mut Random) -> Option<LineOffset> {
        self.queues.pick(random)
    }

    /// The oldest write of the line arrives. Says whether there was one.
    pub(super) fn land_one(&mut self, device: &mut Device, line: LineOffset) -> bool {
        let Some(queue) = self.queues.get_mut(line) else {
            return false;
        };
        if let Some(words) = queue.pop_front() {
            device.write(line, &words);
        }
        if queue.is_empty() {
            self.queues.remove(line);
        }
        true
    }

    /// All writes of the line arrive.
    pub(super) fn land_all(&mut self, device: &mut Device, line: LineOffset) {
        if let Some(queue) = self.queues.remove(line)
            && let Some(words) = queue.back()
        {
            device.write(line, words);
        }
    }

    /// The host loses power: of each line a tail of the writes is lost. `survives` draws whether
    /// one more arrives.
    pub(super) fn lose(&mut self, device: &mut Device, mut survives: impl FnMut() -> bool) {
        for (line, queue) in self.queues.take() {
            if let Some(words) = queue.iter().take_while(|_| survives()).last() {
                device.write(line, words);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_one_line_arrive_in_order_and_are_lost_from_the_end() {
        let line = LineOffset::new(64).unwrap();
        let posted = || {
            let mut posted = Posted::default();
            (1..=3).for_each(|value| posted.push(line, [value; 8]));
            posted
        };
        let (mut device, mut all) = (Device::new(0), posted());
        for value in 1..=3 {
            assert!(all.land_one(&mut device, line));
            assert_eq!(device.peek(line), [value; 8]);
        }
        assert!(!all.land_one(&mut device, line) && !all.contains(line));
        for survivors in 0..=3 {
            let (mut device, mut left) = (Device::new(0), survivors);
            posted().lose(&mut device, || {
                let survives = left > 0;
                left -= u64::from(survives);
                survives
            });
            assert_eq!(device.peek(line), [survivors; 8]);
        }
    }
}
