//! A child: its command line, and its life from start to end.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use cxl_shm::crash;
use cxl_shm::fabric::{Fabric, MappedHostMemory};
use cxl_shm::member::{Member, ProcLiveness};

use super::event::{Event, tell};
use super::ground::Memory;
use super::life::live;
use super::{manager, worker};

/// A member as children are.
pub(super) type ChildMember<F> = Member<F, MappedHostMemory, ProcLiveness>;

/// What a child is to be. Used by the parent, not by people.
#[derive(Args, Clone, Debug)]
pub struct ChildOptions {
    /// What it does.
    #[arg(long, value_enum)]
    pub(super) part: Part,
    /// Folder of the region and, on shadowed memory, of the host tiers.
    #[arg(long)]
    pub(super) folder: PathBuf,
    /// Its node.
    #[arg(long)]
    pub(super) node: u16,
    /// What stands for the memory.
    #[arg(long, value_enum)]
    pub(super) memory: Memory,
    /// How many lives of any process of this run came before, plus one.
    #[arg(long)]
    pub(super) life: u64,
    /// What it wants follows from it.
    #[arg(long)]
    pub(super) seed: u64,
    /// Number of the worker.
    #[arg(long, default_value_t = 0)]
    pub(super) index: u32,
    /// Number of workers.
    #[arg(long, default_value_t = 0)]
    pub(super) workers: u32,
    /// Number of its next block.
    #[arg(long, default_value_t = 0)]
    pub(super) next_block: u64,
    /// Blocks of earlier lives that are certainly there.
    #[arg(long, value_delimiter = ',')]
    pub(super) blocks: Vec<u64>,
    /// Blocks of earlier lives that may be there.
    #[arg(long, value_delimiter = ',')]
    pub(super) doubtful_blocks: Vec<u64>,
    /// Rounds of everything, one after another, and then the end; without, anything until the
    /// standard input ends.
    #[arg(long)]
    pub(super) rounds: Option<u32>,
}

/// What a child does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Part {
    /// Uses the pool.
    Worker,
    /// Grants locks.
    Manager,
}

/// Set when the parent wants this child to end.
pub(super) type Stop = Arc<AtomicBool>;

/// Runs a child until it is told to end, or killed.
///
/// # Errors
/// When it cannot attach, or the parent does not listen any more. What must never be is said on
/// the pipe.
pub fn run_child(options: &ChildOptions) -> Result<()> {
    crash::arm_from_environment()?;
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("cannot ask to die with the parent")?;
    anyhow::ensure!(rustix::process::getppid() == parent, "the parent has ended already");
    let stop = Stop::default();
    let told = Arc::clone(&stop);
    std::thread::Builder::new()
        .name("standard-input".to_owned())
        .spawn(move || {
            // Whatever ends it, an error too: the parent does not hold it any more.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            told.store(true, Ordering::Relaxed);
        })
        .context("cannot start a thread")?;
    live(options, &stop)?;
    for (point, count) in crash::visits() {
        if count > 0 {
            tell(&Event::Visited(point.name().to_owned(), count))?;
        }
    }
    tell(&Event::Stopped)
}

/// The work of a child that is a member.
pub(super) fn work<F: Fabric>(
    options: &ChildOptions,
    member: &ChildMember<F>,
    stop: &Stop,
) -> Result<()> {
    match options.part {
        Part::Worker => worker::run(options, member, stop),
        Part::Manager => manager::run(member, stop),
    }
}
