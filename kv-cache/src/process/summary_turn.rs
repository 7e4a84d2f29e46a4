//! Which process of a host tells the summary of its node.

/// How often a process looks whether the summary is told.
const SUMMARY_MS: u64 = 500;

/// When this process looks at the summary of its node next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SummaryTurn {
    due_ms: u64,
    /// The number of the last summary that this process saw.
    seen: u32,
}

impl SummaryTurn {
    /// Whether the process looks now. The next look is half a second later.
    pub(crate) fn is_due(&mut self, now_ms: u64) -> bool {
        let is_due = now_ms >= self.due_ms;
        if is_due {
            self.due_ms = now_ms.saturating_add(SUMMARY_MS);
        }
        is_due
    }

    /// The number to tell now, when the last one told is `number`. `None` when another process of the
    /// host has told it since the last look.
    pub(crate) fn next(&mut self, number: u32) -> Option<u32> {
        let is_still = number == self.seen;
        self.seen = if is_still { number.wrapping_add(1).max(1) } else { number };
        is_still.then_some(self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_tells_and_another_goes_on_when_the_first_ends() {
        let (mut first, mut second) = (SummaryTurn::default(), SummaryTurn::default());
        let mut told = 0;
        for round in 1..=3 {
            assert!(first.is_due(round * 500) && !first.is_due(round * 500 + 1));
            told = first.next(told).unwrap();
            assert_eq!(u64::from(told), round);
            assert!(second.is_due(round * 500 + 1));
            assert_eq!(second.next(told), None, "the other process has told it");
        }
        assert_eq!(second.next(told), Some(4));
        assert_eq!(first.next(4), None);
        // The node has another life, of which nothing was told.
        assert_eq!((second.next(0), second.next(0)), (None, Some(1)));
    }
}
