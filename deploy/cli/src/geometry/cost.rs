//! What a million prompt tokens cost, and from which hit rate on a tier pays for itself.
//!
//! An engine of `gpus` GPUs computes `prefill_tokens_s` tokens a second, so a token takes `1 / R`
//! seconds. A tier brings a token in `tau = bytes / rate` seconds. With a hit rate `h` a token takes
//!
//! - `(1 - h) / R + h tau` where an engine waits for the KV before it computes,
//! - `max((1 - h) / R, h tau)` where layers are brought while others compute.
//!
//! The engine and the tier are paid by the hour, so a token costs its time times the price of both.
//! The tier breaks even at the hit rate at which that is what the engine alone costs.

use clap::Args;
use serde::Serialize;

use super::tiers::{NVME, PCIE, Tiers};
use crate::output::say;

/// Hours of a month, as cloud providers count them.
const MONTH_HOURS: f64 = 730.0;

/// Prices and rates. The defaults name their source.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Prices {
    /// Prompt tokens that the GPUs of the engine compute in a second, together.
    #[arg(long, requires = "cost", value_name = "N", value_parser = positive)]
    prefill_tokens_s: Option<f64>,

    /// Dollars for an hour of a GPU [default: AWS p5.48xlarge, an eighth of $55.04].
    #[arg(long, requires = "cost", value_name = "USD", value_parser = positive, default_value_t = 6.88)]
    gpu_hour_usd: f64,

    /// Dollars for a GiB of DRAM a month [default: AWS r7i.xlarge less m7i.xlarge, a 16th].
    #[arg(long, requires = "cost", value_name = "USD", value_parser = price, default_value_t = 2.87)]
    dram_gib_month_usd: f64,

    /// Dollars for a GiB of SSD a month [default: AWS gp3, $0.08 for a GB].
    #[arg(long, requires = "cost", value_name = "USD", value_parser = price, default_value_t = 0.0859)]
    ssd_gib_month_usd: f64,

    /// DRAM of the engine for KV, in GiB [default: the node of Tutti].
    #[arg(long, requires = "cost", value_name = "GIB", value_parser = positive, default_value_t = 256.0)]
    dram_gib: f64,

    /// SSDs of the engine for KV, in GiB [default: two drives of 7.68 TB].
    #[arg(long, requires = "cost", value_name = "GIB", value_parser = positive, default_value_t = 14_305.0)]
    ssd_gib: f64,

    /// Share of the prompt tokens that a tier has, for which the cost is shown.
    #[arg(long, requires = "cost", value_name = "SHARE", value_parser = share, default_value_t = 0.5)]
    hit_rate: f64,
}

fn number(text: &str, fits: impl Fn(f64) -> bool, what: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && fits(*number));
    number.ok_or_else(|| format!("\"{text}\" is not {what}"))
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0, "a number above 0")
}

fn price(text: &str) -> Result<f64, String> {
    number(text, |number| number >= 0.0, "a number of at least 0")
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=1.0).contains(&number), "a share from 0 to 1")
}

/// What an engine costs, alone and with a tier.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Cost {
    hit_rate: f64,
    /// Dollars for a million prompt tokens without any tier.
    alone_usd: f64,
    tiers: Vec<TierCost>,
}

/// What an engine costs with one tier.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct TierCost {
    tier: &'static str,
    /// Dollars an hour for the tier itself.
    tier_hour_usd: f64,
    /// Dollars for a million prompt tokens where the engine waits for the KV first.
    waiting_usd: f64,
    /// The same where layers are brought while others compute.
    layered_usd: f64,
    /// The tier pays for itself from that hit rate on; none where it never does.
    waiting_break_even: Option<f64>,
    layered_break_even: Option<f64>,
    /// Up to that hit rate, computing takes longer than bringing, and hides it.
    hidden_up_to: f64,
}

impl Cost {
    /// The cost for an engine whose `gpus` ranks each bring `rank_token_bytes` of a token. `None`
    /// without the rate at which the engine computes.
    pub(super) fn new(
        prices: &Prices,
        tiers: &Tiers,
        gpus: u32,
        rank_token_bytes: u64,
    ) -> Option<Self> {
        let rate = prices.prefill_tokens_s?;
        let engine = prices.gpu_hour_usd * f64::from(gpus);
        let million = |hour_usd: f64, token_s: f64| hour_usd / 3600.0 * token_s * 1e6;
        let alone_s = rate.recip();
        let hit = prices.hit_rate;
        let cost = |tier, link: &str, gib: f64, gib_month_usd: f64| {
            let brought_s = rank_token_bytes as f64 / tiers.bytes_s(link);
            let hour = gib * gib_month_usd / MONTH_HOURS;
            let (computed_s, read_s) = ((1.0 - hit) * alone_s, hit * brought_s);
            // From (engine + hour) t(h) = engine / R.
            let saved = hour / (engine + hour);
            // A tier that brings more slowly than the engine computes never does, whatever it costs.
            let is_faster = brought_s * rate < 1.0;
            let waiting = saved / (1.0 - brought_s * rate);
            let hidden_up_to = (1.0 + brought_s * rate).recip();
            TierCost {
                tier,
                tier_hour_usd: hour,
                waiting_usd: million(engine + hour, computed_s + read_s),
                layered_usd: million(engine + hour, f64::max(computed_s, read_s)),
                waiting_break_even: Some(waiting).filter(|hits| is_faster && *hits <= 1.0),
                layered_break_even: Some(saved).filter(|rate| *rate <= hidden_up_to),
                hidden_up_to,
            }
        };
        let tiers = vec![
            cost("DRAM", PCIE, prices.dram_gib, prices.dram_gib_month_usd),
            cost("SSD", NVME, prices.ssd_gib, prices.ssd_gib_month_usd),
        ];
        Some(Self { hit_rate: hit, alone_usd: million(engine, alone_s), tiers })
    }

