//! Time and waiting: the one file that asks the operating system for either.
//!
//! Protocols take "now" as an argument and never wait inside. What drives them waits through a
//! [`Clock`], so that the simulator can hold time still and schedule at every wait.
#![expect(clippy::disallowed_methods, reason = "the one place where time comes from")]

use std::time::{Duration, Instant};

/// Monotonic time of one host. Values of two hosts are never compared.
pub trait Clock {
    /// Milliseconds since some fixed moment of this host.
    fn now_ms(&self) -> u64;

    /// Microseconds since the same moment, as fine as the clock can tell them.
    fn now_us(&self) -> u64 {
        self.now_ms().saturating_mul(1000)
    }

    /// As [`now_us`](Self::now_us), for figures that people read: no step of a simulated rack.
    fn figure_us(&self) -> u64 {
        self.now_us()
    }

    /// Gives way to others for a moment: `tries` counts how often in a row this wait was in vain,
    /// so that short waits spin and long ones sleep.
    fn pause(&self, tries: u32);
}

/// The operating system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Microseconds since the start.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Sleeps for `ms` milliseconds.
    pub fn sleep_ms(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn now_us(&self) -> u64 {
        Self::now_us(self)
    }

    fn pause(&self, tries: u32) {
        match tries {
            // A hand-over between hosts takes about a microsecond: worth spinning for.
            0..64 => std::hint::spin_loop(),
            64..256 => std::thread::yield_now(),
            256..1024 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
