//! `rackline bench rack`: a trace of requests, served by workers on several nodes through a real pool.

mod chart;
mod fleet;
mod protocol;
mod report;
mod run;
mod time;
mod worker;

pub(crate) use worker::{WorkerOptions, run_worker};

use std::num::NonZeroU16;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use bytesize::ByteSize;
use clap::Args;
use rackline_replay::Capacity;
use rackline_serving::{
    Device, Kill, Links, Profile, Rack, Settings, Simulated, Software, System, Workload, simulate,
};

use self::fleet::{Fleet, Order};
use self::report::{Conditions, Part, Report};
use self::run::Outcome;
use super::kill::{KillArguments, check_in_time};
use super::picture::check_writable;
use super::rack_arguments::RackArguments;
use super::workload::{RATE, WorkloadArguments};
use crate::agent::Drive;
use crate::output::progress_bar;
use crate::rack::{Drives, Interrupt, LockManager, OwnRegion, Sizes, bytes_of};

/// Serve a trace on a rack: prefill and decode workers, a real pool, real bytes
///
/// Worker processes on several nodes look up, hold, read and write the KV blocks of each request through
/// a pool in /dev/shm, and check every byte. Where an engine would compute, a worker sleeps for as long as
/// the profile says. Requests arrive when the trace says so, however many others wait.
///
///   rackline bench rack
///   rackline bench rack --workload C --seed 2 --rate 0.8 --prefill 2 --decode 2 --svg rack.svg
///   rackline bench rack mooncake.jsonl --block-tokens 512 --requests 200 --json
///
/// Each request reports how long it waited, was looked up, read, computed and written. What would the same
/// requests take without reuse?
///
///   rackline bench rack --no-reuse
///
/// A block in the pool is smaller than one of the model, so that it fits into this machine. With
/// --device-gb-per-s, a block takes as long as one of the model on a device of that bandwidth. All workers
/// of a node share it. CXL memory in the paper's rack reached 10.1 GB/s and 640 ns:
///
///   rackline bench rack --device-gb-per-s 10.1 --device-latency-ns 640 --beside-simulation
///
/// --beside-simulation runs the same in virtual time too, and prints both. --simulate runs nothing else: a
/// long trace takes seconds.
///
///   rackline bench rack --requests 2000 --device-gb-per-s 10.1 --simulate
///
/// With --drive, blocks that left a small pool come back from drives:
///
///   rackline bench rack --capacity-blocks 20% --drive /mnt/nvme:8GiB
///
/// --speed lets a run pass faster: compute, gaps and the device are faster alike, and times are printed as
/// if they were not. What the software takes counts as many times as much then, and so do its deadlines: a
/// killed node is declared dead after 3 seconds of the machine's clock.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    #[command(flatten)]
    workload: WorkloadArguments,

    /// Requests a second, as the mean; gaps keep their proportions. [default: those of the trace; for a
    /// workload of the paper 0.5]
    #[arg(long, value_name = "PER_SECOND", allow_negative_numbers = true)]
    rate: Option<f64>,

    #[command(flatten)]
    rack: RackArguments,

    /// Length of a block in the pool, whatever it is in the model.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    block_bytes: ByteSize,

    /// Room of the pool: a number of blocks, a share of the trace's different blocks such as 5%, or
    /// "unlimited".
    #[arg(long, value_name = "N", default_value = "unlimited")]
    capacity_blocks: Capacity,

    /// No prompt has a block in common with another: as if nothing was computed before. Decode workers
    /// still read what prefill workers write.
    #[arg(long)]
    no_reuse: bool,

    /// What the link of each node to the device has, in 10^9 bytes of the model's blocks a second.
    /// [default: as fast as this machine]
    #[arg(long, value_name = "GB", allow_negative_numbers = true)]
    device_gb_per_s: Option<f64>,

    /// How long each transfer takes besides, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = 640, requires = "device_gb_per_s")]
    device_latency_ns: u64,

    /// How many times as fast as the clock the time of the run passes.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, allow_negative_numbers = true)]
    speed: f64,

    /// Drives behind the pool, for the time of the run: a folder, and what all nodes may write there
    /// together, such as /mnt/nvme:8GiB. Each node has an agent. Drives are as fast as they are.
    #[arg(long, value_name = "DIR[:SIZE]", conflicts_with_all = ["simulate", "beside_simulation"])]
    drive: Option<Drive>,

    #[command(flatten)]
    kill: KillArguments,

    /// Run in virtual time, without workers and bytes.
    #[arg(long, requires = "device_gb_per_s", conflicts_with = "speed")]
    simulate: bool,

    /// Run in virtual time besides, and print both.
    #[arg(long, requires = "device_gb_per_s", conflicts_with = "simulate")]
    beside_simulation: bool,

    /// Print the result as JSON, with each request.
    #[arg(long)]
    json: bool,

    /// Draw when first tokens come, and what they wait for, into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// How long a lookup waits for blocks on drives.
