//! How the processes of this host came to locks.

use cxl_shm::host::{Behind, LockKind};
use rackline_metrics::Family;

use super::{HostSeen, seconds};

pub(super) fn families(seen: &HostSeen) -> [Family; 4] {
    let mut took = Family::histogram(
        "rackline_lock_wait_seconds",
        "How long acquisitions of locks took, from the first look to the lock. The count is that of \
         acquisitions.",
    );
    let mut waits = Family::counter(
        "rackline_lock_waits_total",
        "Acquisitions that had to wait behind a thread of this host, or behind another host.",
    );
    let mut handovers = Family::counter(
        "rackline_lock_handovers_total",
        "Acquisitions of locks between hosts, by where the lock came from.",
    );
    let mut timeouts = Family::counter(
        "rackline_lock_timeouts_total",
        "Waits for locks that ended at their time-out.",
    );
    for (kind, figures) in LockKind::ALL.into_iter().zip(&seen.locks) {
        let lock = ("lock", kind.label());
        let (buckets, sum) = seconds(&figures.took);
        took.push_histogram(&[lock], buckets, sum);
        timeouts.push(&[lock], figures.timed_out);
        let behind: &[Behind] =
            if kind.is_between_hosts() { &Behind::ALL } else { &[Behind::Host] };
        for behind in behind {
            waits.push(&[lock, ("behind", behind.label())], figures.waits(*behind));
        }
        if kind.is_between_hosts() {
            let granted = figures.took.count().saturating_sub(figures.passed);
            handovers.push(&[lock, ("from", "host")], figures.passed);
            handovers.push(&[lock, ("from", "rack")], granted);
        }
    }
    [took, waits, handovers, timeouts]
}

#[cfg(test)]
mod tests {
    use cxl_shm::fabric::MovedLines;
    use cxl_shm::host::LockFigures;
    use kv_cache::{Histogram, Latency, Metrics, Occupancy};

    use super::*;

    #[test]
    fn locks_are_shown_with_their_kinds() {
        let mut locks = [LockFigures::default(); LockKind::ALL.len()];
        let mut took = Histogram::default();
        [1, 1, 300].into_iter().for_each(|us| took.add(us));
        locks[1] = LockFigures { took, behind_host: 2, behind_rack: 1, passed: 1, timed_out: 4 };
        locks[5] = LockFigures { took, behind_host: 3, ..LockFigures::default() };
        let seen = HostSeen {
            occupancy: Occupancy::default(),
            sums: Metrics::default(),
            latencies: [Histogram::default(); Latency::ALL.len()],
            locks,
            moved: MovedLines::default(),
            seen_ms: 0,
        };
        let [took, waits, handovers, timeouts] = families(&seen);
        let (table, heap) = (("lock", "chunk_table"), ("lock", "heap"));
        let count = |lock| {
            let of_lock = took.samples().filter(|it| it.label("lock") == Some(lock));
            of_lock.filter(|it| it.suffix() == "_count").map(|it| it.value()).sum::<f64>()
        };
        assert_eq!(["chunk_table", "heap", "roots"].map(count), [3.0, 3.0, 0.0]);
        let behind = |lock, behind| waits.value(&[lock, ("behind", behind)]);
        assert_eq!((behind(table, "host"), behind(table, "rack")), (Some(2.0), Some(1.0)));
        assert_eq!((behind(heap, "host"), behind(heap, "rack")), (Some(3.0), None));
        let from = |lock, from| handovers.value(&[lock, ("from", from)]);
        assert_eq!((from(table, "host"), from(table, "rack")), (Some(1.0), Some(2.0)));
        assert_eq!(from(heap, "host"), None);
        assert_eq!((timeouts.value(&[table]), timeouts.value(&[heap])), (Some(4.0), Some(0.0)));
    }
}
