//! `rackline fsck`: checks what a region holds, and puts right what is safe.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, Superblock, SuperblockError, read_superblock};
use cxl_shm::lifecycle::watch_heartbeats;
use cxl_shm::region::{Region, RegionUse};
use indicatif::ProgressBar;
use kv_cache::{
    Audit, AuditReport, AuditStep, Checked, Fault, Gravity, PayloadSample, Repair, RepairError,
};
use serde::Serialize;

use crate::output::{progress_bar, say};

/// Check a region: all metadata, and the checksums of a sample of its blocks or of all.
///
/// Without --repair the command only reads, needs no permission to write, and joins nothing: the region
/// may be in use. What changes while it is read is looked at again, several times. With --offline nobody
/// may use the region, and what ended processes left is found, too.
///
/// --repair removes damaged blocks and what points to them, and invents nothing. It needs a region
/// without members, and says what it will do before it does it.
///
/// Exit code 0: nothing is damaged, or is no more. 1: the region could not be checked, or repaired.
/// 2: something is damaged.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// Nobody uses the region: find what ended processes left, too. Refused while a process does.
    #[arg(long)]
    offline: bool,

    /// Blocks whose checksums are computed, spread over all; each run takes others.
    #[arg(long, value_name = "BLOCKS", default_value_t = 1000)]
    sample: u64,

    /// Compute the checksums of all blocks.
    #[arg(long, conflicts_with = "sample")]
    all: bool,

    /// Put right what is safe. No process may use the region.
    #[arg(long)]
    repair: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Between two looks at a fault: longer than any write of a line takes, also on a busy host.
const PAUSE_MS: u64 = 500;
/// Faults of one name that are printed in full.
const PRINTED: usize = 20;

#[derive(Debug, Serialize)]
struct Found {
    name: &'static str,
    /// `damage`, or `left` by processes that ended.
    gravity: &'static str,
    /// From the start of the region, in bytes.
    offset: u64,
    place: String,
    meaning: &'static str,
    to_do: &'static str,
}

