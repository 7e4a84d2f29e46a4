//! `prove`: what the protocols claim, put to the proof. One file a subcommand.
//!
//! Each prints what it found and ends with one line of figures; the exit code is 1 when something
//! was refuted. `cargo run --release -p rackline-tests --bin prove -- help` lists them.

mod mutate;

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
    Mutate(mutate::Options),
}

fn main() -> ExitCode {
    let CommandLine { command } = CommandLine::parse();
    match &command {
        Command::Mutate(options) => mutate::run(options),
    }
}
