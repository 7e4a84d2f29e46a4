//! The `lock-manager` binary. `rackline lock-manager` is the same program.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use lock_manager::{Log, LogFormat, LogOptions, ManagerFigures};

#[derive(Parser)]
#[command(name = "lock-manager", version)]
struct CommandLine {
    #[command(flatten)]
    options: lock_manager::Options,

    #[command(flatten)]
    log: LogOptions,
}

/// This program has flags and variables of the environment alone.
fn read_again() -> Result<lock_manager::Options, String> {
    CommandLine::try_parse().map(|line| line.options).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let CommandLine { options, log: LogOptions { log_format } } = CommandLine::parse();
    let outcome = match Log::to_stderr(log_format) {
        Ok(_log) => {
            let outcome = lock_manager::run(&options, &ManagerFigures::default(), &read_again);
            if let (LogFormat::Json, Err(error)) = (log_format, &outcome) {
                tracing::error!("{error}");
                return ExitCode::FAILURE;
            }
            outcome.map_err(|error| error.to_string())
        }
        Err(error) => Err(format!("cannot start the thread of the log: {error}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where that cannot be written, the exit status tells.
            let _ = writeln!(std::io::stderr(), "lock-manager: {error}");
            ExitCode::FAILURE
        }
    }
}
