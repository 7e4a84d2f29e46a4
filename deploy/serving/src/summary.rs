//! What a run comes to.

use serde::Serialize;

use crate::numbers::ns;
use crate::served::{Served, Times};

/// How times are spread, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean_ms: f64,
    /// The median.
    pub p50_ms: f64,
    /// Nine of ten are not longer.
    pub p90_ms: f64,
    /// 99 of 100 are not longer.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Spread {
    /// `None` of no times.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "runs have less than 2^52 requests")]
    pub fn of(mut times_ns: Vec<u64>) -> Option<Self> {
        times_ns.sort_unstable();
        let count = times_ns.len();
        let longest = *times_ns.last()?;
        // The shortest time that so many percent are not longer than.
        let at = |percent: usize| ns(times_ns[(count * percent).div_ceil(100).max(1) - 1]) / 1e6;
        let sum: f64 = times_ns.iter().map(|it| ns(*it)).sum();
        Some(Self {
            mean_ms: sum / count as f64 / 1e6,
            p50_ms: at(50),
            p90_ms: at(90),
            p99_ms: at(99),
            max_ms: ns(longest) / 1e6,
        })
    }
}

/// The figures of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// Requests that were answered.
    pub requests: u64,
    /// From the first arrival to the last token.
    pub elapsed_s: f64,
    /// Requests answered in a second.
    pub requests_per_s: f64,
    /// Tokens of answers in a second.
    pub output_tokens_per_s: f64,
    /// To the first token.
    pub ttft: Spread,
    /// From token to token, the mean of each request. `None` when all answers have one token.
    pub token: Option<Spread>,
    /// Whole blocks of all prompts.
    pub blocks: u64,
    /// Those that prefill workers found and read.
    pub hits: u64,
    /// Blocks that drives restored for them.
    pub from_drives: u64,
    /// Those that were written.
    pub published: u64,
    /// Those that the pool had no room for.
    pub refused: u64,
    /// Those that decode workers did not find, and computed.
    pub lost: u64,
    /// Processor time of the calls of the pool, the mean of a request; 0 in virtual time.
    pub cpu_ms: f64,
    /// Requests that began again, because a worker died.
    pub restarted: u64,
    /// Blocks that these found when they began again, which are no hits.
    pub found_again: u64,
    /// The mean of each stage up to the first token, in milliseconds, in order.
    pub stages_ms: Vec<(&'static str, f64)>,
}

impl Summary {
    /// `None` of no requests.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub fn of(served: &[Served]) -> Option<Self> {
        let ttft = Spread::of(served.iter().map(|it| it.ttft_ns).collect())?;
        let first_ns = served.iter().map(|it| it.arrived_ns).min()?;
        let last_ns = served.iter().map(|it| it.arrived_ns + it.latency_ns).max()?;
        let elapsed_s = ns(last_ns - first_ns).max(1.0) / 1e9;
        let sum = |of: fn(&Served) -> u64| served.iter().map(of).sum::<u64>();
        let requests = served.len() as u64;
        let stages_ms = Times::TO_FIRST_TOKEN.map(|(name, of)| {
            let all: f64 = served.iter().map(|it| ns(of(&it.times))).sum();
            (name, all / requests as f64 / 1e6)
        });
        Some(Self {
            requests,
            elapsed_s,
            requests_per_s: requests as f64 / elapsed_s,
            output_tokens_per_s: sum(|it| it.output_tokens) as f64 / elapsed_s,
            ttft,
            token: Spread::of(served.iter().filter_map(Served::token_ns).collect()),
            blocks: sum(|it| it.blocks),
            hits: sum(|it| it.hits),
            from_drives: sum(|it| it.from_drives),
            published: sum(|it| it.published),
            refused: sum(|it| it.refused),
            lost: sum(|it| it.lost),
            cpu_ms: ns(sum(|it| it.cpu_ns)) / requests as f64 / 1e6,
            restarted: served.iter().filter(|it| it.restarts > 0).count() as u64,
            found_again: sum(|it| it.found_again),
            stages_ms: stages_ms.to_vec(),
        })
    }

    /// Hits as a share of all blocks, from 0 to 1; 0 when there were none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    pub fn hit_rate(&self) -> f64 {
        if self.blocks == 0 { 0.0 } else { self.hits as f64 / self.blocks as f64 }
    }
}
