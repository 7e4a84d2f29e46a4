//! The `rackline` command: one program for everything an operator does with a region.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod agent;
mod agents;
mod bench;
mod clear;
mod config;
mod directives;
mod drain;
mod drive_engine;
mod events;
mod fence;
mod format;
mod fsck;
mod geometry;
mod identities;
mod inspect;
mod leftovers;
mod lock_manager;
mod manual;
mod metrics;
mod output;
mod page;
mod pin;
mod plan;
mod qualify;
mod rack;
mod replay;
mod simulate;
mod spill;
mod status;
mod summaries;
mod trace;
mod watch;

#[cfg(feature = "demo")]
mod demo;
#[cfg(feature = "top")]
mod top;

use std::ffi::OsString;
use std::process::ExitCode;

use ::lock_manager::{Log, LogFormat};
use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};

/// A KV cache for racks of LLM servers that share CXL memory.
///
/// Every host of the rack maps the same memory device. `rackline format` makes it a region once,
/// `rackline lock-manager` runs on one host (and, as a standby, on a second), and the connectors
/// in prefill and decode workers do the rest. `rackline demo` shows all of it on one machine.
#[derive(Parser)]
#[command(name = "rackline", version, propagate_version = true, after_help = EXIT_STATUS)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str = "\
Exit status:
  0  done, or the reader of the output closed it before its end
  1  not done; the error is on standard error
  2  wrong arguments; qualify: the memory is unfit; fsck, spill fsck: something is
     damaged; status --check: somebody has to act
  3  status --check: something is lost or slower until somebody acts";

#[derive(Subcommand)]
enum Command {
    Format(format::Options),
    Qualify(qualify::Options),
    Status(status::Options),
    #[cfg(feature = "top")]
    Top(top::Options),
    Fsck(fsck::Options),
    Inspect(inspect::Options),
    Leftovers(leftovers::Options),
    Replay(Box<replay::Options>),
    Trace(trace::Options),
    #[command(hide = true)]
    ReplayWorker(replay::WorkerOptions),
    Bench(bench::Options),
    #[command(hide = true)]
    BenchWorker(bench::WorkerOptions),
    Geometry(geometry::Options),
    Plan(plan::Options),
    Simulate(simulate::Options),
    Clear(clear::Options),
    Pin(pin::PinOptions),
    Unpin(pin::UnpinOptions),
    Events(events::Options),
    Drain(drain::Options),
    Fence(fence::Options),
    Spill(spill::Options),
    LockManager(lock_manager::ManagerOptions),
    Agent(Box<agent::Options>),
    Manual(manual::ManualOptions),
    Completions(manual::CompletionsOptions),
    #[cfg(feature = "demo")]
    Demo(demo::Options),
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoWorker(demo::WorkerOptions),
}

impl Command {
    const fn log_format(&self) -> LogFormat {
        match self {
            Self::LockManager(options) => options.log.log_format,
            Self::Agent(options) => options.log.log_format,
            _ => LogFormat::Text,
        }
    }
}

fn main() -> ExitCode {
    let command = match parsed(std::env::args_os().collect()) {
        Ok(command) => command,
        Err(Refused::ByClap(error)) => error.exit(),
        Err(Refused::Told(error)) => {
            output::complain!("rackline: {error}");
            return ExitCode::from(2);
        }
    };
    let format = command.log_format();
    let outcome = match Log::to_stderr(format) {
        Ok(_log) => {
            let outcome = run(&command);
            if let (LogFormat::Json, Err(error)) = (format, &outcome) {
                tracing::error!("{}", in_words(error));
                return ExitCode::FAILURE;
            }
            outcome
        }
        Err(error) => Err(anyhow::Error::new(error).context("cannot start the thread of the log")),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            output::complain!("rackline: {}", in_words(&error));
            ExitCode::FAILURE
        }
    }
}

/// What this process was told, from its flags and from the file that they name, read again.
fn parsed_again() -> Result<Command, String> {
    parsed(std::env::args_os().collect()).map_err(|refused| match refused {
        Refused::ByClap(error) => error.to_string(),
        Refused::Told(error) => error,
    })
}

/// Why arguments are no command.
enum Refused {
    /// Something in the file that they name; the error in words.
    Told(String),
    /// What was typed, in the words of clap; also where help was asked for.
    ByClap(clap::Error),
}

/// The command that arguments, with the file that they name, say.
fn parsed(arguments: Vec<OsString>) -> Result<Command, Refused> {
    let expanded = config::with_file(arguments).map_err(|error| Refused::Told(in_words(&error)))?;
    match CommandLine::try_parse_from(&expanded.arguments) {
        Ok(line) => Ok(line.command),
        Err(error) => Err(match expanded.explained(&error) {
            Some(text) => Refused::Told(text),
            None => Refused::ByClap(error),
        }),
    }
}

/// An error with its causes. Many an error says its cause itself: that is not said twice.
fn in_words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{cause}");
        }
    }
    text
}

/// Runs a command to its end. What was measured, or found, may have an exit status of its own.
fn run(command: &Command) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    match command {
        Command::Format(options) => format::run(options),
        Command::Qualify(options) => qualify::run(options).map(|verdict| match verdict {
            // What was measured is printed; the code is for scripts.
            qualify::Verdict::Unfit => code = ExitCode::from(2),
            qualify::Verdict::Fit => {}
        }),
        Command::Status(options) => status::run(options).map(|exit| code = exit),
        #[cfg(feature = "top")]
        Command::Top(options) => top::run(options),
        Command::Leftovers(options) => leftovers::run(options),
        Command::Inspect(options) => inspect::run(options),
        Command::Fsck(options) => fsck::run(options).map(|exit| code = exit),
        Command::Replay(options) => replay::run(options),
        Command::Trace(options) => trace::run(options),
        Command::ReplayWorker(options) => replay::run_worker(options),
        Command::Bench(options) => bench::run(options),
        Command::BenchWorker(options) => bench::run_worker(options),
        Command::Geometry(options) => geometry::run(options),
        Command::Plan(options) => plan::run(options),
        Command::Simulate(options) => simulate::run(options),
        Command::Clear(options) => clear::run(options),
        Command::Pin(options) => pin::pin(options),
        Command::Unpin(options) => pin::unpin(options),
        Command::Events(options) => events::run(options),
        Command::Drain(options) => drain::run(options),
        Command::Fence(options) => fence::run(options),
        Command::Spill(options) => spill::run(options).map(|exit| code = exit),
        Command::LockManager(options) => lock_manager::run(options),
        Command::Agent(options) => agent::run(options),
        Command::Manual(options) => manual::write(options, CommandLine::command()),
        Command::Completions(options) => {
            manual::complete(options, CommandLine::command());
            Ok(())
        }
        #[cfg(feature = "demo")]
        Command::Demo(options) => demo::run(options),
        #[cfg(feature = "demo")]
        Command::DemoWorker(options) => demo::run_worker(options),
    }?;
    output::finish()?;
    Ok(code)
}
