//! What a process did with the pool, as plain counters.

use cxl_shm::host::MembershipLost;

use crate::replica::Miss;

/// Counters of one process since it attached, or of all processes of a host since it joined. A
/// snapshot: see [`ProcessState::metrics`](crate::ProcessState::metrics) and
/// [`Cache::host_metrics`](crate::Cache::host_metrics).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Metrics {
    /// Prefix lookups.
    pub lookups: u64,
    /// Blocks that were looked up.
    pub lookup_blocks: u64,
    /// Blocks of those that the caller got, all before them too: they were found, and held if that
    /// was asked for.
    pub lookup_hits: u64,
    /// Entries of publication logs that were read.
    pub log_entries: u64,
    /// Segments that were scanned, because their log was overrun or never read before.
    pub rescans: u64,
    /// Blocks that were fetched and valid.
    pub fetched_blocks: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Blocks of those that were copied into memory of a GPU.
    pub gpu_fetched_blocks: u64,
    /// Their bytes.
    pub gpu_fetched_bytes: u64,
    /// Blocks that were published, but for those from a drive.
    pub published_blocks: u64,
    /// Their bytes.
    pub published_bytes: u64,
    /// Blocks of those that were copied out of memory of a GPU.
    pub gpu_published_blocks: u64,
    /// Their bytes.
    pub gpu_published_bytes: u64,
    /// Blocks that were published from a drive.
    pub promoted_blocks: u64,
    /// Their bytes.
    pub promoted_bytes: u64,
    /// Complete blocks that a rebuilt directory of this node has, and that were not counted before.
    pub found_blocks: u64,
    /// Their bytes.
    pub found_bytes: u64,
    /// Complete blocks of this node that left the pool, for whatever reason.
    pub removed_blocks: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Blocks that were not published because they were in the pool.
    pub already_there: u64,
    /// Blocks that were not published for another reason.
    pub refused: u64,
    /// Blocks that were reserved, and freed without having been published.
    pub aborted_blocks: u64,
    /// Blocks that this process removed.
    pub retired_blocks: u64,
    /// Blocks of this node that this process evicted.
    pub evicted_blocks: u64,
    /// Blocks of those that made room for descriptors, and not for bytes.
    pub evicted_for_descriptors: u64,
    /// Times a publish had to make room itself.
    pub evictions_inline: u64,
    /// Blocks that were not evicted because a reader held them.
    pub spared_held: u64,
    /// Blocks that were held.
    pub held_blocks: u64,
    /// Blocks that were to be held, and were not.
    pub refused_holds: u64,
    /// Holds of those that were refused because the host's table of holds is full.
    pub holds_without_room: u64,
    /// Blocks on drives that lookups waited for.
    pub drive_blocks: u64,
    /// Blocks of those that were restored and held.
    pub restored_blocks: u64,
    /// Holds that were given up.
    pub released_blocks: u64,
    /// Uses of blocks that were told to their owners.
    pub told_uses: u64,
    /// Chunks that were added to the node's heap.
    pub chunks_added: u64,
    /// Chunks that were given back to the region.
    pub chunks_returned: u64,
    /// Chunks of vacant nodes that were given back to the region.
    pub inherited_chunks: u64,
    /// Times the heap's directory was built anew from the descriptors.
    pub sweeps: u64,
    /// Blocks freed that a dead process, or an earlier life of the node, was writing.
    pub reclaimed_blocks: u64,
    /// Faults of payload: pages that the device could not read (FAULT-F3).
    pub memory_faults: u64,
    /// Chunks that were noted as failed because of them (FAULT-C1).
    pub failed_chunks: u64,
    /// Processes of the host that ended without leaving, and that this process struck off.
    pub ended_processes: u64,
    /// Blocks on drives that prefetches asked for: at once, or as soon as earlier ones were answered.
    pub prefetch_asked_blocks: u64,
    /// Blocks of those that came into the pool.
    pub prefetch_restored_blocks: u64,
    /// Blocks of those that did not come before the deadline, or before a lookup asked itself.
    pub prefetch_late_blocks: u64,
    /// Blocks of those that the agent of the drive refused for another reason.
    pub prefetch_refused_blocks: u64,
    /// Blocks of those that were not wanted any more before they came.
    pub prefetch_cancelled_blocks: u64,
    /// Prefetched blocks that a lookup of this process found since: once each.
    pub prefetch_used_blocks: u64,
    /// Blocks that a lookup wanted while the prefetch was under way.
    pub prefetch_joined_blocks: u64,
    /// Blocks on drives that prefetches did not ask for, because too many others were under way.
    pub prefetch_full_blocks: u64,
    /// Layers of blocks that executors streamed, and that were right: each block once a layer.
    pub streamed_blocks: u64,
    /// Their bytes.
    pub streamed_bytes: u64,
    /// Blocks of which executors could not read a layer: lost, or damaged.
    pub stream_lost_blocks: u64,
    /// Layers for which an engine had to wait.
    pub stream_waits: u64,
    /// How long engines waited for them, in microseconds.
    pub stream_wait_us: u64,
    /// Entries of this process's replica.
    pub replica_blocks: u64,
    /// DRAM that the replica takes.
    pub replica_bytes: u64,
    /// 1 when this process does not take part any more ([`lost`](Self::lost)), else 0.
    pub membership_lost: u64,
    lost: Option<MembershipLost>,
    misses: [u64; Miss::ALL.len()],
}

