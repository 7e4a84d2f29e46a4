//! Whether a device works: marked when it fails, and tried again later.

use std::io;

/// The first wait after a failure.
const RETRY_MS: u64 = 1_000;
/// The longest.
const RETRY_MS_MAX: u64 = 60_000;
/// Reads that fail or are too late, one after another, before the device is marked.
const READ_FAILURES: u32 = 3;

/// One direction of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// When it may be tried again.
    until_ms: Option<u64>,
    wait_ms: u64,
    /// Failures one after another.
    in_a_row: u32,
    /// All failures.
    pub(super) failures: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    pub(super) reads: Mark,
    pub(super) writes: Mark,
    /// The device had no room for a segment.
    pub(super) room: Mark,
}

impl Mark {
    /// Whether it may be used. A mark whose time is over counts as used up by this try.
    pub(super) fn allows(&mut self, now_ms: u64) -> bool {
        match self.until_ms {
            Some(until) if now_ms < until => false,
            Some(_) => {
                // One try: its success clears the mark, its failure sets a longer one.
                self.until_ms = Some(now_ms + self.wait_ms);
                true
            }
            None => true,
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.until_ms.is_some()
    }

    pub(super) fn succeeded(&mut self) {
        *self = Self { failures: self.failures, ..Self::default() };
    }

    pub(super) fn failed(&mut self, now_ms: u64, most: u32) {
        self.failures += 1;
        self.in_a_row += 1;
        if self.in_a_row >= most || self.until_ms.is_some() {
            self.wait_ms = (self.wait_ms * 2).clamp(RETRY_MS, RETRY_MS_MAX);
            self.until_ms = Some(now_ms + self.wait_ms);
        }
    }
}

impl Health {
    pub(super) fn read_failed(&mut self, now_ms: u64, error: &io::Error) {
        let gone = is_gone(error);
        self.reads.failed(now_ms, if gone { 1 } else { READ_FAILURES });
    }

    pub(super) fn read_was_late(&mut self, now_ms: u64) {
        self.reads.failed(now_ms, READ_FAILURES);
    }

    pub(super) fn write_was_late(&mut self, now_ms: u64) {
        self.writes.failed(now_ms, 1);
    }

    pub(super) fn write_failed(&mut self, now_ms: u64, error: &io::Error) {
        if is_full(error) {
            self.room.failed(now_ms, 1);
        } else {
            self.writes.failed(now_ms, 1);
        }
    }
}

/// Whether the device has no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::ESTALE))
}
