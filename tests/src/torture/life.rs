//! How a child attaches: as any process does, or as a host of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::MappedHostMemory;
use cxl_shm::host::{HostIdentity, HostTier, HostTierFile, ProcLiveness, ProcessIdentity};
use cxl_shm::layout::read_superblock;
use cxl_shm::lifecycle::{
    AttachError, Attachment, Fence, JoinError, LeaveOutcome, NoFence, ProcessFence,
};
use cxl_shm::node::{Backend, HEARTBEAT_MS, Member};
use cxl_shm::region::{Region, RegionUse};
use cxl_shm::verify::BackendOf;
use cxl_shm::verify::as_mutant;
use cxl_shm::verify::shadowed::ShadowedFabric;
use cxl_shm::verify::simulated::CacheMode;
use cxl_shm_objects::ObjectChunks;

use super::bed;
use super::child::{ChildOptions, Orders, work};
use super::event::{Event, tell};
use super::fence::ParentsWord;
use super::ground::Memory;

/// How often a child tries to join while its former life is being recovered.
const AGAIN_MS: u64 = 20;

/// A host whose caches are shadowed.
type ShadowedBackend = BackendOf<ShadowedFabric, MappedHostMemory, ProcLiveness>;

/// Attaches, works, leaves.
pub(super) fn live(options: &ChildOptions, orders: &Orders) -> Result<()> {
    let path = bed::region_path(&options.folder);
    let cache = match options.memory {
        Memory::Mapped => {
            let attachment = attach(options, &path)?;
            let member = attachment.member();
            let mut fence: Box<dyn Fence> = if options.declare {
                let fabric = member.fabric().clone();
                Box::new(ProcessFence::new(fabric, *member.superblock(), *member.layout())?)
            } else {
                Box::new(NoFence)
            };
            return work(options, member, &mut fence, orders);
        }
        Memory::Shadowed => CacheMode::Adversarial,
        Memory::Sticky => CacheMode::Sticky,
    };
    let region = Region::open(&path, None)?;
    let _in_use = RegionUse::shared(&region)?;
    // The next life of the host has other habits.
    let seed = options.seed ^ options.life << 20;
    let fabric = ShadowedFabric::new(region.fabric().clone(), cache, seed);
    // Where nobody is declared dead, nobody could help a machine that dies in admission and boots
    // (JOIN-J4).
    let boot = if options.declare { options.life } else { 1 };
    let host = own_host(options.node, boot)?;
    let member: Member<ShadowedBackend> = loop {
        match join(fabric.clone(), &options.folder, options.node, &host) {
            Err(JoinFailed::Refused(error)) if will_pass(options, &error) => wait()?,
            outcome => break outcome?,
        }
    };
    let agent: Member<ShadowedBackend> = join(fabric, &options.folder, options.node, &host)?;
    let mutant = options.mutant;
    let agent = Agent::start(agent, move |agent| {
        as_mutant(mutant, || agent.beat());
    })?;
    let outcome = work(options, &member, &mut ParentsWord::in_folder(&options.folder), orders);
    leave(agent.stop()?, &options.folder)?;
    leave(member, &options.folder)?;
    outcome
}

fn attach(options: &ChildOptions, path: &Path) -> Result<Attachment> {
    loop {
        match Attachment::attach_with(path, options.node, ObjectChunks) {
            Err(AttachError::Join(error)) if will_pass(options, &error) => wait()?,
            outcome => return Ok(outcome?),
        }
    }
}

/// Whether joining is refused because the host was declared dead, and is being recovered, or will
/// be: its life before, in another boot, died in admission (JOIN-J4).
fn will_pass(options: &ChildOptions, error: &JoinError) -> bool {
    let dead = matches!(
        error,
        JoinError::MembershipLost(_)
            | JoinError::BeingRecovered { .. }
            | JoinError::Contended { .. }
    );
    options.declare && dead
}

fn wait() -> Result<()> {
    tell(&Event::Busy)?;
    SystemClock::start().sleep_ms(AGAIN_MS);
    Ok(())
}

/// A thread that does now and then what a host needs done.
pub(super) struct Agent<B: Backend> {
    ends: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Member<B>>,
}

impl<B: Backend> Agent<B>
where
    Member<B>: Send + 'static,
{
    pub(super) fn start(
        member: Member<B>,
        act: impl Fn(&Member<B>) + Send + 'static,
    ) -> Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = std::thread::Builder::new()
            .name("agent".to_owned())
            .spawn(move || {
                let clock = SystemClock::start();
                while !told.load(Ordering::Relaxed) {
                    act(&member);
                    clock.sleep_ms(HEARTBEAT_MS);
                }
                member
            })
            .context("cannot start a thread")?;
        Ok(Self { ends, thread })
    }

    /// Ends it; its member.
    pub(super) fn stop(self) -> Result<Member<B>> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the agent panicked"))
    }
}

/// The host of a process alone: the machine of its node, in boot number `boot`.
pub(super) fn own_host(node: u16, boot: u64) -> Result<HostIdentity> {
    let host = HostIdentity::current().context("cannot read who we are from /proc")?;
    let name = format!("host-{node}");
    Ok(HostIdentity { name, boot_id: [boot, 1], machine_id: [u64::from(node) + 1, 7], ..host })
}

/// Why a process did not join.
#[derive(Debug, thiserror::Error)]
pub(super) enum JoinFailed {
    /// It may not.
    #[error(transparent)]
    Refused(#[from] JoinError),
    /// It cannot.
    #[error("{0:#}")]
    Broken(#[from] anyhow::Error),
}

/// Joins as a process of `node` whose tier lies in `folder`.
pub(super) fn join<B>(
    fabric: B::Fabric,
    folder: &Path,
    node: u16,
    host: &HostIdentity,
) -> Result<Member<B>, JoinFailed>
where
    B: Backend<HostMemory = MappedHostMemory, Liveness = ProcLiveness>,
{
    let (superblock, layout) = read_superblock(&fabric).context("there is no region")?;
    let known = layout.node(node).context("the region has no such node")?;
    let file = HostTierFile::lock(&HostTierFile::path_in(folder, &superblock, known));
    let file = file.context("no host tier")?;
    let memory = file.map(HostTier::words_of(&superblock.geometry)).context("no host tier")?;
    let process = ProcessIdentity::current().context("cannot read who we are from /proc")?;
    let clock = SystemClock::start();
    Ok(Member::join(fabric, memory, node, host, process, ProcLiveness, &clock)?)
}

/// Leaves, and removes the tier when it was the last process of its host.
pub(super) fn leave<B: Backend>(member: Member<B>, folder: &Path) -> Result<()> {
    let path = HostTierFile::path_in(folder, member.superblock(), member.node());
    let file = HostTierFile::lock(&path)?;
    if member.leave() == LeaveOutcome::NodeLeft {
        file.remove()?;
    }
    Ok(())
}
