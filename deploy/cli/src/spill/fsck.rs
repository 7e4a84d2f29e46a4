//! `rackline spill fsck`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use kv_drive::store::Access;
use kv_drive::volume::EncodedBlocks;
use serde::Serialize;

use super::{Hex, Io};
use crate::output::{complain, progress_bar, say};

/// Read every block in a folder, and check all bytes and accounts.
///
/// Without --repair nothing in the folder changes. With it damaged blocks are removed, and a manifest
/// that cannot be used is made anew from the journals and tables that are there.
///
/// Exit code 0: all is well, or is now. 1: the folder could not be checked, or repaired. 2: something
/// is damaged, and --repair was not given.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// The folder.
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Remove what is damaged.
    #[arg(long)]
    repair: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// How payload reaches this process.
    #[arg(long, value_enum, default_value_t = Io::Uring)]
    io: Io,

    /// Repair the folder although another host has written it. That host must have given it up.
    #[arg(long, requires = "repair")]
    take_over: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    /// Blocks whose bytes are those that were written.
    verified_blocks: u64,
    verified_bytes: u64,
    /// Blocks that are encoded, and what their payload takes in whole pages: as it is written, and as
    /// it would be raw.
    encoded_blocks: u64,
    encoded_bytes: u64,
    encoded_raw_bytes: u64,
    /// Keys of blocks whose bytes are others.
    damaged: Vec<String>,
    /// Keys of blocks that could not be read. They stay.
    unreadable: Vec<String>,
    /// What journals and tables do not say any more, in words.
    losses: Vec<String>,
    /// What does not add up, in words.
    accounts: Vec<String>,
    /// Bytes written to the folder since it was made.
    written_bytes: u64,
    repaired: bool,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let access = if options.repair { Access::Repair } else { Access::Read };
    let take_over = options.take_over || !options.repair;
    let store = super::open(&options.folder, options.io, access, super::UNBOUNDED, take_over)?;
    let blocks = store.volumes().map(|(_, volume)| volume.usage().blocks).sum();
    let mut report = Report::default();
    for (_, volume) in store.volumes() {
        let EncodedBlocks { blocks, bytes, raw_bytes } = volume.usage().encoded;
        report.encoded_blocks += blocks;
        report.encoded_bytes += bytes;
        report.encoded_raw_bytes += raw_bytes;
    }
    let bar = progress_bar(blocks, "blocks [{bar:30}] {pos} of {len}, {eta} left");
    store.verify(|(key, outcome)| {
        bar.inc(1);
        match outcome {
            Ok(bytes) => {
                report.verified_blocks += 1;
                report.verified_bytes += u64::from(bytes);
            }
            Err(miss) if miss.is_damage() => report.damaged.push(Hex(&key).to_string()),
            Err(miss) => {
                complain!("rackline: {}: {miss}", Hex(&key));
                report.unreadable.push(Hex(&key).to_string());
            }
        }
        true
    });
    bar.finish_and_clear();
    for (_, volume) in store.volumes() {
        report.losses.extend(volume.losses().iter().map(ToString::to_string));
        report.accounts.extend(volume.check().err());
        report.written_bytes += volume.endurance().written_bytes;
    }
    let is_well = report.damaged.is_empty()
        && report.unreadable.is_empty()
        && report.losses.is_empty()
        && report.accounts.is_empty();
    if options.repair {
        // The second one writes the tables of the segments that the first has closed.
        for _ in 0..2 {
            if let Some(error) = store.commit().1.into_iter().next() {
                bail!("cannot repair {}: {error}", options.folder.display());
            }
        }
        report.repaired = !is_well;
    }
    print(&report, options)?;
    if !report.unreadable.is_empty() || !report.accounts.is_empty() {
        bail!("{} could not be checked whole", options.folder.display());
    }
    Ok(if is_well || options.repair { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn print(report: &Report, options: &Options) -> Result<()> {
    if options.json {
        say!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    let Report { verified_blocks, verified_bytes, damaged, losses, accounts, repaired, .. } =
        report;
    say!("blocks that are whole: {verified_blocks}, with {verified_bytes} bytes");
    if report.encoded_blocks > 0 {
        say!(
            "of these are encoded: {}, in {} bytes instead of {}",
            report.encoded_blocks,
            report.encoded_bytes,
            report.encoded_raw_bytes
        );
    }
    say!("blocks that are damaged: {}", damaged.len());
    damaged.iter().for_each(|key| say!("  {key}"));
    losses.iter().chain(accounts).for_each(|line| say!("lost: {line}"));
    match (repaired, damaged.is_empty() && losses.is_empty() && accounts.is_empty()) {
        (true, _) => say!("repaired: what was damaged is removed"),
        (false, true) => say!("all is well"),
        (false, false) => say!(
            "to remove what is damaged: rackline spill fsck --repair {}",
            options.folder.display()
        ),
    }
    Ok(())
}
