//! `rackline spill list`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use kv_drive::store::Access;

use super::{Hex, Io};
use crate::output::{complain, say};

/// Print the key of every block whose bytes are those that were written, one a line.
///
/// Nothing in the folder changes. What is damaged is named on standard error.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// The folder.
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// How payload reaches this process.
    #[arg(long, value_enum, default_value_t = Io::Uring)]
    io: Io,
}

pub(super) fn run(options: &Options) -> Result<()> {
    let store = super::open(&options.folder, options.io, Access::Read, super::UNBOUNDED, true)?;
    store.verify(|(key, outcome)| {
        match outcome {
            Ok(_) => say!("{}", Hex(&key)),
            Err(miss) => complain!("rackline: {}: {miss}", Hex(&key)),
        }
        true
    });
    super::complain_of_losses(&store);
    Ok(())
}
