//! Much memory, moved to the device in parts.

use crate::fabric::{Fabric, publish_all};
use crate::units::{LINE_BYTES, LineRange};

#[doc(hidden)]
/// Lines that are published in one go while a heartbeat has to beat: 4 MiB, a few milliseconds.
pub const PART_LINES: u64 = (4 << 20) / LINE_BYTES;

/// Publishes `lines` in parts, and calls `between` after each.
#[track_caller]
pub(crate) fn publish_in_parts<F: Fabric>(
    fabric: &F,
    lines: impl Iterator<Item = LineRange>,
    between: impl Fn(),
) {
    let mut ranges = lines.flat_map(|range| range.parts(PART_LINES)).peekable();
    while ranges.peek().is_some() {
        let mut room = PART_LINES;
        let mut part = Vec::new();
        while let Some(range) = ranges.next_if(|range| range.lines() <= room) {
            room -= range.lines();
            part.push(range);
        }
        publish_all(fabric, part);
        between();
    }
}
