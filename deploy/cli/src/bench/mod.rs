//! `rackline bench`: whole racks, measured.

mod rack;

pub(crate) use rack::{WorkerOptions, run_worker};

use anyhow::Result;
use clap::{Args, Subcommand};

/// Measure a rack as its users see it.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand, Debug)]
enum Kind {
    Rack(Box<rack::Options>),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let Kind::Rack(options) = &options.kind;
    rack::run(options)
}
