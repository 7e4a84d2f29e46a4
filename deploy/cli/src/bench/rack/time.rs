//! The time of the bench, which passes at a multiple of the machine's.

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds of the machine's monotonic clock, which all processes of the machine share.
pub(super) fn machine_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * NS_PER_S + part(now.tv_nsec)
}

/// Nanoseconds that this thread has used a processor.
pub(super) fn thread_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(used.tv_sec) * NS_PER_S + part(used.tv_nsec)
}

/// Sleeps until the machine's clock says so.
pub(super) fn sleep_until(machine_ns: u64) {
    let part = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let until =
        Timespec { tv_sec: part(machine_ns / NS_PER_S), tv_nsec: part(machine_ns % NS_PER_S) };
    // A signal breaks the sleep off.
    while clock_nanosleep_absolute(rustix::thread::ClockId::Monotonic, &until)
        == Err(rustix::io::Errno::INTR)
    {}
}

/// How many times as fast as the machine's the time of the bench passes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Speed(pub(super) f64);

impl Speed {
    /// A time of the bench as one of the machine.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "times are far below 2^52 ns, and not negative"
    )]
    pub(super) fn on_machine(self, bench_ns: u64) -> u64 {
        (bench_ns as f64 / self.0) as u64
    }

    /// A time of the machine as one of the bench.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "times are far below 2^52 ns, and not negative"
    )]
    pub(super) fn in_bench(self, machine_ns: u64) -> u64 {
        (machine_ns as f64 * self.0) as u64
    }
}
