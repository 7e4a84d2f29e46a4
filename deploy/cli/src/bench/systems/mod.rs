//! `rackline bench systems`: the same requests, served by several systems in virtual time.

mod chart;
mod report;

use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use kv_drive::policy::{AdmissionKind, BACKUP_AGE_MS, usual_watermarks};
use rackline_replay::{Capacity, PoolShape, TierOptions};
use rackline_serving::{Links, Profile, Settings, Simulated, Software, Summary, System, simulate};

use self::report::{AroundKill, Conditions, Point, Report};
use super::kill::KillArguments;
use super::picture::check_writable;
use super::rack_arguments::RackArguments;
use super::workload::WorkloadArguments;
use crate::output::progress_bar;

/// Serve a trace by several systems in virtual time, at several loads
///
/// The systems differ in what they keep and over which link KV moves. All have the same scheduler, the same
/// workers and the same room:
///
///   rackline         prompts in memory that all hosts share, each host over its own link to it
///   rackline-drives  rackline, with a drive on each host for what the memory has no more room for
///   direct           no cache; decode workers pull prompts over the network, as with NIXL
///   host-cache       direct, with a cache in the memory of each prefill host, as LMCache has
///   store            blocks in the memory of all hosts behind a metadata server, as Mooncake's store has
///
/// These are models of the systems' shapes by the figures of two files, and no measurements of them. The
/// lines above the table name both files' sources. What each system does is written down in
/// deploy/serving/src/system.rs, and what the comparison leaves out in benches/rack/README.md.
///
///   rackline bench systems
///   rackline bench systems --workload C --nodes 4 --prefill 4 --decode 4 --rates 0.5,1,2,3,4 --svg c.svg
///   rackline bench systems mooncake.jsonl --block-tokens 512 --rates 0.5,1 --json
///   rackline bench systems --capacity-blocks 5% --systems rackline,rackline-drives,direct
///   rackline bench systems --nodes 4 --prefill 4 --decode 4 --rates 3 --kill-node 1 --kill-at-s 40
///
/// The link alone is seldom the reason: 6,000 tokens of an 8B model take 78 ms at 10.1 GB/s of CXL, and 63 ms
/// at 100 Gb/s of network. What differs is how much is computed again, and how long others wait for that.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    #[command(flatten)]
    workload: WorkloadArguments,

    /// Requests a second, each a run of its own.
    #[arg(
        long,
        value_name = "PER_SECOND",
        value_delimiter = ',',
        default_value = "0.1,0.3,0.5,0.7,0.9",
        allow_negative_numbers = true
    )]
    rates: Vec<f64>,

    /// The systems.
    #[arg(
        long,
        value_name = "SYSTEM",
        value_delimiter = ',',
        default_value = "rackline,direct,host-cache,store"
    )]
    systems: Vec<System>,

    #[command(flatten)]
    rack: RackArguments,

    /// The links of each host: "tract" for those of the paper's rack, "pcie5" for those of a later one, or a
    /// file that ends with .toml.
    #[arg(long, value_name = "LINKS", default_value = "tract")]
    links: String,

    /// Room of each system for blocks: a number of blocks, a share of the trace's different blocks such as
    /// 5%, or "unlimited".
    #[arg(long, value_name = "N", default_value = "unlimited")]
    capacity_blocks: Capacity,

    /// Room of the drives of rackline-drives, all hosts together: as in --capacity-blocks.
    #[arg(long, value_name = "N", default_value = "unlimited")]
    drive_blocks: Capacity,

    /// Which blocks rackline-drives writes to drives: all, second-touch or frequency; see
    /// `rackline replay`.
    #[arg(long, value_name = "RULE", default_value = "all")]
    admission: AdmissionKind,

    #[command(flatten)]
    kill: KillArguments,

    /// Print the result as JSON, with each request.
    #[arg(long)]
    json: bool,

    /// Draw the time to the first token by load, for each system, into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(!options.rates.is_empty(), "there is no load: give --rates");
    ensure!(!options.systems.is_empty(), "there is no system: give --systems");
    let rack = options.rack.rack()?;
    let kill = options.kill.kill(&rack)?;
    let profile = Profile::read(&options.rack.profile_text()?)?;
    let links = read_links(&options.links)?;
    ensure!(
        links.drives.is_some() || !options.systems.contains(&System::RacklineDrives),
        "these links have no drives: add drive_read_gb_per_s and drive_write_gb_per_s to {}",
        options.links
    );
    let trace = options.workload.trace()?;
    let mut rates = options.rates.clone();
    rates.sort_by(f64::total_cmp);
    let workloads: Vec<_> =
        rates.iter().map(|rate| options.workload.of(&trace, Some(*rate))).collect::<Result<_>>()?;
    for workload in &workloads {
        workload.check(&profile)?;
    }
    let first = workloads.first().context("there is no load")?;
    let capacity = options.capacity_blocks.blocks(first.unique_blocks);
    let block_bytes = profile.kv_bytes.saturating_mul(first.block_tokens);
    let conditions = Conditions {
        trace: options.workload.name(),
        requests: first.requests.len(),
        nodes: rack.nodes(),
        prefill_workers: rack.prefill(),
        decode_workers: rack.decode(),
        profile: profile.name.clone(),
        profile_source: profile.source.clone(),
        links: links.name.clone(),
        links_source: links.source.clone(),
        block_bytes,
        capacity_blocks: capacity,
        drive_blocks: options.drive_blocks.blocks(first.unique_blocks),
        unique_blocks: first.unique_blocks,
        killed: kill.map(|kill| (kill.node, kill.at_ns / 1_000_000_000)),
    };
    let drives = TierOptions {
        admission: options.admission,
        backup_age_ms: BACKUP_AGE_MS,
        block_bytes,
        room_bytes: None,
        watermarks: usual_watermarks(),
    };
    let drive_blocks = options.drive_blocks.blocks(first.unique_blocks);
    let room_bytes = drive_blocks.map(|blocks| u64::from(blocks) * drives.extent_bytes());
    let drives = TierOptions { room_bytes, ..drives };
    let whole = NonZeroU32::MIN;
    let pool = PoolShape {
        nodes: NonZeroU16::new(rack.nodes()).unwrap_or(NonZeroU16::MIN),
        workers_per_node: NonZeroU16::new(rack.workers_per_node()).unwrap_or(NonZeroU16::MIN),
        // A cache of each host that has all room needs as much as one for all.
        chunks: capacity
            .unwrap_or_else(|| first.unique_blocks.saturating_mul(u32::from(rack.nodes()))),
        chunk_blocks: whole,
    };
    if let Some(path) = &options.svg {
        check_writable(path)?;
    }
    let runs = (rates.len() * options.systems.len()) as u64;
    let bar = progress_bar(runs, "{bar:40} {pos}/{len} runs, {eta} left");
    let mut points = Vec::new();
    for (rate, workload) in rates.iter().zip(&workloads) {
        for system in &options.systems {
            let settings = Settings {
                rack,
                pool,
                profile: profile.clone(),
                links: links.clone(),
                system: *system,
                block_bytes,
                software: Software::MEASURED,
                drives: Some(drives),
                kill,
            };
            let Simulated { served, written_to_drives } = simulate(&settings, workload);
            let summary = Summary::of(&served).context("the trace has no requests")?;
            let around_kill = kill.map(|kill| AroundKill::of(&kill, &served)).transpose();
            let around_kill =
                around_kill.with_context(|| format!("{system} at {rate} requests/s"))?;
            points.push(Point {
                system: *system,
                rate: *rate,
                summary,
                written_to_drives,
                around_kill,
                served,
            });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let report = Report { conditions, points };
    report.print(options.json)?;
    if let Some(path) = &options.svg {
        chart::draw(path, &report)?;
    }
    Ok(())
}

fn read_links(name: &str) -> Result<Links> {
    if !name.ends_with(".toml") {
        return Ok(Links::named(name)?);
    }
    let text = std::fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
    Links::read(&text).with_context(|| name.to_owned())
}
