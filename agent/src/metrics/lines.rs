//! Lines that the processes of this host moved between their caches and the device.

use cxl_shm::fabric::MovedLines;
use rackline_metrics::Family;

use super::HostSeen;

pub(super) fn families(seen: &HostSeen) -> [Family; 2] {
    let MovedLines { written_back, dropped, read_back } = seen.moved;
    [
        Family::counter(
            "rackline_flushed_lines_total",
            "Lines of 64 bytes that were flushed from the caches, by why: to publish them, or to \
             refresh them.",
        )
        .with(&[("why", "publish")], written_back)
        .with(&[("why", "refresh")], dropped),
        Family::counter(
            "rackline_read_back_lines_total",
            "Lines of 64 bytes that were read back after they were published.",
        )
        .with(&[], read_back),
    ]
}
