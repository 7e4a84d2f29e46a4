//! The `rackline` command: one program for everything an operator does with a region.

mod fence;
mod format;
mod geometry;
mod qualify;
mod rack;
mod replay;
mod status;

#[cfg(feature = "demo")]
mod demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// A KV cache for racks of LLM servers that share CXL memory.
///
/// Every host of the rack maps the same memory device. `rackline format` makes it a region once,
/// `rackline lock-manager` runs on one host (and, as a standby, on a second), and the connectors
/// in prefill and decode workers do the rest. `rackline demo` shows all of it on one machine.
#[derive(Parser)]
#[command(name = "rackline", version, propagate_version = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Format(format::Options),
    Qualify(qualify::Options),
    Status(status::Options),
    Replay(Box<replay::Options>),
    #[command(hide = true)]
    ReplayWorker(replay::WorkerOptions),
    Geometry(geometry::Options),
    Fence(fence::Options),
    LockManager(lock_manager::Options),
    #[cfg(feature = "demo")]
    Demo(demo::Options),
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoWorker(demo::WorkerOptions),
}

fn main() -> ExitCode {
    let CommandLine { command } = CommandLine::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let outcome = match &command {
        Command::Format(options) => format::run(options),
        Command::Qualify(options) => match qualify::run(options) {
            // What was measured is printed; the code is for scripts.
            Ok(qualify::Verdict::Unfit) => return ExitCode::from(2),
            Ok(qualify::Verdict::Fit) => Ok(()),
            Err(error) => Err(error),
        },
        Command::Status(options) => status::run(options),
        Command::Replay(options) => replay::run(options),
        Command::ReplayWorker(options) => replay::run_worker(options),
        Command::Geometry(options) => geometry::run(options),
        Command::Fence(options) => fence::run(options),
        Command::LockManager(options) => lock_manager::run(options).map_err(Into::into),
        #[cfg(feature = "demo")]
        Command::Demo(options) => demo::run(options),
        #[cfg(feature = "demo")]
        Command::DemoWorker(options) => demo::run_worker(options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rackline: {error:#}");
            ExitCode::FAILURE
        }
    }
}
