//! `rackline replay`: what a pool of some size would have hit, from a trace of requests.

mod chart;
mod live;
mod progress;
mod rule;
mod tiers;

pub(crate) use live::{WorkerOptions, run_worker};

use std::fs::File;
use std::io::BufReader;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use kv_cache::evict::policy::PolicyKind;
use kv_drive::policy::{AdmissionKind, BACKUP_AGE_MS};
use rackline_replay::{Capacity, Outcome, PoolSimulation, Simulation, Touch, Trace};
use serde::Serialize;

use self::rule::Rule;
use crate::output::say;

/// Replay a trace of requests: how much a pool of this size would have hit
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
///
/// With --live the trace goes through a real pool. Worker processes on several nodes look up, hold,
/// fetch and publish real bytes, and check them. Their measurements are printed, too. The pool is
/// that of --region, or a file in /dev/shm that exists for the time of the replay. Requests are
/// served one at a time, in the order of the trace, so the simulation has the same hits:
///
///   rackline replay trace.jsonl --live
///   rackline replay trace.jsonl --nodes 2 --capacity-blocks 10%
///   rackline replay trace.jsonl --nodes 2 --capacity-blocks 10% --live
///
/// The last two commands have exactly the same hits. Without --nodes only the policy is simulated:
/// one cache, where each new block replaces an old one. A pool differs. Each node takes chunks of
/// its own as it needs them, and evicts in batches when a publish finds no room. --live prints both.
/// It fails when its hits differ from those of a simulated pool of the same shape. With unlimited
/// capacity all have the same hits.
///
/// With --tiers a drive is behind the pool. What the pool has no more is found on the drive, if it
/// was written there before. Is a drive worth it, and how fast does it wear out? Compare the rules
/// that say which blocks are written:
///
///   rackline replay trace.jsonl --tiers 5%,50%
///   rackline replay trace.jsonl --tiers 5%,50% --svg tiers.svg
///   rackline replay trace.jsonl --tiers 20000,200000 --admission all --block-bytes 320KiB
///
/// Each rule has a line: hits of each tier, bytes written, bytes written for each byte of drive hits,
/// and how often the drive is written whole in a day at the rate of the trace. Makers of drives
/// promise 1 to 3 such writes a day for 5 years. A drive changes nothing in the pool, so the first
/// line says what the pool does without one.
///
/// With --live the blocks go through a real pool and a real folder, and every hit has to be the one
/// that the simulation has. The simulated pool is then that of --nodes 1.
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

    /// Which block is evicted when there is no room: clock, lru or s3-fifo. With optimum it is the
    /// best one, for which the whole trace must be known beforehand: no cache has more hits.
    #[arg(long, value_name = "POLICY", default_value_t)]
    policy: Rule,

    /// The order in which a request uses its blocks. With leaf-first the end of a prompt is evicted
    /// before its beginning, as in the pool. root-first is the order of caches without prefixes.
    #[arg(long, value_name = "ORDER", default_value_t)]
    touch: Touch,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,

    /// Draw the share of hits by capacity, for every policy, into this file. With --tiers: by room of
    /// the pool, for every admission.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["live", "nodes"])]
    svg: Option<PathBuf>,

    /// Replay through a real pool, with real bytes.
    #[arg(long)]
    live: bool,

    /// Nodes among which the pool is divided; requests go to each in turn. [with --live: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=32))]
    nodes: Option<u16>,

    /// Worker processes of each node. [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=8))]
    workers_per_node: Option<u16>,

    /// Length of a block in the pool.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    block_bytes: ByteSize,

    /// Room of the pool and of a drive behind it, each as in --capacity-blocks.
    #[arg(long, value_name = "POOL,DRIVE", conflicts_with_all = ["capacity_blocks", "region"])]
    tiers: Option<tiers::Rooms>,

    /// With --tiers: which blocks are written to the drive: all, second-touch (what was found again,
    /// or published again) or frequency (once the drive is full, what was seen more often than what
    /// leaves). [default: each of them; with --live: second-touch]
    #[arg(long, value_name = "RULE", requires = "tiers")]
    admission: Option<AdmissionKind>,

    /// With --tiers: how long a block is in the pool before it is written to the drive, in
    /// milliseconds. What leaves the pool before is not written.
    #[arg(long, value_name = "MS", default_value_t = BACKUP_AGE_MS, requires = "tiers")]
    backup_age_ms: u64,

    /// With --tiers and --live: where the folder of the drive is made for the time of the replay. It
    /// takes the room of the drive. [default: the directory for temporary files]
    #[arg(long, value_name = "DIR", requires_all = ["tiers", "live"])]
    drive_in: Option<PathBuf>,

    /// With --live: use this existing pool, instead of one made for the replay. Other processes may
    /// use it meanwhile, and the hits then depend on them. The blocks are removed at the end.
    #[arg(long, value_name = "PATH", requires = "live", conflicts_with = "capacity_blocks")]
    region: Option<PathBuf>,

    /// With --region: the first node number to attach as. This number and the following ones must
    /// belong to this host, or be vacant.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "region")]
    first_node: u16,
}

