//! `prove`: what the protocols claim, put to the proof. One file a subcommand.
//!
//! Each prints what it found and ends with one line of figures; the exit code is 1 when something
//! was refuted. `cargo run --release -p rackline-tests --bin prove -- help` lists them.

mod explore;
mod mutate;
mod simulate;
mod torture;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Puts the protocols to the proof.
#[derive(Parser)]
#[command(name = "prove", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Explore(explore::Options),
    Mutate(mutate::Options),
    Simulate(simulate::Options),
    Torture(torture::Options),
    #[command(hide = true)]
    TortureChild(torture::Child),
    #[command(hide = true)]
    TortureDrivesChild(torture::DrivesChild),
}

fn main() -> ExitCode {
    let CommandLine { command } = CommandLine::parse();
    match &command {
        Command::Explore(options) => explore::run(options),
        Command::Mutate(options) => mutate::run(options),
        Command::Simulate(options) => simulate::run(options),
        Command::Torture(options) => torture::run(options),
        Command::TortureChild(child) => torture::run_one(child),
        Command::TortureDrivesChild(child) => torture::run_one_with_drives(child),
    }
}

/// Cores of this machine.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