/// Names the counters; the last three are what only a process has.
macro_rules! counters {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        impl Metrics {
            /// All counters but the misses, with the names of their fields.
            #[must_use]
            pub fn counters(&self) -> [(&'static str, u64); NAMES.len()] {
                [$((stringify!($name), self.$name)),*]
            }

            /// The counters of which the processes of a host have sums, in a fixed order.
            pub(super) fn summed_mut(&mut self) -> impl Iterator<Item = &mut u64> {
                let Self { $($name,)* misses, lost: _ } = self;
                [$($name),*].into_iter().take(NAMES.len() - OWN).chain(misses)
            }
        }
    };
}

counters! {
    lookups lookup_blocks lookup_hits log_entries rescans fetched_blocks fetched_bytes
    gpu_fetched_blocks gpu_fetched_bytes published_blocks published_bytes gpu_published_blocks
    gpu_published_bytes promoted_blocks promoted_bytes found_blocks found_bytes removed_blocks
    removed_bytes already_there refused aborted_blocks retired_blocks evicted_blocks
    evicted_for_descriptors evictions_inline spared_held held_blocks refused_holds
    holds_without_room drive_blocks restored_blocks released_blocks told_uses chunks_added
    chunks_returned inherited_chunks sweeps reclaimed_blocks memory_faults failed_chunks
    ended_processes prefetch_asked_blocks prefetch_restored_blocks prefetch_late_blocks prefetch_refused_blocks
    prefetch_cancelled_blocks prefetch_used_blocks prefetch_joined_blocks prefetch_full_blocks
    streamed_blocks streamed_bytes stream_lost_blocks stream_waits stream_wait_us
    replica_blocks replica_bytes membership_lost
}

/// Counters of which the processes of a host have sums: all but the last three, and the misses.
pub(super) const SUMMED: usize = NAMES.len() - OWN + Miss::ALL.len();
const OWN: usize = 3;

impl Metrics {
    /// Adds what was counted to these counters.
    pub(super) fn add(&mut self, counted: &mut Self) {
        for (sum, counted) in self.summed_mut().zip(counted.summed_mut()) {
            *sum += *counted;
        }
    }

    /// Why this process does not take part in the pool any more: every call fails then. `None`
    /// while it does.
    #[must_use]
    pub fn lost(&self) -> Option<MembershipLost> {
        self.lost
    }

    /// Notes why this process does not take part any more. False when it is known already.
    pub(crate) fn lose(&mut self, lost: MembershipLost) -> bool {
        self.membership_lost = 1;
        let is_first = self.lost.is_none();
        self.lost.get_or_insert(lost);
        is_first
    }

    /// Fetches that failed for `reason`.
    #[must_use]
    pub fn misses(&self, reason: Miss) -> u64 {
        Miss::ALL.iter().zip(self.misses).find(|(miss, _)| **miss == reason).map_or(0, |(_, n)| n)
    }

    /// Fetches that failed, with their reasons.
    pub fn all_misses(&self) -> impl Iterator<Item = (Miss, u64)> {
        Miss::ALL.into_iter().zip(self.misses)
    }

    pub(crate) fn count_miss(&mut self, reason: Miss) {
        let counters = Miss::ALL.iter().zip(&mut self.misses);
        for (_, counter) in counters.filter(|(miss, _)| **miss == reason) {
            *counter += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_name() {
        let text = format!("{:#?}", Metrics::default());
        let fields = text.lines().filter_map(|line| line.strip_suffix(": 0,")).map(str::trim);
        let fields: Vec<_> = fields.collect();
        assert_eq!(Metrics::default().counters().map(|(name, _)| name).to_vec(), fields);
    }

    #[test]
    fn every_reason_has_a_counter_and_a_label_of_its_own() {
        let mut metrics = Metrics::default();
        for (count, reason) in (1..).zip(Miss::ALL) {
            for _ in 0..count {
                metrics.count_miss(reason);
            }
        }
        let mut labels = Vec::new();
        for (count, reason) in (1..).zip(Miss::ALL) {
            assert_eq!(metrics.misses(reason), count, "{reason:?}");
            assert!(!labels.contains(&reason.label()));
            labels.push(reason.label());
        }
    }
}
