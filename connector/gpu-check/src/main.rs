//! `gpu-check`: whether this machine's GPU moves payload into and out of a pool, and how fast.
//!
//! One binary, to be built anywhere (`cargo build --release -p rackline-gpu-check`) and carried to
//! the machine with the GPU. It needs nothing there but the driver.

mod checksums;
mod content;
mod current;
mod device;
mod errors;
#[cfg(feature = "gds")]
mod file_reads;
mod layers;
mod pieces;
mod registration;
mod registration_cost;
mod report;
mod round_trips;
mod second_process;
mod speed;
mod streams;
mod transfers;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use clap::Parser;
use rackline::cuda::{CudaError, gpus};
use tracing_subscriber::filter::LevelFilter;

use device::Device;
use report::Report;

/// Check that a GPU moves payload between its memory and a pool, byte for byte, and how fast.
///
/// Makes a file of its own in DIRECTORY, registers it with the CUDA driver as a pool is, measures what
/// that takes, stores and loads payloads of many sizes, whole and layer by layer, from several streams
/// and from a second process, provokes errors, publishes and fetches blocks of its memory through a
/// pool of its own, and compares the speed with plain copies to pinned memory in the same run. The file
/// is removed again. Exit status: 0 when all is well, also on a machine without a GPU ("skipped"); 1 when a
/// check failed; 2 for a wrong option.
#[derive(Parser, Debug)]
#[command(name = "gpu-check", version)]
struct Options {
    /// Number of the GPU, as CUDA counts: among those of CUDA_VISIBLE_DEVICES, the fastest first
    /// unless CUDA_DEVICE_ORDER says otherwise.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: usize,

    /// Where the file is made. Memory file systems only: the file stands for the pool.
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    directory: PathBuf,

    /// Size of the file. All of it is registered once, and takes memory, unless --skip-cost is given.
    /// 512MiB at least.
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    size: ByteSize,

    /// Rounds of each measurement; the medians are given.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Leave out the measurement of what it takes to register the file, which puts memory behind all of it.
    #[arg(long)]
    skip_cost: bool,

    /// Also read a file of this folder on a drive into GPU memory with NVIDIA's cuFile. Says so where
    /// cuFile is not installed. Needs a build with `--features gds`.
    #[arg(long, value_name = "DIRECTORY")]
    drive: Option<PathBuf>,

    /// Print one object instead of lines.
    #[arg(long)]
    json: bool,

    /// What the second process is told.
    #[arg(long, hide = true)]
    second_process: Option<second_process::Task>,
}

/// Smaller ones have no room for the batches.
const SIZE_MIN: ByteSize = ByteSize::mib(512);

fn main() -> ExitCode {
    // Warnings and errors of the library, among them why it aborts.
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN);
    log.with_writer(std::io::stderr).init();
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gpu-check: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    anyhow::ensure!(
        options.size >= SIZE_MIN,
        "--size {} is too small: {SIZE_MIN} at least",
        options.size
    );
    anyhow::ensure!(
        options.drive.is_none() || cfg!(feature = "gds"),
        "--drive needs cuFile, which is not part of this build: build with --features gds"
    );
    if let Some(task) = &options.second_process {
        return second_process::carry_out(task, options.gpu);
    }
    match gpus() {
        Ok(0) => return Ok(skipped(options, "the CUDA driver is here, and no GPU")),
        Err(error @ CudaError::Absent) => return Ok(skipped(options, &error.to_string())),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut report = Report::new(options.json);
    let device = Device::open(&options.directory, options.size.as_u64(), options.gpu)
        .context("cannot set up the check")?;
    registration::check(&mut report, &device);
    if !options.skip_cost {
        report.registration_cost(registration_cost::measure(&device, options.gpu));
    }
    report.check("pieces", pieces::check(&device, options.gpu));
    report.check("checksums", checksums::check(&device));
    report.check("round trips", round_trips::check(&device));
    report.check("layers", layers::check(&device));
    report.check("several streams", streams::check(&device));
    report.check("second process", second_process::check(&device, options.gpu, options.size));
    report.check("errors", errors::check(&device));
    if let Some(folder) = &options.drive {
        report.check("cuFile", file_reads(&device, folder));
    }
    report.check("transfers", transfers::check(&device, &options.directory, options.gpu));
    report.speed(speed::measure(&device, options.gpu, options.rounds));
    let figures = device.dma.figures();
    report.check("shutdown", device.close(options.gpu));
    Ok(report.finish(figures))
}

#[cfg(feature = "gds")]
use file_reads::check as file_reads;

#[cfg(not(feature = "gds"))]
fn file_reads(_: &Device, _: &std::path::Path) -> Result<String> {
    unreachable!("--drive was refused")
}

fn skipped(options: &Options, why: &str) -> ExitCode {
    if options.json {
        println!("{}", serde_json::json!({ "skipped": why }));
    } else {
        println!("skipped: {why}");
    }
    ExitCode::SUCCESS
}
