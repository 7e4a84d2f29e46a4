//! What the demonstration ends with: a table for people, or one JSON object.

use bytesize::ByteSize;
use serde::Serialize;

use super::offload::OffloadReport;
use super::serve::Served;
use crate::output::say;
use crate::rack::Restart;

/// The figures of a whole run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// Requests served.
    pub(super) requests: usize,
    /// Whether every answer had the same tokens as without the pool.
    pub(super) tokens_equal: bool,
    /// Tokens of all prompts.
    pub(super) prompt_tokens: usize,
    /// Tokens of all prompts that prefill found in the pool.
    pub(super) prefix_hit_tokens: usize,
    /// Of those, tokens whose blocks had left the pool, and came back from a drive.
    pub(super) drive_hit_tokens: usize,
    /// What became of the agents that were killed; `None` without drives.
    pub(super) agents_killed: Option<AgentsKilled>,
    /// Median time to first token without a pool.
    pub(super) ttft_cold_ms: f64,
    /// Median time to first token through the pool.
    pub(super) ttft_pool_ms: f64,
    /// Bytes published by all workers.
    pub(super) kv_bytes_published: u64,
    /// Bytes fetched by all workers.
    pub(super) kv_bytes_fetched: u64,
    /// Blocks that were evicted to make room for others.
    pub(super) blocks_evicted: u64,
    /// Blocks that the pool had no room for.
    pub(super) blocks_refused: u64,
    /// How often workers found the block that was damaged on purpose. They computed it again.
    pub(super) corrupt_blocks_found: u64,
    /// The last turns again, with offloaded layers; `None` without `--offload`.
    pub(super) offloaded: Option<OffloadReport>,
    /// Each request.
    pub(super) served: Vec<Served>,
}

/// All agents were killed, and started again.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct AgentsKilled {
    /// Requests served before.
    pub(super) before_request: usize,
    /// Blocks on the drives.
    #[serde(flatten)]
    pub(super) restart: Restart,
    /// Tokens of later prompts whose blocks came back from a drive.
    pub(super) drive_hit_tokens_after: usize,
}

impl AgentsKilled {
    pub(super) fn new(before_request: usize, restart: Restart, served: &[Served]) -> Self {
        let after = served.iter().skip(before_request);
        let drive_hit_tokens_after = after.map(|request| request.drive_tokens).sum();
        Self { before_request, restart, drive_hit_tokens_after }
    }
}

impl Report {
    pub(super) fn new(
        served: Vec<Served>,
        tokens_equal: bool,
        corrupt_blocks_found: u64,
        agents_killed: Option<AgentsKilled>,
        offloaded: Option<OffloadReport>,
    ) -> Self {
        Self {
            requests: served.len(),
            tokens_equal,
            prompt_tokens: served.iter().map(|request| request.prompt_tokens).sum(),
            prefix_hit_tokens: served.iter().map(|request| request.cached_tokens).sum(),
            drive_hit_tokens: served.iter().map(|request| request.drive_tokens).sum(),
            agents_killed,
            ttft_cold_ms: median(served.iter().map(|request| request.ttft_cold_ms)),
            ttft_pool_ms: median(served.iter().map(|request| request.ttft_pool_ms)),
            kv_bytes_published: served.iter().map(|request| request.kv_bytes_published).sum(),
            kv_bytes_fetched: served.iter().map(|request| request.kv_bytes_fetched).sum(),
            blocks_evicted: served.iter().map(|request| request.moved.evicted_blocks).sum(),
            blocks_refused: served.iter().map(|request| request.moved.refused_blocks).sum(),
            corrupt_blocks_found,
            offloaded,
            served,
        }
    }

    pub(super) fn print(&self) {
        say!(
            "\n {:>2}  {:<16} {:>4}  {:>6}  {:>6}  {:>9}  {:>9}  {:>7}  {:>10}  {:>10}",
            "#",
            "document",
            "turn",
            "prompt",
            "cached",
            "TTFT cold",
            "TTFT pool",
            "speedup",
            "published",
            "fetched"
        );
        for (index, request) in self.served.iter().enumerate() {
            say!(
                " {:>2}  {:<16} {:>4}  {:>6}  {:>6}  {:>6.0} ms  {:>6.0} ms  {:>6.1}x  {:>10}  {:>10}",
                index + 1,
                request.document,
                request.turn + 1,
                request.prompt_tokens,
                request.cached_tokens,
                request.ttft_cold_ms,
                request.ttft_pool_ms,
                request.ttft_cold_ms / request.ttft_pool_ms,
                ByteSize(request.kv_bytes_published).to_string(),
                ByteSize(request.kv_bytes_fetched).to_string(),
            );
        }
        say!(
            " all {:<16}       {:>6}  {:>6}  {:>6.0} ms  {:>6.0} ms  {:>6.1}x  {:>10}  {:>10}",
            "(TTFT: median)",
            self.prompt_tokens,
            self.prefix_hit_tokens,
            self.ttft_cold_ms,
            self.ttft_pool_ms,
            self.ttft_cold_ms / self.ttft_pool_ms,
            ByteSize(self.kv_bytes_published).to_string(),
            ByteSize(self.kv_bytes_fetched).to_string(),
        );
        let equal = if self.tokens_equal { "equal in every answer" } else { "DIFFERENT" };
        say!("\ntokens with and without the pool: {equal}");
        say!(
            "block damaged on purpose: found {} times by its checksum, computed again",
            self.corrupt_blocks_found
        );
        say!("blocks evicted to make room for others: {}", self.blocks_evicted);
        if let Some(killed) = self.agents_killed {
            self.print_tiers(killed);
        }
        if let Some(offloaded) = &self.offloaded {
            offloaded.print();
        }
        if self.blocks_refused > 0 {
            say!("blocks the pool had no room for: {}", self.blocks_refused);
        }
    }
}

impl Report {
    fn print_tiers(&self, AgentsKilled { restart, drive_hit_tokens_after, .. }: AgentsKilled) {
        let (hits, drives) = (self.prefix_hit_tokens, self.drive_hit_tokens);
        let percent = |tokens: usize| tokens * 100 / self.prompt_tokens.max(1);
        say!(
            "prompt tokens by tier: {} from the pool ({} %), {drives} from drives ({} %), {} computed",
            hits - drives,
            percent(hits - drives),
            percent(drives),
            self.prompt_tokens - hits
        );
        say!(
            "agents killed and started again: {}, and {drive_hit_tokens_after} tokens came from drives \
             since",
            restart.in_words()
        );
    }
}

/// The middle of the values; the lower of the two when there is an even number of them.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_ignores_outliers() {
        assert_eq!(median([900.0, 1.0, 3.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([5.0].into_iter()), 5.0);
    }
}
