//! `rackline bench profile`: what computing takes the small model on this machine, as a profile.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use cxl_shm::clock::SystemClock;
use demo::{BatchSteps, Sequence};
use demo::{Gguf, Kernels, KvCache, Model, model_file};

use crate::output::{progress_bar, say};

/// Measure the small model on this machine, and print a profile for `rackline bench rack`
///
/// The model of `rackline demo` computes prompts of two lengths, and iterations of one and of four
/// requests, each several times. The shortest time of each counts. The profile is a line through these
/// points: the last line says how far a third length is from it.
///
///   rackline bench profile >here.toml
///   rackline bench rack --profile here.toml
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    /// The model file. [default: fetched once, see `rackline demo`]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,

    /// How often each time is measured.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// Lengths of prompts: the profile goes through the first and the last.
const PROMPTS: [usize; 3] = [128, 512, 1024];
/// Requests, and tokens of context of each: the profile goes through the first three.
const BATCHES: [(usize, usize); 4] = [(1, 64), (1, 960), (4, 64), (4, 480)];

pub(crate) fn run(options: &Options) -> Result<()> {
    let path = model_file::obtain(options.model.as_deref())?;
    let model = Model::load(&mut Gguf::open(&path)?, Kernels::of_this_cpu())?;
    let points = PROMPTS.len() + BATCHES.len();
    let bar = progress_bar(u64::from(options.rounds) * points as u64, "{bar:40} {pos}/{len}");
    let (mut prompts, mut batches) = ([f64::MAX; 3], [f64::MAX; 4]);
    for _ in 0..options.rounds {
        for (tokens, best) in PROMPTS.into_iter().zip(&mut prompts) {
            *best = best.min(prompt_us(&model, tokens)?);
            bar.inc(1);
        }
        for ((requests, context), best) in BATCHES.into_iter().zip(&mut batches) {
            *best = best.min(iteration_us(&model, requests, context)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let prefill = Prefill::through(&prompts);
    let decode = Decode::through(&batches);
    let pool = model.kv_geometry().pool();
    say!("# Measured by `rackline bench profile`: the shortest of {} each.", options.rounds);
    say!("name = \"SmolLM2-135M-Instruct on a CPU\"");
    say!(
        "source = \"measured by rackline bench profile on {} threads\"",
        demo::threads::configured()
    );
    say!("kv_bytes = {}\n", pool.token_bytes());
    say!("[prefill]\nbase_us = 0.0");
    say!("token_us = {:.1}\npair_ns = {:.1}\n", prefill.token_us, prefill.pair_ns);
    say!("[decode]\nbase_us = {:.1}\nrequest_us = {:.1}", decode.base_us, decode.request_us);
    say!(
        "context_token_us = {:.2}\nbatch_max = 16\nkv_tokens_max = 200000",
        decode.context_token_us
    );
    say!(
        "# {} tokens took {:.2} of what this says, an iteration of {} requests with {} tokens {:.2}.",
        PROMPTS[1],
        prompts[1] / prefill.us(PROMPTS[1]),
        BATCHES[3].0,
        BATCHES[3].1,
        batches[3] / decode.us(BATCHES[3])
    );
    Ok(())
}

/// `token_us` for each token and `pair_ns` for each pair of tokens.
struct Prefill {
    token_us: f64,
    pair_ns: f64,
}

impl Prefill {
    fn through(us: &[f64; 3]) -> Self {
        let [short, _, long] = PROMPTS.map(number);
        // Of each token: a + b n / 2.
        let (of_short, of_long) = (us[0] / short, us[2] / long);
        let half_us = ((of_long - of_short) / (long - short)).max(0.0);
        Self { token_us: (of_short - half_us * short).max(0.1), pair_ns: half_us * 2.0 * 1e3 }
    }

    fn us(&self, tokens: usize) -> f64 {
        let tokens = number(tokens);
        tokens * self.token_us + tokens * tokens / 2.0 * self.pair_ns / 1e3
    }
}

struct Decode {
    base_us: f64,
    request_us: f64,
    context_token_us: f64,
}

impl Decode {
    fn through(us: &[f64; 4]) -> Self {
        let [(_, short), (_, long), (requests, _), _] = BATCHES;
        let (short, long, others) = (number(short), number(long), number(requests - 1));
        let context_token_us = ((us[1] - us[0]) / (long - short)).max(0.0);
        let request_us = ((us[2] - us[0]) / others - short * context_token_us).max(0.0);
        let base_us = (us[0] - request_us - short * context_token_us).max(1.0);
        Self { base_us, request_us, context_token_us }
    }

    fn us(&self, (requests, context): (usize, usize)) -> f64 {
        let of_request = self.request_us + number(context) * self.context_token_us;
        self.base_us + number(requests) * of_request
    }
}

#[expect(clippy::cast_precision_loss, reason = "tokens are counted in thousands")]
const fn number(count: usize) -> f64 {
    count as f64
}

fn tokens(count: usize) -> Vec<u32> {
    // Any tokens do: what computing takes does not depend on them.
    (0..count).map(|place| 100 + u32::try_from(place % 1000).unwrap_or(0)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a time in microseconds")]
fn passed_us(clock: &SystemClock) -> f64 {
    clock.now_ns() as f64 / 1e3
}

fn prompt_us(model: &Model, length: usize) -> Result<f64> {
    let (tokens, mut kv) = (tokens(length), model.new_cache(length));
    let clock = SystemClock::start();
    model.forward(&tokens, 0, &mut kv)?;
    Ok(passed_us(&clock))
}

/// Nothing around layers.
struct Nothing;

impl BatchSteps for Nothing {
    fn before(&mut self, _: usize, _: &mut [Sequence<'_>]) -> Stepped {
        Ok(())
    }

    fn after(&mut self, _: usize, _: &mut [Sequence<'_>]) -> Stepped {
        Ok(())
    }
}

type Stepped = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn iteration_us(model: &Model, requests: usize, context: usize) -> Result<f64> {
    let prompt = tokens(context);
    let filled = || -> Result<KvCache> {
        let mut kv = model.new_cache(context + 1);
        model.forward(&prompt, 0, &mut kv)?;
        Ok(kv)
    };
    let mut caches = (0..requests).map(|_| filled()).collect::<Result<Vec<_>>>()?;
    let next = [100];
    let sequence = |kv| Sequence { tokens: &next, start_pos: context, kv };
    let mut batch: Vec<_> = caches.iter_mut().map(sequence).collect();
    let clock = SystemClock::start();
    model.forward_batch(&mut batch, &mut Nothing)?;
    Ok(passed_us(&clock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_goes_through_its_points() {
        let exact = Prefill { token_us: 300.0, pair_ns: 50.0 };
        let found = Prefill::through(&PROMPTS.map(|tokens| exact.us(tokens)));
        assert!((found.token_us - 300.0).abs() < 1e-6 && (found.pair_ns - 50.0).abs() < 1e-6);
        let exact = Decode { base_us: 9000.0, request_us: 400.0, context_token_us: 3.0 };
        let found = Decode::through(&BATCHES.map(|batch| exact.us(batch)));
        assert!((found.base_us - 9000.0).abs() < 1e-6);
        assert!((found.request_us - 400.0).abs() < 1e-6);
        assert!((found.context_token_us - 3.0).abs() < 1e-6);
    }

    #[test]
    fn noise_makes_no_time_negative() {
        let prefill = Prefill::through(&[100_000.0, 200_000.0, 300_000.0]);
        assert!(prefill.token_us > 0.0 && prefill.pair_ns == 0.0);
        let decode = Decode::through(&[900.0, 100.0, 800.0, 1.0]);
        assert_eq!((decode.request_us, decode.context_token_us), (0.0, 0.0));
    }
}
