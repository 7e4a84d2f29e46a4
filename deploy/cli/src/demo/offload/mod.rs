//! Decoding with offloaded layers: the last turns are asked again, all together, by a worker whose
//! memory has room for a part of their KV. Meanwhile a block is damaged in the pool.

mod decode;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use demo::KvGeometry;
use serde::Serialize;

pub(super) use self::decode::Offloading;

use super::proof;
use super::protocol::{Event, Offloaded, Placed, Planned, Task};
use super::serve::{Fleet, Served};
use crate::output::{progress_bar, say};
use crate::rack::OwnRegion;

/// Prompts that are answered together, at most.
const TOGETHER: usize = 4;
/// Tokens of all answers after which the block is damaged, for each prompt.
const DAMAGED_AFTER: usize = 3;

/// How the prompts are answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// Longest answer.
    pub(super) max_tokens: usize,
    /// The part of the KV that the worker has memory for.
    pub(super) memory_percent: u64,
    /// Whether no progress is shown.
    pub(super) quiet: bool,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct OffloadReport {
    /// The part of the KV that the worker had memory for.
    pub(super) memory_percent: u64,
    /// Prompts that were answered together.
    pub(super) prompts: usize,
    /// Whether every answer had the same tokens as before.
    pub(super) tokens_equal: bool,
    /// Whether a block was damaged: only when its layer was in the pool alone.
    pub(super) damaged: bool,
    /// Plans, in order: which layers of which prompt were in the pool alone.
    pub(super) plans: Vec<Planned>,
    /// What it took.
    #[serde(flatten)]
    pub(super) figures: Offloaded,
}

/// Asks the last turns again, and damages a block when a layer of it is in the pool alone.
pub(super) fn run(
    region: &OwnRegion,
    fleet: &mut Fleet,
    served: &[Served],
    geometry: &KvGeometry,
    Ask { max_tokens, memory_percent, quiet }: Ask,
) -> Result<OffloadReport> {
    let last = served.iter().map(|request| request.turn).max().unwrap_or(0);
    let asked = served.iter().filter(|request| request.turn == last).take(TOGETHER);
    let asked: Vec<_> = asked.collect();
    let prompts: Vec<_> = asked.iter().map(|request| request.prompt.clone()).collect();
    let tokens = asked.iter().map(|request| request.answer.len() as u64).sum();
    let bar = if quiet {
        indicatif::ProgressBar::hidden()
    } else {
        progress_bar(tokens, "{bar:40} {pos}/{len} tokens")
    };
    let (locator, worker) = fleet.pair(0);
    worker.give(&Task::DecodeOffloaded { prompts, max_tokens, memory_percent })?;
    let mut plans: Vec<Planned> = Vec::new();
    let mut damaged = false;
    let (answers, figures) = loop {
        match worker.next()? {
            Event::Planned(plan) => plans.push(plan),
            Event::Stepped { tokens } => {
                bar.set_position(tokens as u64);
                let may_damage = !damaged && tokens >= DAMAGED_AFTER * asked.len();
                let out = plans.last().filter(|_| may_damage);
                if let Some((prompt, layer)) = out.and_then(|plan| longest_out(plan, &asked)) {
                    // Its last block is no other's.
                    let prompt = &asked[prompt].prompt;
                    proof::damage_layer(region, locator, prompt, layer, geometry)?;
                    damaged = true;
                }
            }
            Event::Offloaded { answers, figures } => break (answers, figures),
            other => bail!("a worker said {other:?} while it was to decode"),
        }
    };
    bar.finish_and_clear();
    let right = asked.iter().map(|request| &request.answer);
    let tokens_equal = answers.iter().eq(right);
    let prompts = asked.len();
    Ok(OffloadReport { memory_percent, prompts, tokens_equal, damaged, plans, figures })
}

/// Of the prompts that have layers in the pool alone: the one that decodes longest, and the last of
/// these layers, both counted from 0.
fn longest_out(plan: &Planned, asked: &[&Served]) -> Option<(usize, usize)> {
    let out = plan.placed.iter().filter_map(|Placed { prompt, offloaded }| {
        let prompt = usize::try_from(*prompt).ok()?;
        let answered = asked.get(prompt)?.answer.len();
        Some((answered, prompt, usize::from(*offloaded.last()?) - 1))
    });
    out.max().map(|(_, prompt, layer)| (prompt, layer))
}

impl OffloadReport {
    /// Whether the worker kept to its memory, but for blocks that the pool did not keep.
    pub(super) const fn kept_to_memory(&self) -> bool {
        self.figures.peak_kv_bytes <= self.figures.limit_kv_bytes
            || self.figures.unpooled_blocks > 0
    }

    pub(super) fn print(&self) {
        let Offloaded { iterations, streamed_layers, streamed_bytes, stalls, stall_ms, .. } =
            self.figures;
        let bytes = |bytes: u64| ByteSize(bytes).to_string();
        let equal = if self.tokens_equal { "equal" } else { "DIFFERENT" };
        say!(
            "\n{} prompts decoded together, memory for {} % of their KV: tokens {equal}",
            self.prompts,
            self.memory_percent
        );
        for plan in &self.plans {
            let layers = |Placed { prompt, offloaded }: &Placed| {
                let layers: Vec<_> = offloaded.iter().map(u16::to_string).collect();
                let layers = if layers.is_empty() { "none".to_owned() } else { layers.join(" ") };
                format!("prompt {}: {layers}", prompt + 1)
            };
            let layers: Vec<_> = plan.placed.iter().map(layers).collect();
            say!(
                " plan {} ({}), layers in the pool alone: {}",
                plan.version,
                plan.trigger,
                layers.join("; ")
            );
        }
        say!(
            " KV in the memory of the worker: {} at most, of {} that it had memory for; {} without offloading",
            bytes(self.figures.peak_kv_bytes),
            bytes(self.figures.limit_kv_bytes),
            bytes(self.figures.whole_kv_bytes)
        );
        if self.figures.unpooled_blocks > 0 {
            say!(
                " {} blocks were in the memory of the worker in all layers, because the pool did not keep them: raise --region-size",
                self.figures.unpooled_blocks
            );
        }
        say!(
            " {iterations} iterations streamed {streamed_layers} layers of blocks ({}), and waited for {stalls} layers, {stall_ms} ms in all",
            bytes(streamed_bytes)
        );
        if !self.damaged {
            say!(" no block was damaged: no layer was in the pool alone");
        }
        for (reason, blocks) in &self.figures.lost_blocks {
            say!(
                " blocks lost while their layers were in the pool alone: {blocks} ({reason}), computed again"
            );
        }
    }
}