impl Options {
    fn wish(&self, trace: &Trace, pool: Capacity) -> Result<live::Wish<'_>> {
        let how = if self.live { "--live" } else { "--nodes" };
        if self.policy.policy_of(how)? != PolicyKind::Clock || self.touch != Touch::LeafFirst {
            bail!(
                "{how} evicts as the pool does, by clock and leaf-first: --policy {} --touch {} is \
                 for a simulation of the policy alone",
                self.policy,
                self.touch
            );
        }
        let at_least_one = |number: Option<u16>| number.and_then(NonZeroU16::new);
        Ok(live::Wish {
            nodes: at_least_one(self.nodes).unwrap_or(NODES),
            workers_per_node: at_least_one(self.workers_per_node).unwrap_or(NonZeroU16::MIN),
            capacity: pool.blocks(trace.unique_blocks()),
            block_bytes: self.block_bytes.as_u64(),
            pool: self.region.as_deref().map(|path| (path, self.first_node)),
            drive_in: self.drive_in.as_deref(),
        })
    }
}

/// Nodes of a live replay.
const NODES: NonZeroU16 = NonZeroU16::new(2).expect("it is not 0");

#[derive(Debug, Serialize)]
struct Report {
    policy: &'static str,
    touch: &'static str,
    /// None is no limit.
    capacity_blocks: Option<u64>,
    requests: u64,
    block_refs: u64,
    unique_blocks: u32,
    hits: u64,
    hit_rate: f64,
    evictions: u64,
    #[serde(flatten)]
    pool: Option<PoolReport>,
    #[serde(flatten)]
    live: Option<live::Live>,
}

/// What only a pool has.
#[derive(Debug, Serialize)]
struct PoolReport {
    nodes: u16,
    workers_per_node: u16,
    refused_blocks: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.policy == Rule::Optimum && options.touch != Touch::LeafFirst {
        bail!("--touch root-first is for a policy: the optimum evicts no block before its leaves");
    }
    let trace = read(&options.trace)?;
    if let Some(rooms) = options.tiers {
        return tiers::run(options, rooms, &trace);
    }
    let report = if options.live || options.nodes.is_some() || options.workers_per_node.is_some() {
        through_pool(options, &trace)?
    } else {
        let capacity = options.capacity_blocks.blocks(trace.unique_blocks());
        let outcome = replay(&trace, capacity, options.policy, options.touch).context(
            "the optimum needs a name for each block with all before it, and this trace has a name behind two \
             different ones: give another --policy",
        )?;
        Report::new(options, &trace, capacity.map(u64::from), outcome)
    };
    if options.json {
        say!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    if let Some(path) = &options.svg {
        chart::draw(path, &options.trace, &trace, options.touch)?;
        if !options.json {
            say!("hits by capacity are drawn in {}", path.display());
        }
    }
    Ok(())
}

/// Through a simulated pool, or a real one.
fn through_pool(options: &Options, trace: &Trace) -> Result<Report> {
    let wish = options.wish(trace, options.capacity_blocks)?;
    let shape = wish.shape(trace)?;
    let (outcome, refused_blocks, live) = if options.live {
        let (outcome, refused, live) = live::run(&wish, trace)?;
        (outcome, refused, Some(live))
    } else {
        let mut simulation = PoolSimulation::new(trace, shape);
        while simulation.step() {}
        (simulation.outcome(), simulation.refused(), None)
    };
    let (nodes, workers_per_node) = (shape.nodes.get(), shape.workers_per_node.get());
    let pool = Some(PoolReport { nodes, workers_per_node, refused_blocks });
    let capacity = wish.capacity.map(|_| shape.blocks());
    Ok(Report { pool, live, ..Report::new(options, trace, capacity, outcome) })
}

impl Report {
    fn new(options: &Options, trace: &Trace, capacity: Option<u64>, outcome: Outcome) -> Self {
        Self {
            policy: options.policy.name(),
            touch: options.touch.name(),
            capacity_blocks: capacity,
            requests: outcome.requests,
            block_refs: outcome.block_refs,
            unique_blocks: trace.unique_blocks(),
            hits: outcome.hits,
            hit_rate: outcome.hit_rate(),
            evictions: outcome.evictions,
            pool: None,
            live: None,
        }
    }
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

/// `None` where there is no optimum of the trace.
fn replay(trace: &Trace, capacity: Option<u32>, rule: Rule, touch: Touch) -> Option<Outcome> {
    let Rule::Policy(policy) = rule else {
        return rackline_replay::optimum(trace, capacity);
    };
    let bar = progress::replaying(trace.requests().len(), policy, capacity);
    let mut simulation = Simulation::new(trace, capacity, policy, touch);
    while simulation.step() {
        bar.inc(1);
    }
    bar.finish_and_clear();
    Some(simulation.outcome())
}

fn print(report: &Report) {
    let Report { requests, block_refs, unique_blocks, hits, evictions, .. } = report;
    say!("{requests} requests, {block_refs} blocks, {unique_blocks} of them different");
    match report.capacity_blocks {
        None => say!("  without a limit to what is kept"),
        Some(blocks) => {
            let blocks_f64 = u32::try_from(blocks).map_or(f64::INFINITY, f64::from);
            let share = 100.0 * blocks_f64 / f64::from((*unique_blocks).max(1));
            say!(
                "  with room for {blocks} ({share:.1} % of the different ones), {}, {}",
                report.policy,
                report.touch
            );
        }
    }
    say!("  {hits} hits: {:.2} % of all blocks", 100.0 * report.hit_rate);
    say!("  {evictions} evictions");
    if let Some(PoolReport { nodes, workers_per_node, refused_blocks }) = report.pool {
        say!("  nodes, each with room of its own: {nodes}; processes of each: {workers_per_node}");
        if refused_blocks > 0 {
            say!("  {refused_blocks} blocks not published: all that their node had was in use");
        }
    }
    if let Some(live) = &report.live {
        live.print();
    }
}
