//! The agent itself, and each of its drives. A drive has the name of its folder, as it was given.

use kv_cache::RestoreOutcome;
use kv_drive::io::Direction;
use kv_drive::store::Store;
use rackline_metrics::Family;

use super::seconds;
use crate::figures::{Figures, RefusedBy};

pub(super) fn families(figures: &Figures, store: Option<&Store>) -> Vec<Family> {
    let mut families = of_agent(figures);
    families.extend(of_backups(figures));
    if let Some(store) = store {
        families.extend(of_folders(store));
        families.extend(of_transfers(store));
    }
    families
}

fn of_agent(figures: &Figures) -> Vec<Family> {
    let mut requests = Family::counter(
        "rackline_restore_requests_total",
        "Requests of hosts for a block on the drives of this one, by outcome.",
    );
    for outcome in RestoreOutcome::ALL {
        requests.push(&[("outcome", outcome.label())], figures.answers_of(outcome));
    }
    let gauge = |name, help, value| Family::gauge(name, help).with(&[], value);
    vec![
        requests,
        gauge(
            "rackline_backlog_bytes",
            "Bytes of blocks that wait to be backed up.",
            figures.backlog_bytes,
        ),
        gauge(
            "rackline_announced_blocks",
            "Blocks on the drives that other hosts can find.",
            figures.announced,
        ),
        gauge(
            "rackline_unannounced_blocks",
            "Blocks on the drives that no other host finds: the directory is full.",
            figures.unannounced,
        ),
        gauge(
            "rackline_agent_ready",
            "1 when the blocks of the drives are announced and backups have begun, or without drives.",
            figures.is_ready.into(),
        ),
    ]
}

fn of_backups(figures: &Figures) -> [Family; 4] {
    let not_made = Family::counter(
        "rackline_backups_not_made_total",
        "Blocks that were not backed up, by reason. Where that can pass they are tried again.",
    );
    let not_made = not_made
        .with(&[("reason", "backlog_full")], figures.dropped)
        .with(&[("reason", "too_many_wait")], figures.dropped_unlisted)
        .with(&[("reason", "left_pool")], figures.lost_before)
        .with(&[("reason", "drive_silent")], figures.given_up)
        .with(&[("reason", "not_admitted")], figures.not_admitted);
    let refused = RefusedBy::ALL.into_iter().zip(figures.refused);
    let not_made = refused
        .fold(not_made, |family, (why, blocks)| family.with(&[("reason", why.label())], blocks));
    let windows =
        Family::counter("rackline_windows_total", "Windows that engines left for writes.");
    let used =
        Family::counter("rackline_windows_used_total", "Windows of those in which a write began.");
    let begun = Family::counter(
        "rackline_backup_write_bytes_total",
        "Bytes of backups whose write began, by the reason why it began then.",
    );
    let begun = begun
        .with(&[("reason", "window")], figures.window_bytes)
        .with(&[("reason", "idle")], figures.idle_bytes)
        .with(&[("reason", "late")], figures.late_bytes);
    [not_made, windows.with(&[], figures.windows), used.with(&[], figures.windows_used), begun]
}

fn of_folders(store: &Store) -> Vec<Family> {
    let mut up = Family::gauge("rackline_drive_up", "1 when the folder is open.");
    let mut capacity =
        Family::gauge("rackline_drive_capacity_bytes", "Bytes that blocks may take on the drive.");
    let mut used = Family::gauge("rackline_drive_used_bytes", "Bytes that blocks take of those.");
    let mut full = Family::gauge(
        "rackline_drive_full",
        "1 while the drive takes no block: of `capacity` all is in use, or the `device` has no room.",
    );
    let mut blocks = Family::gauge("rackline_drive_blocks", "Blocks that are found on the drive.");
    let mut damaged = Family::counter(
        "rackline_drive_damaged_blocks_total",
        "Blocks that were found damaged on the drive, and removed.",
    );
    let mut written = Family::counter(
        "rackline_drive_lifetime_written_bytes_total",
        "Bytes written since the folder was made, payload and metadata.",
    );
    let mut worn = Family::gauge(
        "rackline_drive_writes_per_day",
        "How many times a day the capacity was written since the folder was made.",
    );
    for (path, volume) in store.each_folder() {
        let path = path.display().to_string();
        let label = [("drive", path.as_str())];
        up.push(&label, volume.is_some().into());
        let Some(volume) = volume else { continue };
        let (usage, endurance) = (volume.usage(), volume.endurance());
        capacity.push(&label, usage.room());
        used.push(&label, usage.in_use());
        for (reason, is_full) in ["capacity", "device"].into_iter().zip(volume.is_full()) {
            full.push(&[label[0], ("reason", reason)], is_full.into());
        }
        blocks.push(&label, usage.blocks);
        damaged.push(&label, volume.damaged());
        written.push(&label, endurance.written_bytes);
        worn.push_real(&label, endurance.drive_writes_per_day);
    }
    vec![up, capacity, used, full, blocks, damaged, written, worn]
}

fn of_transfers(store: &Store) -> Vec<Family> {
    let mut bytes = Family::counter(
        "rackline_drive_transferred_bytes_total",
        "Bytes of payload that were read or written, in whole pages; compaction is among them.",
    );
    let mut took = Family::histogram(
        "rackline_drive_transfer_seconds",
        "How long transfers of payload took, the wait in the queue included.",
    );
    let mut queued = Family::gauge(
        "rackline_drive_queued_transfers",
        "Transfers of payload that wait or are under way.",
    );
    let mut refused = Family::counter(
        "rackline_drive_refused_transfers_total",
        "Transfers that were refused because the queue was full.",
    );
    let mut errors = Family::counter(
        "rackline_drive_errors_total",
        "Reads and writes that failed or came too late, of payload and of metadata.",
    );
    let mut marked = Family::gauge(
        "rackline_drive_marked",
        "1 while the drive is not read, or not written, because it failed a moment ago.",
    );
    let directions = [("read", Direction::Read), ("write", Direction::Write)];
    for (path, volume) in store.volumes() {
        let path = path.display().to_string();
        for ((name, direction), (failed, is_marked)) in
            directions.into_iter().zip(volume.failures())
        {
            let labels = [("drive", path.as_str()), ("direction", name)];
            let traffic = volume.traffic(direction);
            bytes.push(&labels, traffic.bytes);
            let (buckets, sum) = seconds(&traffic.took);
            took.push_histogram(&labels, buckets, sum);
            queued.push(&labels, traffic.queued);
            refused.push(&labels, traffic.refused);
            errors.push(&labels, failed);
            marked.push(&labels, is_marked.into());
        }
    }
    vec![bytes, took, queued, refused, errors, marked]
}
