//! `rackline lock-manager`: the program of the crate `lock-manager`, with a file of settings.

use anyhow::Result;
use clap::Args;

use crate::config::FileOptions;
use crate::output::say;

#[derive(Args, Debug)]
pub(crate) struct ManagerOptions {
    #[command(flatten)]
    manager: lock_manager::Options,

    #[command(flatten)]
    file: FileOptions,
}

pub(crate) fn run(options: &ManagerOptions) -> Result<()> {
    if options.file.check {
        say!("{}", options.file.checked());
        return Ok(());
    }
    Ok(lock_manager::run(&options.manager)?)
}