const RESTORE_WAIT_MS: u64 = 10_000;
/// How long a heartbeat has stopped before its node is declared dead, where workers are killed.
const DECLARE_MS: u64 = 3000;

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        (0.01..=1000.0).contains(&options.speed),
        "the time cannot pass {} times as fast: give --speed 0.01 to 1000",
        options.speed
    );
    let rack = options.rack.rack()?;
    let kill = options.kill.kill(&rack)?;
    let text = options.rack.profile_text()?;
    let profile = Profile::read(&text)?;
    let usual = options.workload.is_made().then_some(RATE);
    let read = options.workload.of(&options.workload.trace()?, options.rate.or(usual))?;
    let workload = if options.no_reuse {
        read.without_reuse().context("more blocks than can be numbered: give fewer --requests")?
    } else {
        read
    };
    workload.check(&profile)?;
    let model_bytes = profile.kv_bytes.saturating_mul(workload.block_tokens);
    let device = |rate| Device::new(rate, options.device_latency_ns);
    let device = options.device_gb_per_s.map(device).transpose()?;
    let capacity = options.capacity_blocks.blocks(workload.unique_blocks);
    let bench =
        Bench { options, rack, text, profile, workload, model_bytes, device, capacity, kill };
    if let Some(path) = &options.svg {
        check_writable(path)?;
    }
    // First what takes less time. Signals end the process then: only the measured run handles them.
    let simulated =
        if options.simulate || options.beside_simulation { Some(bench.simulate()?) } else { None };
    let measured = if options.simulate { None } else { Some(bench.measure()?) };
    let part = |outcome: Outcome| Part::of(outcome).context("the trace has no requests");
    let report = Report {
        conditions: bench.conditions(),
        measured: measured.map(part).transpose()?,
        simulated: simulated.map(part).transpose()?,
    };
    report.print(options.json)?;
    if let Some(path) = &options.svg {
        chart::draw(path, &report)?;
    }
    Ok(())
}

/// A bench whose settings are known to be good.
struct Bench<'o> {
    options: &'o Options,
    rack: Rack,
    text: String,
    profile: Profile,
    workload: Workload,
    /// Bytes of a block of the model.
    model_bytes: u64,
    device: Option<Device>,
    capacity: Option<u32>,
    kill: Option<Kill>,
}

