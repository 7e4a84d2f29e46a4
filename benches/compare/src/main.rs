//! Rackline beside the ceilings of the machine and beside other stores.
//!
//! Every contender is a pair of processes: one writes blocks, the other finds and reads them. All
//! pairs are alive at once and take turns, so that whatever else the machine does meanwhile hits
//! all of them alike; what is reported is the ratio to a ceiling within one round.
//!
//! ```text
//! driver -- orders, one JSON line each --> writer of a contender    writer --> store --> reader
//!        -- orders ---------------------> reader of a contender
//! ```
//!
//! A worker of another language speaks the same lines ([`protocol`]): `peers/*.py`.

mod contender;
mod driver;
mod peer_process;
mod picture;
mod protocol;
mod report;
mod rounds;
mod stores;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};

use contender::Contender;

/// Rackline beside plain copies, LMDB, Redis, Mooncake and LMCache.
///
/// A writer and a reader process for each contender publish and fetch the same amount of random
/// bytes in blocks of several sizes, one by one and in batches, and the reader checks every byte.
/// Contenders take turns within each round. `benches/compare/run` installs the peers first.
#[derive(Parser)]
#[command(name = "compare", version)]
struct CommandLine {
    #[command(subcommand)]
    worker: Option<Role>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Role {
    /// One side of one contender; started by the program itself.
    #[command(hide = true)]
    Worker(worker::Options),
}

/// What to compare.
#[derive(Args, Debug)]
struct Options {
    /// The contenders, separated by commas. The ceilings (memcpy, stream) always take part.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Contender::DEFAULT)]
    contenders: Vec<Contender>,

    /// Sizes of a block, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "64KiB,512KiB,2MiB,16MiB")]
    sizes: Vec<ByteSize>,

    /// Blocks in a batch; each size is also measured one by one.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..=1024))]
    batch: u32,

    /// Rounds for each figure; the figures are medians over them.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Bytes that each side of each contender moves in a round.
    #[arg(long, default_value = "64MiB")]
    round_bytes: ByteSize,

    /// Keys of a lookup.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    lookup_keys: u32,

    /// Where stores keep their memory. Everything in it is removed at the end.
    #[arg(long, default_value = "/dev/shm")]
    folder: PathBuf,

    /// Draw the figures into this SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print the figures as JSON, with what each round gave.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let CommandLine { worker, options } = CommandLine::parse();
    let outcome = match worker {
        Some(Role::Worker(options)) => worker::run(&options),
        None => compare(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<()> {
    let plan = rounds::Plan::new(options)?;
    let results = driver::run(options, &plan)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        report::print(&results);
    }
    if let Some(path) = &options.svg {
        picture::draw(path, &results)?;
        eprintln!("drawn into {}", path.display());
    }
    Ok(())
}
