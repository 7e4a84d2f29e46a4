//! How long each tier takes to bring KV to the GPU, and what hides it.

use std::str::FromStr;

use bytesize::ByteSize;
use serde::Serialize;

use super::prompt::Prompt;
use crate::output::say;

/// A place where KV lies, as the GPU reaches it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Tier {
    pub(super) name: &'static str,
    /// Bytes that it brings in a second, in units of 10^9.
    gb_s: f64,
    /// Time from asking to the first byte.
    latency_us: f64,
    /// Where the two figures are from.
    source: &'static str,
}

/// Name of the tier that host memory is reached through.
pub(super) const PCIE: &str = "pcie";
/// Name of the tier of drives.
pub(super) const NVME: &str = "nvme";

/// The tiers, the fastest first. A line rate has no latency: none is promised for it.
const USUAL: [Tier; 5] = [
    Tier { name: "hbm", gb_s: 3350.0, latency_us: 0.0, source: "data sheet of the H100 SXM" },
    Tier { name: PCIE, gb_s: 63.0, latency_us: 0.0, source: "line rate of PCIe 5.0 x16" },
    Tier { name: "cxl", gb_s: 10.1, latency_us: 0.64, source: "published for Niagara 2.0" },
    Tier { name: NVME, gb_s: 14.5, latency_us: 60.0, source: "data sheet of one D7-PS1010" },
    Tier { name: "network", gb_s: 50.0, latency_us: 0.0, source: "line rate of 400 Gbit/s" },
];

/// The tiers with the figures that were given for some of them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tiers(Vec<Tier>);

impl Default for Tiers {
    fn default() -> Self {
        Self(USUAL.into())
    }
}

impl Tiers {
    /// Bytes a second of the tier `name`, which is one of the usual ones.
    pub(super) fn bytes_s(&self, name: &str) -> f64 {
        let tier = self.0.iter().find(|tier| tier.name == name);
        tier.map_or(f64::NAN, |tier| tier.gb_s * 1e9)
    }
}

impl FromStr for Tiers {
    type Err = String;

    /// "nvme=29,network=25:3": GB/s, and after a colon microseconds of latency.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut tiers = Self::default();
        for given in text.split(',').filter(|given| !given.is_empty()) {
            let wrong = || {
                format!(
                    "\"{given}\" is no tier: write NAME=GB/S or NAME=GB/S:MICROSECONDS, with \
                     hbm, pcie, cxl, nvme or network as the name and a rate above 0"
                )
            };
            let (name, figures) = given.split_once('=').ok_or_else(wrong)?;
            let (rate, latency) = figures.split_once(':').unwrap_or((figures, "0"));
            let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
            let gb_s = number(rate).filter(|rate| *rate > 0.0).ok_or_else(wrong)?;
            let latency_us = number(latency).filter(|latency| *latency >= 0.0).ok_or_else(wrong)?;
            let tier = tiers.0.iter_mut().find(|tier| tier.name == name).ok_or_else(wrong)?;
            *tier = Tier { name: tier.name, gb_s, latency_us, source: "given" };
        }
        Ok(tiers)
    }
}

/// What one tier takes to bring KV to one rank.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Times {
    tier: &'static str,
    gb_s: f64,
    latency_us: f64,
    source: &'static str,
    /// A block, all its layers in one piece.
    block_us: f64,
    /// One layer of a block alone.
    block_layer_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<PromptTimes>,
}

/// What one tier takes to bring the KV of a prompt to one rank, layer by layer.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct PromptTimes {
    prompt_ms: f64,
    /// A layer of the prompt. A layer that computes for so long hides the transfer of the next.
    slack_needed_ms: f64,
    /// What stays unhidden where a layer computes for as long as given: the first layer, and of
    /// each other layer what its transfer takes longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    stall_ms: Option<f64>,
}

