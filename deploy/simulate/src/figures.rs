//! What came of a run.

use serde::Serialize;

/// Figures of one run. Times between tokens are as readers see them.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Figures {
    /// Tokens that were computed.
    pub tokens: u64,
    /// Requests that were served whole.
    pub served: u64,
    /// Requests that do not fit the machine, not even alone.
    pub rejected: u64,
    /// Share of the times between two tokens (TBT) that keep the promise, in percent. Those of
    /// rejected requests do not.
    pub tbt_attainment_percent: f64,
    /// Share of the requests whose mean time a token (TPOT) keeps the promise, in percent. Rejected
    /// ones do not.
    pub tpot_attainment_percent: f64,
    /// Half of the times between two tokens are no longer; `None` when so many tokens never came,
    /// because their requests were rejected.
    pub tbt_p50_ms: Option<f64>,
    /// 95 of 100 are no longer.
    pub tbt_p95_ms: Option<f64>,
    /// 99 of 100 are no longer.
    pub tbt_p99_ms: Option<f64>,
    /// Tokens a second, from the first arrival to the last token.
    pub tokens_per_s: f64,
    /// From the arrival to the first token, on average.
    pub mean_wait_ms: f64,
    /// Share of the time of iterations in which the GPU waits for KV, in percent.
    pub stall_percent: f64,
    /// How often a running request was paused.
    pub pauses: u64,
}

/// What a run collects.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) gaps_ns: Vec<u64>,
    /// Of each request: mean time a token.
    pub(crate) tpot_ns: Vec<u64>,
    pub(crate) waits_ns: Vec<u64>,
    pub(crate) tokens: u64,
    pub(crate) rejected: u64,
    /// Times between two tokens that rejected requests did not get.
    pub(crate) rejected_times: u64,
    pub(crate) pauses: u64,
    pub(crate) stall_ns: u64,
    pub(crate) iteration_ns: u64,
    /// When the first request arrived.
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
}

impl Collected {
    pub(crate) fn figures(mut self, slo_ns: u64) -> Figures {
        self.gaps_ns.sort_unstable();
        let kept = |times: &[u64], never: u64| {
            let kept = times.iter().filter(|ns| **ns <= slo_ns).count();
            percent(kept as u64, times.len() as u64 + never)
        };
        let within = |percent| {
            let within_ns = percentile(&self.gaps_ns, self.rejected_times, percent);
            within_ns.map(|ns| ns as f64 / 1e6)
        };
        let waits: u128 = self.waits_ns.iter().copied().map(u128::from).sum();
        let mean_wait_ns = waits / (self.waits_ns.len() as u128).max(1);
        let took_ns = self.end_ns.saturating_sub(self.begin_ns).max(1);
        Figures {
            tokens: self.tokens,
            served: self.tpot_ns.len() as u64,
            rejected: self.rejected,
            tbt_attainment_percent: kept(&self.gaps_ns, self.rejected_times),
            tpot_attainment_percent: kept(&self.tpot_ns, self.rejected),
            tbt_p50_ms: within(50),
            tbt_p95_ms: within(95),
            tbt_p99_ms: within(99),
            tokens_per_s: self.tokens as f64 / (took_ns as f64 / 1e9),
            mean_wait_ms: mean_wait_ns as f64 / 1e6,
            stall_percent: percent(self.stall_ns, self.iteration_ns),
            pauses: self.pauses,
        }
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// The least of the times than which `percent` of 100 are no longer, of the sorted ones and of
/// `never` that did not end. `None` when it is one of these, or when there are none.
pub(crate) fn percentile(sorted: &[u64], never: u64, percent: u64) -> Option<u64> {
    let times = sorted.len() as u128 + u128::from(never);
    let rank = (times * u128::from(percent)).div_ceil(100).max(1);
    sorted.get(usize::try_from(rank - 1).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_are_summed_and_the_time_before_the_first_arrival_is_not_counted() {
        let collected = Collected {
            waits_ns: vec![u64::MAX, u64::MAX, u64::MAX],
            tokens: 10,
            begin_ns: 5_000_000_000,
            end_ns: 10_000_000_000,
            ..Collected::default()
        };
        let figures = collected.figures(1);
        assert_eq!((figures.tokens_per_s, figures.mean_wait_ms), (2.0, u64::MAX as f64 / 1e6));
    }
}
