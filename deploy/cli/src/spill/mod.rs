//! `rackline spill`: blocks on a drive, without a pool.

mod fsck;
mod list;
mod measure;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use cxl_shm::host::HostIdentity;
use kv_cache::BlockKey;
use kv_drive::store::{Access, FolderOptions, Store, StoreOptions};

use crate::drive_engine::Io;
use crate::output::progress_bar;

/// Write, list and check blocks in a folder of a drive. No pool is needed.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    Write(write::Options),
    List(list::Options),
    Fsck(fsck::Options),
    Measure(measure::Options),
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match &options.action {
        Action::Write(options) => write::run(options).map(|()| ExitCode::SUCCESS),
        Action::List(options) => list::run(options).map(|()| ExitCode::SUCCESS),
        Action::Fsck(options) => fsck::run(options),
        Action::Measure(options) => measure::run(options).map(|()| ExitCode::SUCCESS),
    }
}

/// Opens the store in `folder`, and reads its tables with a progress bar.
fn open(
    folder: &Path,
    io: Io,
    access: Access,
    capacity_bytes: u64,
    take_over: bool,
) -> Result<Store> {
    let [first, second] = HostIdentity::current().context("cannot identify this host")?.machine_id;
    let mut host = [0; 16];
    host[..8].copy_from_slice(&first.to_le_bytes());
    host[8..].copy_from_slice(&second.to_le_bytes());
    let options = StoreOptions { engine: io.into(), host, take_over, access };
    let folder = FolderOptions { path: PathBuf::from(folder), capacity_bytes };
    let store = Store::open(&[folder], options)?;
    let bar = progress_bar(0, "tables [{bar:30}] {pos} of {len} segments");
    let scanned = store.scan(|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    scanned.context("cannot read all tables")?;
    Ok(store)
}

/// For a folder in which nothing is written.
const UNBOUNDED: u64 = 1 << 60;

/// A key in hexadecimal.
struct Hex<'a>(&'a BlockKey);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What reading found lost, on standard error.
fn complain_of_losses(store: &Store) -> u64 {
    let losses: Vec<_> = store.volumes().flat_map(|(_, volume)| volume.losses()).collect();
    losses.iter().for_each(|loss| crate::output::complain!("rackline: {loss}"));
    losses.len() as u64
}