impl Times {
    /// The times of all tiers for blocks of `block_bytes` in `layers` layers.
    pub(super) fn of(
        tiers: &Tiers,
        block_bytes: u64,
        layers: u32,
        prompt: Option<&Prompt>,
        layer_ms: Option<f64>,
    ) -> Vec<Self> {
        let times = |tier: &Tier| {
            let us = |bytes: f64| tier.latency_us + bytes / (tier.gb_s * 1e3);
            let block = block_bytes as f64;
            let of_prompt = |prompt: &Prompt| {
                let slack_needed_ms = us(prompt.rank_layer_bytes as f64) / 1e3;
                let others = f64::from(layers - 1);
                let stall =
                    |layer_ms| slack_needed_ms + others * f64::max(slack_needed_ms - layer_ms, 0.0);
                PromptTimes {
                    prompt_ms: us(prompt.rank_bytes as f64) / 1e3,
                    slack_needed_ms,
                    stall_ms: layer_ms.map(stall),
                }
            };
            Self {
                tier: tier.name,
                gb_s: tier.gb_s,
                latency_us: tier.latency_us,
                source: tier.source,
                block_us: us(block),
                block_layer_us: us(block / f64::from(layers)),
                prompt: prompt.map(of_prompt),
            }
        };
        tiers.0.iter().map(times).collect()
    }

    pub(super) fn print_all(all: &[Self], block_bytes: u64) {
        let prompt = all.iter().any(|times| times.prompt.is_some());
        let stall = all.iter().any(|times| times.prompt.is_some_and(|it| it.stall_ms.is_some()));
        let mut head = format!(
            "  {:<8} {:>8} {:>11} {:>12} {:>14}",
            "tier",
            "GB/s",
            "latency us",
            format!("{} us", ByteSize(block_bytes)),
            "its layer us"
        );
        if prompt {
            head += &format!(" {:>11} {:>16}", "prompt ms", "slack needed ms");
        }
        if stall {
            head += &format!(" {:>9}", "stall ms");
        }
        say!("{head}  figures from");
        for times in all {
            let mut line = format!(
                "  {:<8} {:>8} {:>11} {:>12.2} {:>14.3}",
                times.tier, times.gb_s, times.latency_us, times.block_us, times.block_layer_us
            );
            if let Some(prompt) = times.prompt {
                line += &format!(" {:>11.2} {:>16.3}", prompt.prompt_ms, prompt.slack_needed_ms);
                if let Some(stall_ms) = prompt.stall_ms {
                    line += &format!(" {stall_ms:>9.2}");
                }
            }
            say!("{line}  {}", times.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use kv_cache::{Attention, Dtype, KvGeometry};

    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected.abs().max(1.0), "{found}: {expected}");
    }

    /// A rate of 1 GB/s is 1,000 bytes a microsecond: times can be read off the bytes.
    #[test]
    fn times_follow_from_bytes_rate_and_latency() {
        let attention = Attention::Heads { kv_heads: 8, head_dim: 128 };
        let geometry = KvGeometry::new(80, attention, Dtype::Bf16, 16).unwrap();
        let prompt = Prompt::new(&geometry, 1600).unwrap();
        let tiers = "nvme=1:100,cxl=10".parse().unwrap();
        let block = geometry.rank_block_bytes();
        let all = Times::of(&tiers, block, 80, Some(&prompt), Some(5.0));
        let times = |name: &str| all.iter().find(|times| times.tier == name).unwrap();
        let (nvme, cxl) = (times("nvme"), times("cxl"));
        close(nvme.block_us, 100.0 + 5_242.88);
        close(nvme.block_layer_us, 100.0 + 65.536);
        close(cxl.block_us, 524.288);
        let of_prompt = nvme.prompt.unwrap();
        close(of_prompt.prompt_ms, 0.1 + 524.288);
        close(of_prompt.slack_needed_ms, 0.1 + 6.5536);
        close(of_prompt.stall_ms.unwrap(), 6.6536 + 79.0 * 1.6536);
        // CXL hides all but its first layer.
        close(cxl.prompt.unwrap().stall_ms.unwrap(), 0.65536);
        assert_eq!((nvme.source, times("hbm").source), ("given", "data sheet of the H100 SXM"));
    }

    #[test]
    fn tiers_that_are_none_are_refused() {
        assert_eq!("".parse(), Ok(Tiers::default()));
        for text in ["nvme", "tape=1", "nvme=0", "nvme=-1", "nvme=x", "nvme=1:-1", "nvme=inf"] {
            let error = text.parse::<Tiers>().unwrap_err();
            assert!(error.contains("is no tier: write NAME=GB/S"), "{text}: {error}");
        }
    }
}