impl From<&Fault> for Found {
    fn from(fault: &Fault) -> Self {
        Self {
            name: fault.name(),
            gravity: fault.gravity().label(),
            offset: fault.at(),
            place: fault.to_string(),
            meaning: fault.meaning(),
            to_do: fault.to_do(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    region: PathBuf,
    uuid: Option<String>,
    offline: bool,
    metadata_lines: u64,
    descriptors: u64,
    blocks: u64,
    log_entries: u64,
    hold_words: u64,
    drive_entries: u64,
    payload_blocks: u64,
    payload_bytes: u64,
    /// What changed each time that it was looked at: nothing is known of it.
    changing: u64,
    findings: Vec<Found>,
    /// Findings that are not among these: there were too many.
    unlisted: u64,
    /// What was put right, or could be.
    repairs: Vec<String>,
    repaired: bool,
}

impl Report {
    fn new(path: &Path, superblock: &Superblock, offline: bool, audit: &AuditReport) -> Self {
        let Checked {
            metadata_lines,
            descriptors,
            blocks,
            log_entries,
            hold_words,
            drive_entries,
            payload_blocks,
            payload_bytes,
        } = audit.checked;
        Self {
            region: path.to_owned(),
            uuid: Some(superblock.uuid_text()),
            offline,
            metadata_lines,
            descriptors,
            blocks,
            log_entries,
            hold_words,
            drive_entries,
            payload_blocks,
            payload_bytes,
            changing: audit.changing,
            findings: audit.faults.iter().map(Found::from).collect(),
            unlisted: audit.unlisted,
            repairs: Repair::of(&audit.faults).iter().map(Repair::to_string).collect(),
            repaired: false,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let region = if options.repair {
        Region::open(&options.region, None)?
    } else {
        Region::open_read_only(&options.region)?
    };
    let offline = options.offline || options.repair;
    // Nobody attaches meanwhile.
    let _alone = offline.then(|| RegionUse::exclusive(&region)).transpose()?;
    let read = read_superblock(region.fabric());
    if let Err(error @ (SuperblockError::Damaged(_) | SuperblockError::Inconsistent)) = &read {
        return superblock_damaged(options, &region, error);
    }
    let (superblock, layout) = read.with_context(|| region.path().display().to_string())?;
    if offline {
        refuse_members(&region, &layout)?;
    }
    let audit = Audit::new(region.fabric(), &superblock, &layout, !offline)?;
    let mut found = check(&audit, options, &region)?;
    let mut report = Report::new(region.path(), &superblock, offline, &found);
    let repairs = Repair::of(&found.faults);
    if options.repair && !repairs.is_empty() {
        if let Err(error) = audit.may_repair() {
            return refused(&report, options, &error);
        }
        if !options.json {
            say!("--repair will");
            repairs.iter().for_each(|repair| say!("  {repair}"));
        }
        audit.repair(&repairs)?;
        found = check(&audit, options, &region)?;
        let done = std::mem::take(&mut report.repairs);
        report = Report::new(region.path(), &superblock, offline, &found);
        report.repairs = done;
        report.repaired = true;
    }
    print(&report, &found, options)?;
    Ok(if found.is_damaged() { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

/// Prints what was found, and fails because nothing of it may be put right.
fn refused(report: &Report, options: &Options, error: &RepairError) -> Result<ExitCode> {
    if options.json {
        say!("{}", serde_json::to_string(report)?);
    } else {
        report.findings.iter().for_each(print_found);
    }
    bail!("{}: nothing was repaired: {error}", report.region.display())
}

fn check(
    audit: &Audit<'_, impl Fabric>,
    options: &Options,
    region: &Region,
) -> Result<AuditReport> {
    let sample = if options.all {
        PayloadSample::All
    } else {
        // Other blocks in each run.
        let (phase, _) = uuid::Uuid::new_v4().as_u64_pair();
        PayloadSample::Blocks { count: options.sample, phase }
    };
    let bar = progress_bar(1, "{msg} [{bar:30}] {percent} %, {eta} left");
    let clock = SystemClock::start();
    let pause = || clock.sleep_ms(PAUSE_MS);
    let found = audit.run(sample, pause, |step, done, all| show(&bar, step, done, all));
    bar.finish_and_clear();
    if region.fabric().is_cut_off() {
        // What was read after that means nothing.
        bail!("{}: {}", region.path().display(), SuperblockError::MemoryFailed);
    }
    Ok(found)
}

fn show(bar: &ProgressBar, step: AuditStep, done: u64, all: u64) {
    let words = match step {
        AuditStep::Metadata => "metadata".to_owned(),
        AuditStep::Blocks(node) => format!("descriptors of node {node}"),
        AuditStep::Told(node) => format!("logs and holds of node {node}"),
        AuditStep::Drives(node) => format!("drive directory of node {node}"),
        AuditStep::Payload => "payload".to_owned(),
        AuditStep::Faults => "findings, once more".to_owned(),
    };
    if bar.message() != words {
        bar.set_message(words);
        bar.reset_eta();
    }
    bar.set_length(all);
    bar.set_position(done);
}

/// Refuses a region whose nodes live: the mark of use shows processes of this host only.
fn refuse_members(region: &Region, layout: &Layout) -> Result<()> {
    let heartbeats = watch_heartbeats(layout, region.fabric(), &SystemClock::start());
    let beating: Vec<_> = heartbeats
        .iter()
        .filter(|heartbeat| heartbeat.beats)
        .map(|heartbeat| format!("node {} on host \"{}\"", heartbeat.node, heartbeat.host))
        .collect();
    if !beating.is_empty() {
        bail!(
            "{} is in use by {}: stop what runs there, or check the region in use, without --offline \
             and --repair",
            region.path().display(),
            beating.join(", ")
        );
    }
    Ok(())
}

/// Without a superblock there is no layout, and nothing else can be checked.
fn superblock_damaged(
    options: &Options,
    region: &Region,
    error: &SuperblockError,
) -> Result<ExitCode> {
    if options.json {
        let found = serde_json::json!({
            "name": "superblock_damaged",
            "gravity": Gravity::Damage.label(),
            "offset": 0,
            "place": "superblock",
            "meaning": "nobody can attach to the region; those that have attached go on",
            "to_do": error.to_string(),
        });
        let report = serde_json::json!({ "region": region.path(), "findings": [found] });
        say!("{report}");
    } else {
        say!("superblock_damaged at 0x0: {error}");
        say!("  nobody can attach to the region; those that have attached go on");
    }
    Ok(ExitCode::from(2))
}

fn print(report: &Report, audit: &AuditReport, options: &Options) -> Result<()> {
    if options.json {
        say!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    let how = if report.offline { "not in use" } else { "may be in use" };
    say!(
        "region {} in {}, {how}",
        report.uuid.as_deref().unwrap_or_default(),
        report.region.display()
    );
    say!(
        "checked: {} lines of metadata, {} descriptors with {} blocks, {} log entries, {} words of \
         holds, {} entries of drive directories",
        report.metadata_lines,
        report.descriptors,
        report.blocks,
        report.log_entries,
        report.hold_words,
        report.drive_entries
    );
    say!(
        "checksums: {} blocks, {}{}",
        report.payload_blocks,
        ByteSize(report.payload_bytes),
        if options.all { "" } else { " (--all checks every block)" }
    );
    if report.changing > 0 {
        say!("changed while it was read, or too much to look at again: {}", report.changing);
    }
    let mut printed = BTreeMap::new();
    for found in &report.findings {
        let count: &mut usize = printed.entry(found.name).or_default();
        *count += 1;
        if *count <= PRINTED {
            print_found(found);
        }
    }
    for (name, count) in printed.iter().filter(|(_, count)| **count > PRINTED) {
        say!("{name}: {} more (--json has all)", count - PRINTED);
    }
    if report.unlisted > 0 {
        say!("{} more findings are not listed: there are too many", report.unlisted);
    }
    if report.repaired {
        say!("repaired: {}", report.repairs.len());
    }
    match (audit.is_damaged(), report.repairs.is_empty() || report.repaired) {
        (false, _) => say!("nothing is damaged"),
        (true, true) => say!("something is damaged, which --repair does not put right"),
        (true, false) => say!(
            "something is damaged; --repair would put right {} of it, while no process uses the region",
            report.repairs.len()
        ),
    }
    Ok(())
}

fn print_found(found: &Found) {
    let Found { name, offset, place, meaning, to_do, gravity } = found;
    say!("{name} at {offset:#x}: {place}");
    say!("  {gravity}: {meaning}");
    say!("  {to_do}");
}
