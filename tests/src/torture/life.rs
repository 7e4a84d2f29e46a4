//! How a child attaches: as any process does, or as a host of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::simulated::CacheMode;
use cxl_shm::fabric::{Fabric, ShadowedFabric};
use cxl_shm::layout::read_superblock;
use cxl_shm::member::{
    Attachment, HEARTBEAT_MS, HostIdentity, HostTier, HostTierFile, LeaveOutcome, Member,
    ProcLiveness, ProcessIdentity,
};
use cxl_shm::region::{Region, RegionUse};

use super::bed;
use super::child::{ChildMember, ChildOptions, Stop, work};
use super::ground::Memory;

/// Attaches, works, leaves.
pub(super) fn live(options: &ChildOptions, stop: &Stop) -> Result<()> {
    let path = bed::region_path(&options.folder);
    let cache = match options.memory {
        Memory::Mapped => {
            let attachment = Attachment::attach(&path, options.node)?;
            return work(options, attachment.member(), stop);
        }
        Memory::Shadowed => CacheMode::Adversarial,
        Memory::Sticky => CacheMode::Sticky,
    };
    let region = Region::open(&path, None)?;
    let _in_use = RegionUse::shared(&region)?;
    // The next life of the host has other habits.
    let seed = options.seed ^ options.life << 20;
    let fabric = ShadowedFabric::new(region.fabric().clone(), cache, seed);
    let host = own_host(options.node, options.life)?;
    let member = join(fabric.clone(), &options.folder, options.node, &host)?;
    let agent = join(fabric, &options.folder, options.node, &host)?;
    let ends = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ends);
    let agent = std::thread::Builder::new()
        .name("agent".to_owned())
        .spawn(move || {
            let clock = SystemClock::start();
            while !told.load(Ordering::Relaxed) {
                agent.beat();
                clock.sleep_ms(HEARTBEAT_MS);
            }
            agent
        })
        .context("cannot start a thread")?;
    let outcome = work(options, &member, stop);
    ends.store(true, Ordering::Relaxed);
    let agent = agent.join().map_err(|_| anyhow::anyhow!("the agent panicked"))?;
    leave(agent, &options.folder)?;
    leave(member, &options.folder)?;
    outcome
}

/// A host that only this life of a process has: the machine of its node, in another boot.
pub(super) fn own_host(node: u16, life: u64) -> Result<HostIdentity> {
    let host = HostIdentity::current().context("cannot read who we are from /proc")?;
    let name = format!("host-{node}");
    Ok(HostIdentity { name, boot_id: [life, 1], machine_id: [u64::from(node) + 1, 7], ..host })
}

/// Joins as a process of `node` whose tier lies in `folder`.
pub(super) fn join<F: Fabric>(
    fabric: F,
    folder: &Path,
    node: u16,
    host: &HostIdentity,
) -> Result<ChildMember<F>> {
    let (superblock, layout) = read_superblock(&fabric)?;
    let known = layout.node(node).context("the region has no such node")?;
    let file = HostTierFile::lock(&HostTierFile::path_in(folder, &superblock, known))?;
    let memory = file.map(HostTier::words_of(&superblock.geometry))?;
    let process = ProcessIdentity::current().context("cannot read who we are from /proc")?;
    let clock = SystemClock::start();
    Ok(Member::join(fabric, memory, node, host, process, ProcLiveness, &clock)?)
}

/// Leaves, and removes the tier when it was the last process of its host.
pub(super) fn leave<F: Fabric>(member: ChildMember<F>, folder: &Path) -> Result<()> {
    let path = HostTierFile::path_in(folder, member.superblock(), member.node());
    let file = HostTierFile::lock(&path)?;
    if member.leave() == LeaveOutcome::NodeLeft {
        file.remove()?;
    }
    Ok(())
}
