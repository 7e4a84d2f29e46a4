//! `rackline fence`: an operator confirms that a dead host is off, which no program can know.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use cxl_shm::host::HOST_TIER_FOLDER;
use cxl_shm::layout::read_superblock;
use cxl_shm::lifecycle::{NodeDeath, confirm_off_here};
use cxl_shm::region::Region;

use crate::output::say;

/// Confirm that a host which was declared dead is off.
///
/// The lock manager quarantines a dead host that it cannot fence. The locks and the memory of that
/// host stay out of use, because it may only be paused and may write again. When you know that the
/// host is off, or cut off from the memory, confirm it here. Its locks are then freed, and another
/// machine can use its node number. A wrong confirmation lets a live host overwrite data.
///
/// Run `rackline status` first: it says which host is meant. That may be a host that was joining
/// under this number and died before it had published its name.
///
/// Run this on the host that was appointed as the recoverer (`rackline status` names it): the lock
/// manager there waits for the confirmation.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// The node of the dead host.
    #[arg(long, value_name = "N")]
    node: u16,

    /// You have made sure that this host is off, or cut off from the memory.
    #[arg(long, required = true)]
    confirm_off: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    // The flag is what is asked for: clap demands it.
    let Options { region: path, node, confirm_off: _ } = options;
    let region = Region::open(path, None)?;
    let (superblock, layout) =
        read_superblock(region.fabric()).with_context(|| region.path().display().to_string())?;
    let Some(node) = layout.node(*node) else {
        bail!("node {node} does not exist: this region has {}", layout.geometry().nodes);
    };
    let Some(death) = NodeDeath::of(&layout, region.fabric(), node) else {
        bail!(
            "node {node} was not declared dead: there is nothing to confirm; a running lock \
             manager declares it dead when its heartbeat stops"
        );
    };
    let recoverer = death.decision.appointment.recoverer;
    let name = layout.host_name(node).fresh(region.fabric());
    let name = name.map_or_else(|_| "unknown".to_owned(), |name| name.to_string());
    let whom = death.whom_in_words(&name);
    if !death.is_quarantined() {
        bail!("node {node}, {whom}, needs no confirmation: {}", death.in_words());
    }
    let known = layout.node(recoverer.0).context("the appointed recoverer is no node")?;
    let folder = Path::new(HOST_TIER_FOLDER);
    if !confirm_off_here(folder, &superblock, known, node, death.decision.case.incarnation)? {
        bail!(
            "node {recoverer} was appointed to recover node {node}, {whom}, and is not on this \
             machine; run this command on the host of node {recoverer}"
        );
    }
    say!(
        "node {node}, {whom}, is confirmed to be off; node {recoverer} recovers its locks and \
         memory"
    );
    Ok(())
}
