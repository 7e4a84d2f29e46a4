//! How long the thread that grants rests between two looks.

use cxl_shm::clock::{Clock as _, SystemClock};

/// Looks in vain after which nothing is expected soon: about 3 seconds.
const IDLE_AFTER: u32 = 4096;
/// The rest between looks then, in milliseconds. A request that comes after such a time waits so much longer at most.
const IDLE_MS: u64 = 6;

/// Rests after `tries` looks in vain, one after another.
pub(crate) fn rest(clock: &SystemClock, tries: u32) {
    if tries < IDLE_AFTER {
        clock.pause(tries);
    } else {
        clock.sleep_ms(IDLE_MS);
    }
}
