//! `rackline manual` and `rackline completions`: what packages install beside the command.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output::say;

/// Write a manual page of each command into a folder.
#[derive(Args, Debug)]
pub(crate) struct ManualOptions {
    /// An existing folder: `man -l FOLDER/rackline.1` shows a page.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Print what a shell completes commands and flags with.
#[derive(Args, Debug)]
pub(crate) struct CompletionsOptions {
    /// The shell. For bash: `rackline completions bash >/etc/bash_completion.d/rackline`.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn write(options: &ManualOptions, command: Command) -> Result<()> {
    let folder = &options.folder;
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("cannot write manual pages into {}", folder.display()))?;
    say!("{}", folder.join("rackline.1").display());
    Ok(())
}

pub(crate) fn complete(options: &CompletionsOptions, mut command: Command) {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut command, "rackline", &mut text);
    say!("{}", String::from_utf8_lossy(&text).trim_end());
}