impl Bench<'_> {
    fn sizes(&self) -> Result<Sizes> {
        let nodes = NonZeroU16::new(self.rack.nodes()).unwrap_or(NonZeroU16::MIN);
        let workers = NonZeroU16::new(self.rack.workers_per_node()).unwrap_or(NonZeroU16::MIN);
        let unique = self.workload.unique_blocks;
        // Without a limit nothing is to be evicted, which begins before the last chunk is full.
        let room = self.capacity.unwrap_or_else(|| unique.saturating_add(unique / 3));
        let block_bytes = self.options.block_bytes.as_u64();
        let drives = self.options.drive.as_ref();
        let drive_bytes = drives.map(|drive| bytes_of(drive) / u64::from(self.rack.nodes()));
        let sizes = Sizes::new((nodes, workers), Some(room), unique, block_bytes)?;
        Ok(sizes.with_drives(drive_bytes))
    }

    fn measure(&self) -> Result<Outcome> {
        let Self { options, rack, workload, .. } = self;
        let block_bytes = options.block_bytes.as_u64();
        let interrupt = Interrupt::install_for_terminal()?;
        let region = self.sizes()?.make_region("bench", &interrupt)?;
        // Not where workers are killed. Without a kill nobody is to be declared dead.
        let (manager_node, declare_ms) = match self.kill {
            Some(Kill { node: 0, .. }) => (1, DECLARE_MS),
            Some(_) => (0, DECLARE_MS),
            None => (0, u64::from(u32::MAX)),
        };
        let OwnRegion { region: opened, layout, .. } = &region;
        let manager =
            LockManager::start_with(declare_ms, opened, layout, manager_node, &interrupt)?;
        let name = format!("rackline-bench-{}", std::process::id());
        let start = |drive| Drives::start(&region, rack.nodes(), &name, drive, false, &interrupt);
        let drives = options.drive.as_ref().map(start).transpose()?;
        let scaled = |device: Device| device.scaled(self.model_bytes, block_bytes);
        let order = Order {
            profile: self.text.clone(),
            block_bytes,
            block_tokens: workload.block_tokens,
            speed: options.speed,
            device: self.device.map(|device| scaled(device).faster(options.speed)),
            restore_wait_ms: if drives.is_some() { RESTORE_WAIT_MS } else { 0 },
        };
        let mut fleet = Fleet::start(rack, &region, &order, (manager, drives), &interrupt)?;
        let template = "{bar:40} {pos}/{len} answered, {msg}, {eta} left";
        let bar = progress_bar(workload.requests.len() as u64, template);
        let decode = &self.profile.decode;
        let (speed, kill) = (options.speed, self.kill);
        let outcome = run::serve(&mut fleet, rack, decode, workload, speed, kill, &bar)?;
        bar.finish_and_clear();
        drop(fleet);
        Ok(outcome)
    }

    fn simulate(&self) -> Result<Outcome> {
        let Some(device) = self.device else { bail!("--simulate needs --device-gb-per-s") };
        let settings = Settings {
            rack: self.rack,
            pool: self.sizes()?.shape,
            profile: self.profile.clone(),
            links: Links { device, ..Links::named("tract")? },
            system: System::Rackline,
            block_bytes: self.model_bytes,
            software: Software::MEASURED,
            drives: None,
            kill: self.kill,
        };
        let Simulated { served, .. } = simulate(&settings, &self.workload);
        self.kill.map_or(Ok(()), |kill| check_in_time(&kill, &served)).context("simulated")?;
        Ok(Outcome { served, ..Outcome::default() })
    }

    fn conditions(&self) -> Conditions {
        let Self { options, rack, workload, .. } = self;
        let block_bytes = options.block_bytes.as_u64();
        Conditions {
            trace: options.workload.name(),
            requests: workload.requests.len(),
            reuse: !options.no_reuse,
            nodes: rack.nodes(),
            prefill_workers: rack.prefill(),
            decode_workers: rack.decode(),
            profile: self.profile.name.clone(),
            profile_source: self.profile.source.clone(),
            block_tokens: workload.block_tokens,
            model_block_bytes: self.model_bytes,
            block_bytes,
            capacity_blocks: self.capacity.and_then(|_| Some(self.sizes().ok()?.shape.blocks())),
            unique_blocks: workload.unique_blocks,
            device_gb_per_s: options.device_gb_per_s,
            device_latency_ns: self.device.map(|device| device.latency_ns()),
            speed: options.speed,
            drive: options.drive.as_ref().map(|drive| drive.0.path.display().to_string()),
            killed: self.kill.map(|kill| (kill.node, kill.at_ns / 1_000_000_000)),
        }
    }
}
