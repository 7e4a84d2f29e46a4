//! Time in the rack: it advances when somebody works or waits, never by itself.

use std::fmt;

use super::SimulatedRack;
use super::schedule::{self, Point};
use crate::clock::Clock;

/// [`Clock`] of one simulated host. The clocks of a rack run alike and start anywhere.
///
/// In a schedule a pause lets the others run; without one it lets that much time pass.
#[derive(Clone)]
pub struct SimulatedClock {
    pub(super) rack: SimulatedRack,
    pub(super) host: usize,
}

impl Clock for SimulatedClock {
    fn now_ms(&self) -> u64 {
        // A scheduling point too, so that a loop that only watches the clock comes to its end.
        let machine = schedule::point(&self.rack, Point::Operation);
        machine.unwrap_or_else(|| self.rack.lock()).clock_ms(self.host)
    }

    fn figure_us(&self) -> u64 {
        self.rack.lock().clock_ms(self.host).saturating_mul(1000)
    }

    fn pause(&self, tries: u32) {
        // Sooner longer than the system's clock: waiting threads take no steps from working ones,
        // and time that everybody waits through costs nothing.
        let ns = match tries {
            0..8 => 400,
            8..24 => 5_000,
            24..48 => 50_000,
            u32::MAX => 10_000_000,
            _ => 1_000_000,
        };
        match schedule::point(&self.rack, Point::Pause { ns }) {
            Some(mut machine) => machine.misbehave(self.host, None),
            // A destructor of a crashed task may wait for a deadline.
            None => self.rack.lock().now_ns += ns,
        }
    }
}

impl fmt::Debug for SimulatedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedClock({})", self.host)
    }
}
