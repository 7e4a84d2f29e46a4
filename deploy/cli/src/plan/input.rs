//! What is to be planned, as JSON.

use std::fmt;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use kv_cache::placement::{Batch, Horizon, Placement, Ratio, Request};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// Larger inputs are none that a batch could have.
const INPUT_BYTES_MAX: u64 = 16 << 20;

/// A request with more tokens is none that an engine serves; to look at so many steps takes seconds.
const TOKENS_MAX: u32 = 1 << 20;

/// What is to be planned.
pub(super) struct Task {
    pub(super) batch: Batch,
    pub(super) horizon: Horizon,
    /// Placements to evaluate instead.
    pub(super) placements: Option<Vec<Placement>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    layers: u64,
    link_blocks_per_layer: Fraction,
    gpu_blocks: u64,
    requests: Vec<InputRequest>,
    placements: Option<Vec<Vec<u64>>>,
    decode_window: Option<u32>,
    window_max: Option<u32>,
    block_tokens: Option<u32>,
    alpha: Option<Fraction>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputRequest {
    blocks_per_layer: u64,
    #[serde(default)]
    free_tokens: u32,
    slo_layer_times: Option<Fraction>,
    #[serde(default)]
    deposit_tokens: u32,
}

/// A number that is kept exactly: 3, 2.5 or "5/2".
#[derive(Clone, Copy)]
struct Fraction(Ratio<u64>);

/// Reads the input in the file `path`, or on standard input when that is "-".
pub(super) fn read(path: &Path) -> Result<Task> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(INPUT_BYTES_MAX + 1).read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(path);
        file.and_then(|file| file.take(INPUT_BYTES_MAX + 1).read_to_string(&mut text))
    };
    let bytes = read.with_context(|| format!("{} cannot be read", path.display()))?;
    if bytes as u64 > INPUT_BYTES_MAX {
        bail!("{} has more than {INPUT_BYTES_MAX} bytes: this is no batch", path.display());
    }
    let input = serde_json::from_str(&text).map_err(|error| {
        anyhow!("{}: {error}; `rackline plan --help` shows the input", path.display())
    })?;
    task(input).with_context(|| format!("{} cannot be planned", path.display()))
}

fn task(input: Input) -> Result<Task> {
    let steps = [("decode_window", input.decode_window), ("window_max", input.window_max)];
    let steps = steps.into_iter().map(|(name, given)| (name.to_owned(), given.unwrap_or(0)));
    let deposits = input.requests.iter().enumerate().map(|(number, request)| {
        (format!("deposit_tokens of request {}", number + 1), request.deposit_tokens)
    });
    if let Some((name, given)) = steps.chain(deposits).find(|(_, given)| *given > TOKENS_MAX) {
        bail!("{name} is {given}: at most {TOKENS_MAX}; check the number");
    }
    let request = |given: InputRequest| Request {
        blocks_per_layer: given.blocks_per_layer,
        free_tokens: given.free_tokens,
        slo_layer_times: given.slo_layer_times.map(|slo| slo.0),
        deposit_tokens: given.deposit_tokens,
        ..Request::new(given.blocks_per_layer)
    };
    let requests = input.requests.into_iter().map(request).collect();
    let link = input.link_blocks_per_layer.0;
    let batch = Batch::new(input.layers, link, input.gpu_blocks, requests)?;
    let usual = Horizon::default();
    let steps = input.decode_window.unwrap_or(usual.steps);
    let horizon = Horizon {
        steps,
        steps_max: input.window_max.unwrap_or(usual.steps_max.max(steps)),
        block_tokens: input.block_tokens.unwrap_or(usual.block_tokens),
        tolerated: input.alpha.map_or(usual.tolerated, |alpha| alpha.0),
    };
    let placement = |(number, layers): (usize, Vec<u64>)| {
        let placement = Placement::new(&layers, batch.layers());
        placement.with_context(|| format!("placement of request {}", number + 1))
    };
    let placements = input
        .placements
        .map(|given| given.into_iter().enumerate().map(placement).collect::<Result<Vec<_>>>());
    let placements = placements.transpose()?;
    Ok(Task { batch, horizon, placements })
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FractionVisitor)
    }
}

struct FractionVisitor;

impl Visitor<'_> for FractionVisitor {
    type Value = Fraction;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of at least 0: 3, 2.5 or \"5/2\"")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Fraction, E> {
        Ok(Fraction(Ratio::from_integer(number)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Fraction, E> {
        // The shortest decimals that name this number are those that were written.
        self.visit_str(&number.to_string())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Fraction, E> {
        exact(text).map(Fraction).ok_or_else(|| {
            E::custom(format!(
                "\"{text}\" is no number that can be kept exactly: write 3, 2.5 or \"5/2\", with \
                 at most 18 digits"
            ))
        })
    }
}

/// The number that a text names.
fn exact(text: &str) -> Option<Ratio<u64>> {
    let digits = |text: &str| {
        let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        all.then(|| text.parse::<u64>().ok()).flatten()
    };
    if let Some((numerator, denominator)) = text.split_once('/') {
        let denominator = digits(denominator).filter(|denominator| *denominator > 0)?;
        return Some(Ratio::new(digits(numerator)?, denominator));
    }
    let Some((whole, decimals)) = text.split_once('.') else {
        return Some(Ratio::from_integer(digits(text)?));
    };
    let scale = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let numerator = digits(whole)?.checked_mul(scale)?.checked_add(digits(decimals)?)?;
    Some(Ratio::new(numerator, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (text, expected) in [
            ("3", Some((3, 1))),
            ("0.1", Some((1, 10))),
            ("2.50", Some((5, 2))),
            ("10/4", Some((5, 2))),
            ("0", Some((0, 1))),
            ("-3", None),
            ("+3", None),
            ("5/0", None),
            ("/2", None),
            ("1.", None),
            ("NaN", None),
            ("inf", None),
            ("1e3", None),
            ("99999999999999999999", None),
            ("0.00000000000000000000000001", None),
        ] {
            let expected =
                expected.map(|(numerator, denominator)| Ratio::new(numerator, denominator));
            assert_eq!(exact(text), expected, "{text}");
        }
    }
}