    pub(super) fn print(&self) {
        say!(
            "  cost of a million prompt tokens: ${:.4} without a tier; at a hit rate of {} %:",
            self.alone_usd,
            self.hit_rate * 100.0
        );
        say!(
            "  {:<5} {:>8} {:>14} {:>11} {:>14} {:>11} {:>12}",
            "tier",
            "$/hour",
            "read first $",
            "pays from",
            "by layers $",
            "pays from",
            "hidden to"
        );
        let percent = |share: Option<f64>| {
            share.map_or_else(|| "never".to_owned(), |share| format!("{:.1} %", share * 100.0))
        };
        for cost in &self.tiers {
            say!(
                "  {:<5} {:>8.3} {:>14.4} {:>11} {:>14.4} {:>11} {:>12}",
                cost.tier,
                cost.tier_hour_usd,
                cost.waiting_usd,
                percent(cost.waiting_break_even),
                cost.layered_usd,
                percent(cost.layered_break_even),
                percent(Some(cost.hidden_up_to))
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU for 9 dollars an hour computes 1,000 tokens a second: 2.50 dollars a million tokens.
    /// The tiers cost a dollar an hour each, so they have to save a tenth of the time.
    fn prices(hit_rate: f64) -> Prices {
        Prices {
            prefill_tokens_s: Some(1000.0),
            gpu_hour_usd: 9.0,
            dram_gib_month_usd: 7.3,
            ssd_gib_month_usd: 0.73,
            dram_gib: 100.0,
            ssd_gib: 1000.0,
            hit_rate,
        }
    }

    fn costs(hit_rate: f64) -> Cost {
        // A token of 1 MB: 0.1 ms over PCIe, 2 ms from the drive, 1 ms to compute.
        let tiers = "pcie=10,nvme=0.5".parse().unwrap();
        Cost::new(&prices(hit_rate), &tiers, 1, 1_000_000).unwrap()
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found}: {expected}");
    }

    #[test]
    fn a_tier_has_to_save_what_it_costs() {
        let found = costs(0.5);
        close(found.alone_usd, 2.5);
        let [dram, ssd] = found.tiers[..] else { panic!("two tiers") };
        close(dram.tier_hour_usd, 1.0);
        // 10 dollars an hour; half of the tokens take 1 ms, half 0.1 ms.
        close(dram.waiting_usd, 10.0 / 3600.0 * 0.55e-3 * 1e6);
        close(dram.layered_usd, 10.0 / 3600.0 * 0.5e-3 * 1e6);
        close(dram.waiting_break_even.unwrap(), 0.1 / 0.9);
        close(dram.layered_break_even.unwrap(), 0.1);
        close(dram.hidden_up_to, 1.0 / 1.1);
        // The drive brings a token in the time of two: an engine that waits for it only loses.
        assert_eq!(ssd.waiting_break_even, None);
        close(ssd.layered_break_even.unwrap(), 0.1);
        close(ssd.hidden_up_to, 1.0 / 3.0);
        close(ssd.layered_usd, 10.0 / 3600.0 * 1e-3 * 1e6);
    }

    /// At the hit rate that was found, an engine with the tier costs what it costs without.
    #[test]
    fn at_the_break_even_rate_the_costs_are_equal() {
        let rate = costs(0.5).tiers[0].waiting_break_even.unwrap();
        let at = costs(rate);
        close(at.tiers[0].waiting_usd, at.alone_usd);
        let rate = at.tiers[1].layered_break_even.unwrap();
        let at = costs(rate);
        close(at.tiers[1].layered_usd, at.alone_usd);
    }

    #[test]
    fn a_tier_that_costs_nothing_pays_at_once_where_it_is_faster_than_computing() {
        let tiers = "pcie=10,nvme=0.5".parse().unwrap();
        let free = Prices { dram_gib_month_usd: 0.0, ssd_gib_month_usd: 0.0, ..prices(0.5) };
        let found = Cost::new(&free, &tiers, 1, 1_000_000).unwrap();
        let pays: Vec<_> = found.tiers.iter().map(|tier| tier.waiting_break_even).collect();
        assert_eq!(pays, [Some(0.0), None], "the drive takes twice as long as the GPU");
        assert!(found.tiers.iter().all(|tier| tier.layered_break_even == Some(0.0)));
    }
}
