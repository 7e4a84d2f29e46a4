//! A child: its command line, and its life from start to end.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use cxl_shm::crash;

use super::event::{Event, tell};
use super::{agent, engine};

/// What a child is to be. Used by the parent, not by people.
#[derive(Args, Clone, Debug)]
pub struct ChildOptions {
    /// What it does.
    #[arg(long, value_enum)]
    pub(super) part: Part,
    /// The region.
    #[arg(long)]
    pub(super) region: PathBuf,
    /// Folder of the folders of all drives.
    #[arg(long)]
    pub(super) folder: PathBuf,
    /// Its host.
    #[arg(long)]
    pub(super) host: u16,
    /// What an engine wants follows from it.
    #[arg(long)]
    pub(super) seed: u64,
    /// The drives lose writes from the start, and say nothing.
    #[arg(long)]
    pub(super) lying: bool,
}

impl ChildOptions {
    /// The arguments from which a child makes these options.
    pub(super) fn arguments(&self) -> Vec<String> {
        let part = self.part.to_possible_value();
        let part = part.map_or_else(String::new, |value| value.get_name().to_owned());
        let values = [
            ("--part", part),
            ("--region", self.region.display().to_string()),
            ("--folder", self.folder.display().to_string()),
            ("--host", self.host.to_string()),
            ("--seed", self.seed.to_string()),
        ];
        let mut arguments = vec!["torture-drives-child".to_owned()];
        arguments.extend(values.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        arguments.extend(self.lying.then(|| "--lying".to_owned()));
        arguments
    }
}

/// What a child does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Part {
    /// Serves prompts.
    Engine,
    /// Owns the drives of its host.
    Agent,
}

/// Runs a child until its standard input ends, or it is killed.
///
/// # Errors
/// When it cannot attach, or the parent does not listen any more. What must never be is said on the
/// pipe.
pub fn run_child(options: &ChildOptions) -> Result<()> {
    crash::arm_from_environment()?;
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("cannot ask to die with the parent")?;
    anyhow::ensure!(rustix::process::getppid() == parent, "the parent has ended already");
    match options.part {
        Part::Engine => engine::run(options)?,
        Part::Agent => agent::run(options)?,
    }
    tell(&Event::Stopped)
}
