//! What a live replay measures.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Every latency is kept to three digits.
const DIGITS: u8 = 3;

/// Latencies of one kind of call, and what it moved.
#[derive(Debug)]
pub(super) struct Calls {
    histogram: Histogram<u64>,
    total_ns: u64,
    blocks: u64,
}

impl Calls {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { histogram: Histogram::new(DIGITS)?, total_ns: 0, blocks: 0 })
    }

    /// Counts a call that took so long for so many blocks.
    pub(super) fn count(&mut self, ns: u64, blocks: u64) -> Result<()> {
        self.histogram.record(ns)?;
        self.total_ns += ns;
        self.blocks += blocks;
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(super) fn figures(&self, block_bytes: u64) -> Figures {
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |quantile| us(self.histogram.value_at_quantile(quantile));
        let seconds = self.total_ns as f64 / 1e9;
        let per_s = |count: u64| if self.total_ns == 0 { 0.0 } else { count as f64 / seconds };
        let bytes = self.blocks * block_bytes;
        Figures {
            calls: self.histogram.len(),
            blocks: self.blocks,
            bytes,
            blocks_per_s: per_s(self.blocks),
            bytes_per_s: per_s(bytes),
            latency_us: Latency {
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                max: us(self.histogram.max()),
            },
        }
    }
}

/// Of all calls of one kind. Rates are over the time that was spent in these calls.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    calls: u64,
    pub(super) blocks: u64,
    pub(super) bytes: u64,
    blocks_per_s: f64,
    pub(super) bytes_per_s: f64,
    pub(super) latency_us: Latency,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_rates_are_those_of_the_calls() {
        let mut calls = Calls::new().unwrap();
        for us in 1..=100 {
            calls.count(us * 1000, 2).unwrap();
        }
        let figures = calls.figures(10);
        let Latency { p50, p90, p99, max } = figures.latency_us;
        for (found, expected) in [(p50, 50.0), (p90, 90.0), (p99, 99.0), (max, 100.0)] {
            assert!((found - expected).abs() < 0.1, "{found} is not {expected}");
        }
        assert_eq!((figures.calls, figures.blocks, figures.bytes), (100, 200, 2000));
        // 200 blocks in 5.05 ms.
        assert!((figures.blocks_per_s - 200.0 / 0.00505).abs() < 1.0);
        assert_eq!(Calls::new().unwrap().figures(10).bytes_per_s, 0.0);
    }
}
