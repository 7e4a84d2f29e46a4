//! The `lock-manager` binary. `rackline lock-manager` is the same program.

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
#[command(name = "lock-manager", version)]
struct CommandLine {
    #[command(flatten)]
    options: lock_manager::Options,
}

fn main() -> ExitCode {
    let CommandLine { options } = CommandLine::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match lock_manager::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lock-manager: {error}");
            ExitCode::FAILURE
        }
    }
}
