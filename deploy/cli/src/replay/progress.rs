//! Progress bars of a replay: on the terminal only, and not in what is piped.

use indicatif::{ProgressBar, ProgressStyle};
use kv_cache::evict::policy::PolicyKind;
use kv_drive::policy::AdmissionKind;

/// Of reading a trace of `size_bytes`.
pub(super) fn reading(size_bytes: u64) -> ProgressBar {
    styled(size_bytes, "reading [{bar:30}] {bytes} of {total_bytes}")
}

/// Of a replay of so many requests.
pub(super) fn replaying(requests: usize, policy: PolicyKind, capacity: Option<u32>) -> ProgressBar {
    let bar = styled(requests as u64, "{msg} [{bar:30}] {pos} of {len} requests, {per_sec}");
    let capacity = capacity.map_or("unlimited".to_owned(), |blocks| format!("{blocks} blocks"));
    bar.with_message(format!("{policy}, {capacity}"))
}

/// Of a replay of so many requests with a drive.
pub(super) fn tiers(requests: usize, admission: AdmissionKind) -> ProgressBar {
    let bar = styled(requests as u64, "{msg} [{bar:30}] {pos} of {len} requests, {per_sec}");
    bar.with_message(admission.name())
}

/// Of a live replay of so many requests.
pub(super) fn live(requests: usize) -> ProgressBar {
    styled(requests as u64, "live [{bar:30}] {pos} of {len} requests, {per_sec}, {eta} left")
}

fn styled(length: u64, template: &str) -> ProgressBar {
    // A template that cannot be parsed leaves the plain bar.
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}
