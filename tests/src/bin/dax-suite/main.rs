//! What `tests/virtual-hosts/run` runs on each of its hosts: checks of one real device that several
//! hosts share, one subcommand each.
//!
//! A check ends with status 0 and one line `figures name=value ...`, or with the reason on standard
//! error. What two hosts have to do at once is started on both; they wait for each other through
//! the device itself.

mod blocks;
mod chunk_lines;
mod chunks;
mod conform;
mod counter;
mod litmus;
mod misuse;
mod objects;
mod torture;
mod wipe;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checks of a real shared device. Not for a device that holds anything.
#[derive(Parser)]
#[command(name = "dax-suite", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Conform(conform::Options),
    Litmus(litmus::Options),
    Wipe(wipe::Options),
    Misuse(misuse::Options),
    TouchBeyond(misuse::TouchBeyondOptions),
    Counter(counter::Options),
    Torture(torture::Options),
    Chunks(chunks::Options),
    Objects(objects::Options),
    Blocks(blocks::Options),
}

fn main() -> ExitCode {
    let outcome = match CommandLine::parse().command {
        Command::Conform(options) => conform::run(&options),
        Command::Litmus(options) => litmus::run(&options),
        Command::Wipe(options) => wipe::run(&options),
        Command::Misuse(options) => misuse::run(&options),
        Command::TouchBeyond(options) => misuse::touch_beyond(&options),
        Command::Counter(options) => counter::run(&options),
        Command::Torture(options) => torture::run(&options),
        Command::Chunks(options) => chunks::run(&options),
        Command::Objects(options) => objects::run(&options),
        Command::Blocks(options) => blocks::run(&options),
    };
    match outcome {
        Ok(figures) => {
            println!("figures {figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("dax-suite: {error:#}");
            ExitCode::FAILURE
        }
    }
}
