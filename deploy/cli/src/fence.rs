//! `rackline fence`: an operator confirms that a dead host is off, which no program can know.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use cxl_shm::layout::read_superblock;
use cxl_shm::member::{HOST_TIER_FOLDER, NodeDeath, confirm_off_here};
use cxl_shm::region::Region;

use crate::output::say;

/// Confirm that a host which was declared dead is off.
///
/// A host that was declared dead and cannot be fenced by the lock manager is quarantined: what it
/// held stays out of use, because it may only be paused, and overwrite it when it wakes. When you
/// know that it is off, or cut off from the memory, say so here: its locks are freed and its node
/// number can be used by another machine. If it is not so, data is overwritten.
///
/// Look at `rackline status` first: it says which host is meant. That may be another than the one that
/// had the node before: one that came for the node number, and died before it had given its name.
///
/// Run it on the host that was appointed to recover it (`rackline status` names it): its lock
/// manager hears it.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// The node of the dead host.
    #[arg(long, value_name = "N")]
    node: u16,

    /// I have made sure that this host is off, or cut off from the memory.
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
             manager declares it when its heart stands still"
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
            "node {recoverer} was appointed to recover node {node}, {whom}, and it is not on this \
             machine; run this command there"
        );
    }
    say!("node {node}, {whom}, is confirmed to be off; node {recoverer} recovers what it left");
    Ok(())
}
