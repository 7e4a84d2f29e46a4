//! How fast a device reads, as it was measured lately.

/// Believed of a device before anything was read from it.
const FIRST_BYTES_PER_S: u64 = 1 << 30;
const FIRST_LATENCY_US: u64 = 1_000;
/// A sample of the speed takes at least that long, and that many reads while others go on.
const WINDOW_US: u64 = 1_000;
const WINDOW_READS: usize = 16;
/// The part of a new sample in an average: one in so many.
const SPEED_SAMPLES: u64 = 4;
const LATENCY_SAMPLES: u64 = 8;
/// Of a latency that is better than the average: a device that was slow for a while is found fast again
/// by few reads.
const BETTER_SAMPLES: u64 = 2;

/// How fast a device reads. It is told of each read, and says how long others will take.
#[derive(Clone, Debug)]
pub(crate) struct Speed {
    bytes_per_s: u64,
    latency_us: u64,
    under_way: usize,
    /// A time in which several reads were under way.
    busy: Option<Busy>,
}

#[derive(Clone, Copy, Debug)]
struct Busy {
    since_us: u64,
    bytes: u64,
    reads: usize,
}

impl Default for Speed {
    fn default() -> Self {
        Self {
            bytes_per_s: FIRST_BYTES_PER_S,
            latency_us: FIRST_LATENCY_US,
            under_way: 0,
            busy: None,
        }
    }
}

impl Speed {
    /// How long it takes until so many bytes have arrived, in microseconds.
    #[must_use]
    pub(crate) fn wait_us(&self, bytes: u64) -> u64 {
        self.latency_us.saturating_add(self.transfer_us(bytes))
    }

    fn transfer_us(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1_000_000) / self.bytes_per_s.max(1)
    }

    /// A read begins.
    pub(crate) fn began(&mut self, now_us: u64) {
        self.under_way += 1;
        if self.under_way >= 2 && self.busy.is_none() {
            self.busy = Some(Busy { since_us: now_us, bytes: 0, reads: 0 });
        }
    }

    /// A read that began at `began_us` has brought its bytes.
    pub(crate) fn arrived(&mut self, began_us: u64, now_us: u64, bytes: u64) {
        let took_us = now_us.saturating_sub(began_us).max(1);
        if self.under_way == 1 && self.busy.is_none() {
            // Alone all the time: what is not transfer is latency. It may show a faster device than
            // was believed, and no slower one.
            self.bytes_per_s = self.bytes_per_s.max(per_second(bytes, took_us));
            let latency_us = took_us.saturating_sub(self.transfer_us(bytes));
            let is_better = latency_us < self.latency_us;
            let samples = if is_better { BETTER_SAMPLES } else { LATENCY_SAMPLES };
            self.latency_us = average(self.latency_us, latency_us, samples);
        }
        self.ended(now_us, bytes);
    }

    /// A read that has brought nothing is over.
    pub(crate) fn failed(&mut self, now_us: u64) {
        self.ended(now_us, 0);
    }

    fn ended(&mut self, now_us: u64, bytes: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        let Some(busy) = &mut self.busy else { return };
        busy.bytes += bytes;
        busy.reads += 1;
        let Busy { since_us, bytes, reads } = *busy;
        let took_us = now_us.saturating_sub(since_us);
        // Reads that arrive together belong to one window.
        if self.under_way > 0 && (reads < WINDOW_READS || took_us < WINDOW_US) {
            return;
        }
        if bytes > 0 && took_us >= WINDOW_US {
            let sample = per_second(bytes, took_us);
            self.bytes_per_s = average(self.bytes_per_s, sample, SPEED_SAMPLES).max(1);
        }
        let next = Busy { since_us: now_us, bytes: 0, reads: 0 };
        self.busy = (self.under_way >= 2).then_some(next);
    }
}

fn per_second(bytes: u64, took_us: u64) -> u64 {
    bytes.saturating_mul(1_000_000) / took_us.max(1)
}

fn average(old: u64, sample: u64, samples: u64) -> u64 {
    (old.saturating_mul(samples - 1).saturating_add(sample)) / samples
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_device_is_known_after_some_reads() {
        let mut speed = Speed::default();
        // Sixteen at a time, 2 MiB each, 8 ms a round: 4 GiB/s.
        let mut now = 0;
        for _ in 0..200 {
            (0..16).for_each(|_| speed.began(now));
            (0..16).for_each(|at| speed.arrived(now, now + 500 * (at + 1), 2 * MIB));
            now += 8_000;
        }
        let gib = speed.bytes_per_s >> 30;
        assert!((3..=4).contains(&gib), "{speed:?}");
    }

    #[test]
    fn a_slow_device_is_believed_slow() {
        let mut speed = Speed::default();
        for round in 0..40 {
            let now = round * 1_000_000;
            (0..4).for_each(|_| speed.began(now));
            (0..4).for_each(|_| speed.arrived(now, now + 400_000, MIB));
        }
        let mib = speed.bytes_per_s / MIB;
        assert!((8..=12).contains(&mib), "10 MiB/s: {speed:?}");
        assert!(speed.wait_us(10 * MIB) > 800_000);
    }

    #[test]
    fn reads_one_by_one_tell_of_the_latency() {
        let mut speed = Speed::default();
        for round in 0..60 {
            let now = round * 100_000;
            speed.began(now);
            speed.arrived(now, now + 20_000, 64 << 10);
        }
        assert!((15_000..=20_000).contains(&speed.wait_us(0)), "{speed:?}");
        // A read that brought nothing says nothing.
        let before = speed.bytes_per_s;
        speed.began(0);
        speed.began(0);
        speed.failed(50_000);
        speed.failed(60_000);
        assert_eq!(speed.bytes_per_s, before);
    }
}
