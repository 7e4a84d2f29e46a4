//! Whether the agent of this host lives, as a process sees it.

/// An agent whose beat stood still for so long is taken for dead.
const ALIVE_MS: u64 = 2000;

/// When a beat was last seen to move, by the clock of the process that watches. Clocks of two processes
/// are not compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct DriveWatch {
    beat: u64,
    moved_ms: u64,
}

impl DriveWatch {
    /// Whether the beat, which is `beat` now, moved lately. One that is seen for the first time may
    /// have moved a moment ago. A beat of 0 is nobody's.
    pub(crate) fn is_alive(&mut self, beat: u64, now_ms: u64) -> bool {
        if self.beat != beat {
            *self = Self { beat, moved_ms: now_ms };
        }
        beat != 0 && now_ms.saturating_sub(self.moved_ms) <= ALIVE_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_that_stands_still_is_of_the_dead() {
        let mut watch = DriveWatch::default();
        assert!(!watch.is_alive(0, 100), "no agent ever");
        assert!(watch.is_alive(7, 100));
        assert!(watch.is_alive(7, 100 + ALIVE_MS));
        assert!(!watch.is_alive(7, 101 + ALIVE_MS));
        assert!(watch.is_alive(8, 101 + ALIVE_MS));
        assert!(!watch.is_alive(0, 102 + ALIVE_MS), "stopped in order");
    }
}
