//! `rackline replay`: what a pool of some size would have hit, from a trace of requests.

mod chart;
mod progress;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use kv_cache::evict::policy::PolicyKind;
use kv_cache::replay::{Capacity, Outcome, Simulation, Touch, Trace};
use serde::Serialize;

/// Replay a trace of requests: how much a pool of this size would have hit.
///
/// The trace has one request a line, as Mooncake publishes them:
///
///   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
///
/// Each of hash_ids names a block of the prompt together with all before it; the other members are
/// not needed. A block counts as a hit when it and all blocks before it in the same request are in
/// the cache. Nothing is written, no region and no memory is needed: only names of blocks are
/// kept, and the policy decides which leave when there is no more room. It is the policy that the
/// pool uses.
///
/// How large a pool is worth its memory? Draw the curve and see where it becomes flat:
///
///   rackline replay trace.jsonl --svg curve.svg
///   rackline replay trace.jsonl --capacity-blocks 10%
///   rackline replay trace.jsonl --capacity-blocks 20000 --policy lru --json
///
/// (`rackline geometry` says how many bytes the blocks of a model have.)
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    /// The trace, in JSON lines.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// Room of the cache: a number of blocks, a share of the trace's different blocks such as 5%,
    /// or "unlimited".
    #[arg(long, value_name = "N", default_value = "unlimited")]
    capacity_blocks: Capacity,

    /// Which block leaves when there is no room: clock, lru or s3-fifo.
    #[arg(long, value_name = "POLICY", default_value_t)]
    policy: PolicyKind,

    /// In which order a request uses its blocks: leaf-first lets the end of a prompt leave before
    /// its beginning, as the pool does; root-first is what caches do that know of no prefixes.
    #[arg(long, value_name = "ORDER", default_value_t)]
    touch: Touch,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,

    /// Draw the share of hits by capacity, for every policy, into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Report {
    policy: &'static str,
    touch: &'static str,
    /// None is no limit.
    capacity_blocks: Option<u32>,
    requests: u64,
    block_refs: u64,
    unique_blocks: u32,
    hits: u64,
    hit_rate: f64,
    evictions: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let trace = read(&options.trace)?;
    let capacity = options.capacity_blocks.blocks(trace.unique_blocks());
    let outcome = replay(&trace, capacity, options.policy, options.touch);
    let report = Report {
        policy: options.policy.name(),
        touch: options.touch.name(),
        capacity_blocks: capacity,
        requests: outcome.requests,
        block_refs: outcome.block_refs,
        unique_blocks: trace.unique_blocks(),
        hits: outcome.hits,
        hit_rate: outcome.hit_rate(),
        evictions: outcome.evictions,
    };
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    if let Some(path) = &options.svg {
        chart::draw(path, &options.trace, &trace, options.touch)?;
        if !options.json {
            println!("hits by capacity are drawn in {}", path.display());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Trace> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("{shown} cannot be opened"))?;
    let size_bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let bar = progress::reading(size_bytes);
    let trace = Trace::read(BufReader::new(bar.wrap_read(file)));
    bar.finish_and_clear();
    trace.with_context(|| shown.to_string())
}

fn replay(trace: &Trace, capacity: Option<u32>, policy: PolicyKind, touch: Touch) -> Outcome {
    let bar = progress::replaying(trace.requests().len(), policy, capacity);
    let mut simulation = Simulation::new(trace, capacity, policy, touch);
    while simulation.step() {
        bar.inc(1);
    }
    bar.finish_and_clear();
    simulation.outcome()
}

fn print(report: &Report) {
    let Report { requests, block_refs, unique_blocks, hits, evictions, .. } = report;
    println!("{requests} requests, {block_refs} blocks, {unique_blocks} of them different");
    match report.capacity_blocks {
        None => println!("  without a limit to what is kept"),
        Some(blocks) => {
            let share = 100.0 * f64::from(blocks) / f64::from((*unique_blocks).max(1));
            println!(
                "  with room for {blocks} ({share:.1} % of the different ones), {}, {}",
                report.policy, report.touch
            );
        }
    }
    println!("  {hits} hits: {:.2} % of all blocks", 100.0 * report.hit_rate);
    println!("  {evictions} evictions");
}
