//! How long something has not changed, by the watcher's own clock.
//!
//! - **BEAT-G0** Only time in which the watcher looked counts. A watcher that was stopped, or
//!   waited for a device that stalled for all hosts, saw nothing of that time. It starts to watch
//!   again.

use super::heartbeat::SUSPECT_MS;

/// The longest time between two looks of a watcher that counts as watched. After a longer one the
/// watcher was probably stopped itself, and whatever it watches may have been stopped with it.
pub const LOOK_GAP_MAX_MS: u64 = SUSPECT_MS / 3;

/// Watches one value. No clock inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stillness<T> {
    seen: Option<Seen<T>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen<T> {
    value: T,
    since_ms: u64,
    looked_ms: u64,
}

impl<T> Default for Stillness<T> {
    fn default() -> Self {
        Self { seen: None }
    }
}

impl<T: PartialEq> Stillness<T> {
    /// Takes note of `value`, read just before `now_ms`. Returns for how many milliseconds it was
    /// watched and was always the same: 0 at the first look, after a change, and after a gap of
    /// more than [`LOOK_GAP_MAX_MS`] between two looks.
    pub fn look(&mut self, value: T, now_ms: u64) -> u64 {
        let since_ms = match &self.seen {
            Some(seen)
                if seen.value == value
                    && now_ms.saturating_sub(seen.looked_ms) <= LOOK_GAP_MAX_MS =>
            {
                seen.since_ms
            }
            _ => now_ms,
        };
        self.seen = Some(Seen { value, since_ms, looked_ms: now_ms });
        now_ms.saturating_sub(since_ms)
    }

    /// For how long it had stood still at the last look.
    #[must_use]
    pub fn still_ms(&self) -> u64 {
        self.seen.as_ref().map_or(0, |seen| seen.looked_ms.saturating_sub(seen.since_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_somebody_looked_counts() {
        let mut watch = Stillness::default();
        assert_eq!(watch.look(7, 1000), 0);
        assert_eq!(watch.look(7, 1010), 10);
        assert_eq!(watch.look(7, 1010 + LOOK_GAP_MAX_MS), 10 + LOOK_GAP_MAX_MS);
        assert_eq!(watch.look(7, 1011 + 2 * LOOK_GAP_MAX_MS), 0, "nobody looked for too long");
        assert_eq!(watch.look(7, 1031 + 2 * LOOK_GAP_MAX_MS), 20);
        assert_eq!(watch.still_ms(), 20);
        assert_eq!(watch.look(8, 1041 + 2 * LOOK_GAP_MAX_MS), 0, "it moved");
    }
}
