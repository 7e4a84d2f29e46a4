//! What the agent shows: figures of the tiers, of this host and of its drives. Their page is
//! `deploy/docs/metrics.md`.

mod drives;
mod host;
mod lines;
mod locks;
mod tiers;

use std::sync::{Mutex, PoisonError};

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::MovedLines;
use cxl_shm::host::{LockFigures, LockKind};
use kv_cache::{Histogram, Latency, Metrics, Occupancy};
use kv_drive::store::Store;
use rackline::LocalCache;
use rackline_metrics::Family;

use crate::figures::Figures;

/// What one look has shown of the pool and of the processes of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSeen {
    occupancy: Occupancy,
    /// Sums over the processes of the host.
    sums: Metrics,
    latencies: [Histogram; Latency::ALL.len()],
    locks: [LockFigures; LockKind::ALL.len()],
    moved: MovedLines,
    seen_ms: u64,
}

/// The last look: a thread of the agent looks, and requests for figures wait for nothing.
#[derive(Debug)]
pub(crate) struct LastSeen {
    clock: SystemClock,
    seen: Mutex<Option<HostSeen>>,
}

impl LastSeen {
    pub(crate) fn new() -> Self {
        Self { clock: SystemClock::start(), seen: Mutex::default() }
    }

    /// Looks.
    pub(crate) fn look(&self, cache: &LocalCache<'_>, clock: &impl Clock) {
        let figures = cache.host_figures();
        let seen = HostSeen {
            occupancy: cache.occupancy(clock),
            sums: figures.metrics(),
            latencies: Latency::ALL.map(|latency| figures.latencies(latency)),
            locks: LockKind::ALL.map(|kind| cache.member().lock_figures(kind)),
            moved: cache.member().moved_lines(),
            seen_ms: self.clock.now_ms(),
        };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }

    pub(crate) fn get(&self) -> Option<HostSeen> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long ago the last look was, or since the start when there was none.
    pub(crate) fn age_ms(&self) -> u64 {
        self.clock.now_ms().saturating_sub(self.get().map_or(0, |seen| seen.seen_ms))
    }
}

/// All figures. What the first look shows is left out before it. An agent without drives has no store.
pub(crate) fn families(
    seen: Option<HostSeen>,
    figures: &Figures,
    store: Option<&Store>,
) -> Vec<Family> {
    let mut families = tiers::families(seen.as_ref(), figures, store);
    families.extend(seen.iter().flat_map(host::families));
    families.extend(seen.iter().flat_map(locks::families));
    families.extend(seen.iter().flat_map(lines::families));
    families.extend(drives::families(figures, store));
    families
}

/// The buckets of a histogram, in seconds, and the sum.
fn seconds(histogram: &Histogram) -> (Vec<(Option<f64>, u64)>, f64) {
    let bound = |bucket| Histogram::bound_us(bucket).map(in_seconds);
    let buckets = histogram.buckets.iter().enumerate();
    (buckets.map(|(at, count)| (bound(at), *count)).collect(), in_seconds(histogram.sum_us))
}

#[expect(clippy::cast_precision_loss, reason = "a sum of times is no count")]
fn in_seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
