//! `rackline bench`: whole racks, measured and simulated.

mod kill;
mod picture;
#[cfg(feature = "demo")]
mod profile;
mod rack;
mod rack_arguments;
mod systems;
mod workload;

pub(crate) use rack::{WorkerOptions, run_worker};

use anyhow::Result;
use clap::{Args, Subcommand};

/// Measure a rack as its users see it, and compare systems.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand, Debug)]
enum Kind {
    Rack(Box<rack::Options>),
    Systems(Box<systems::Options>),
    #[cfg(feature = "demo")]
    Profile(profile::Options),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.kind {
        Kind::Rack(options) => rack::run(options),
        Kind::Systems(options) => systems::run(options),
        #[cfg(feature = "demo")]
        Kind::Profile(options) => profile::run(options),
    }
}
