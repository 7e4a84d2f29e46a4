//! Processes of the machine, as `/proc` tells of them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cxl_shm::clock::SystemClock;

/// How long it may take: far longer than on a slow machine, to end a hang and not to measure.
const LIMIT_MS: u64 = 900_000;
const PERIOD_MS: u64 = 5;

/// Waits until `reached`, and fails where that never comes.
pub(crate) fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let clock = SystemClock::start();
    for _ in 0..LIMIT_MS / PERIOD_MS {
        if reached() {
            return;
        }
        clock.sleep_ms(PERIOD_MS);
    }
    panic!("it never got there: {what}");
}

/// The children that the main thread of a process has started.
pub(crate) fn children(parent: u32) -> BTreeSet<i32> {
    let file = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Files in /dev/shm that a process has mapped; none when it has ended.
pub(crate) fn mapped_files(pid: i32) -> BTreeSet<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.find("/dev/shm/").map(|at| &line[at..]));
    files.map(PathBuf::from).collect()
}
