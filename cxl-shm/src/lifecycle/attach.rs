//! A process attached to a real region: mapping, use mark, host tier and membership in one value.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::join::JoinError;
use super::leave::LeaveOutcome;
use crate::clock::SystemClock;
use crate::host::{
    HOST_TIER_FOLDER, HostIdentity, HostTier, HostTierError, HostTierFile, ProcLiveness,
    ProcessIdentity,
};
use crate::layout::{Platform, Superblock, SuperblockError, read_superblock};
use crate::mutant;
use crate::node::{HEARTBEAT_MS, MappedBackend, Member};
use crate::region::{Basis, PathWatch, Visibility};
use crate::region::{OpenError, Region, RegionUse, UseError};
use crate::units::NodeId;

/// Why a process did not attach. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The path cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is being formatted, or was replaced.
    #[error(transparent)]
    Use(#[from] UseError),
    /// It is no region, or not this program's.
    #[error("{}: {source}", .path.display())]
    Superblock {
        /// The region.
        path: PathBuf,
        /// What is wrong.
        source: SuperblockError,
    },
    /// The region wants measured platforms only, and this is another.
    #[error(
        "{}: this host ({here}) differs from the measured platform ({measured}), and the region \
         was qualified with --strict; run `rackline qualify` on this host",
        .path.display()
    )]
    OtherPlatform {
        /// The region.
        path: PathBuf,
        /// The measured one.
        measured: Box<Platform>,
        /// This one.
        here: Box<Platform>,
    },
    /// The host tier is not available.
    #[error(transparent)]
    HostTier(#[from] HostTierError),
    /// The node slot is not available.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// Processes of another container live in the node slot. Whether one of them is alive cannot be
    /// seen from here: their process ids mean nothing in this pid namespace.
    #[error(
        "processes in another pid namespace of this machine (another container, perhaps) use node \
         {node}, and this process cannot tell whether they live; let all processes of a node share \
         one pid namespace (`docker run --pid=container:NAME`, `shareProcessNamespace` of a pod), \
         or give this container another node number"
    )]
    OtherPidNamespace {
        /// The node.
        node: u16,
    },
    /// The device could not read what a process reads to attach.
    #[error(
        "{}: the memory of the region failed at byte {offset}: the device reported an uncorrectable \
         error in the metadata, or the file was truncated; look for memory errors (`dmesg`, `cxl list \
         --media-errors`), then stop all processes of the region and format it",
        .path.display()
    )]
    MemoryFailed {
        /// The region.
        path: PathBuf,
        /// Where.
        offset: u64,
    },
    /// The operating system did not say who we are.
    #[error("cannot read this process's identity from /proc: {0}")]
    Identity(std::io::Error),
    /// No thread for the agent.
    #[error("cannot start the heartbeat thread: {0}")]
    Agent(std::io::Error),
}

/// Beats between two times that a process attends to what other hosts want of its chunks: 80 ms.
pub const ATTEND_BEATS: u64 = 8;

/// Beats between two looks at the path of the region: a second.
const PATH_BEATS: u64 = 100;

/// A layer above that has chunks of its own, of which other hosts may want something at any time.
pub trait ChunkOwner: Send {
    /// Carries out what other hosts want at this moment, as far as that can be done at once. Called
    /// every [`ATTEND_BEATS`] beats by the thread that sends the heartbeat, in each process that
    /// was attached with an owner. Returns whether it is worth calling again.
    fn attend(&mut self, member: &LocalMember, clock: &SystemClock) -> bool;
}

/// A member of a real region.
pub type LocalMember = Member<MappedBackend>;

/// This process, attached to a region as a process of a node. Leaves when dropped. A child made by
/// `fork` is not attached: dropped there, this leaves everything to the parent.
///
/// A background thread takes part in the election of the host's agent, sends its heartbeat, and
/// lets a [`ChunkOwner`] attend to other hosts.
///
/// # Example
/// ```no_run
/// use cxl_shm::lifecycle::Attachment;
///
/// let attachment = Attachment::attach("/dev/dax0.0".as_ref(), 3)?;
/// println!("node {} incarnation {}", attachment.member().node(), attachment.member().incarnation());
/// # Ok::<(), cxl_shm::lifecycle::AttachError>(())
/// ```
#[derive(Debug)]
pub struct Attachment {
    // Dropped by hand in `drop`: the agent's thread ends before we leave.
    member: Option<LocalMember>,
    agent: Option<AgentThread>,
    tier_path: PathBuf,
    visibility: Visibility,
    region: Region,
    // Last: the region counts as used until we have left it.
    _in_use: RegionUse,
}

#[derive(Debug)]
struct AgentThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Attachment {
    /// Attaches to the region at `path` as a process of `node`.
    ///
    /// Publishes as the platform profile of the region allows ([`Visibility`]). A host of another
    /// platform than the measured one continues in the conservative mode, and says so in the log.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(path: &Path, node: u16) -> Result<Self, AttachError> {
        Self::attach_as(path, node, Visibility::of, None)
    }

    /// As [`attach`](Self::attach), for a process with chunks that `owner` looks after.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_with(
        path: &Path,
        node: u16,
        owner: impl ChunkOwner + 'static,
    ) -> Result<Self, AttachError> {
        Self::attach_as(path, node, Visibility::of, Some(Box::new(owner)))
    }

    /// As [`attach`](Self::attach), for one that measures the platform: takes nothing for granted,
    /// and is never refused for being of another.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_to_measure(path: &Path, node: u16) -> Result<Self, AttachError> {
        Self::attach_as(path, node, |_, _| Visibility::conservative(), None)
    }

    fn attach_as(
        path: &Path,
        node: u16,
        decide: impl FnOnce(&Region, &Superblock) -> Visibility,
        owner: Option<Box<dyn ChunkOwner>>,
    ) -> Result<Self, AttachError> {
        let region = Region::open(path, None)?;
        let mapping = Arc::clone(region.fabric().mapping());
        Self::attach_region(region, path, node, decide, owner).map_err(|error| {
            // FAULT-F4: what was read after the fault means nothing.
            let failed = |offset| AttachError::MemoryFailed { path: path.to_owned(), offset };
            mapping.cut_at().map_or(error, failed)
        })
    }

    fn attach_region(
        mut region: Region,
        path: &Path,
        node: u16,
        decide: impl FnOnce(&Region, &Superblock) -> Visibility,
        owner: Option<Box<dyn ChunkOwner>>,
    ) -> Result<Self, AttachError> {
        let in_use = RegionUse::shared(&region)?;
        let (superblock, layout) = read_superblock(region.fabric())
            .map_err(|source| AttachError::Superblock { path: path.to_owned(), source })?;
        let visibility = decide(&region, &superblock);
        admit(path, &visibility)?;
        region.set_read_back(visibility.read_back);
        if owner.is_none() {
            // With an owner the process reads objects in chunks: what it lost there is no miss.
            region.fabric().mapping().set_payload_at(layout.payload().offset());
        }
        let nodes = layout.geometry().nodes;
        let known = layout.node(node).ok_or(JoinError::UnknownNode { node, nodes })?;
        let tier_path = HostTierFile::path_in(Path::new(HOST_TIER_FOLDER), &superblock, known);
        let member = Some(join(&region, &tier_path, node)?);
        // From here on an error drops the attachment, which leaves.
        let mut attached =
            Self { member, agent: None, tier_path, visibility, region, _in_use: in_use };
        attached.agent = Some(attached.start_agent(owner)?);
        Ok(attached)
    }

    fn start_agent(
        &self,
        mut owner: Option<Box<dyn ChunkOwner>>,
    ) -> Result<AgentThread, AttachError> {
        // Started before the member exists: a thread that cannot be started leaks none.
        let (hand_over, handed_over) = std::sync::mpsc::sync_channel::<LocalMember>(1);
        let stop = Arc::new(AtomicBool::new(false));
        let mut path_watch = PathWatch::new(&self.region).map_err(AttachError::Agent)?;
        let thread = {
            let (stop, tier_path) = (Arc::clone(&stop), self.tier_path.clone());
            std::thread::Builder::new()
                .name("rackline-agent".to_owned())
                .spawn(mutant::carried(move || {
                    // None comes when this process could not join once more.
                    let Ok(agent) = handed_over.recv() else { return };
                    let clock = SystemClock::start();
                    let mut beats: u64 = 0;
                    while !stop.load(Ordering::Relaxed) {
                        agent.beat();
                        if beats.is_multiple_of(ATTEND_BEATS) {
                            owner = owner.and_then(|mut owner| {
                                owner.attend(&agent, &clock).then_some(owner)
                            });
                        }
                        if beats.is_multiple_of(PATH_BEATS)
                            && let Some(lost) = path_watch.look()
                        {
                            tracing::error!("{}", lost.in_words());
                        }
                        beats += 1;
                        clock.sleep_ms(HEARTBEAT_MS);
                    }
                    leave(agent, &tier_path);
                }))
                .map_err(AttachError::Agent)?
        };
        hand_over.send(self.join_thread()?).expect("the thread waits for it");
        Ok(AgentThread { stop, thread })
    }

    /// This process as a member.
    ///
    /// # Panics
    /// Never: the member is there until the attachment is dropped.
    #[must_use]
    pub fn member(&self) -> &LocalMember {
        self.member.as_ref().expect("taken only by drop")
    }

    /// A further member for another thread of this process. It is left by [`Self::leave_thread`].
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn join_thread(&self) -> Result<LocalMember, AttachError> {
        join(&self.region, &self.tier_path, self.node().0)
    }

    /// Ends the membership of a thread.
    pub fn leave_thread(&self, member: LocalMember) {
        leave(member, &self.tier_path);
    }

    /// Whether this is a child, made by `fork`, of the process that attached.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.member.as_ref().is_some_and(LocalMember::is_forked)
    }

    /// How this process publishes, and why.
    #[must_use]
    pub fn visibility(&self) -> &Visibility {
        &self.visibility
    }

    /// The mapped region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.member().node()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.is_forked() {
            // The thread is not in this process, and cannot be waited for. The member does nothing.
            std::mem::forget(self.agent.take());
            return;
        }
        if let Some(AgentThread { stop, thread }) = self.agent.take() {
            stop.store(true, Ordering::Relaxed);
            // A panic of the agent was printed; the rest of leaving does not depend on it.
            let _ = thread.join();
        }
        if let Some(member) = self.member.take() {
            leave(member, &self.tier_path);
        }
    }
}

/// Refuses a platform that the region excludes, and warns about one that it tolerates.
fn admit(path: &Path, visibility: &Visibility) -> Result<(), AttachError> {
    let Basis::OtherPlatform { measured, here } = visibility.basis else {
        return Ok(());
    };
    if visibility.refused {
        let (measured, here) = (Box::new(measured), Box::new(here));
        return Err(AttachError::OtherPlatform { path: path.to_owned(), measured, here });
    }
    tracing::warn!(region = %path.display(), "{visibility}");
    Ok(())
}

fn join(region: &Region, tier_path: &Path, node: u16) -> Result<LocalMember, AttachError> {
    let host = HostIdentity::current().map_err(AttachError::Identity)?;
    let process = ProcessIdentity::current().map_err(AttachError::Identity)?;
    let fabric = region.fabric().clone();
    let (superblock, layout) = read_superblock(&fabric)
        .map_err(|source| AttachError::Superblock { path: region.path().to_owned(), source })?;
    // Held until the end of this function: one process of the host joins at a time.
    let file = HostTierFile::lock(tier_path)?;
    let words = HostTier::words_of(&superblock.geometry);
    let memory = file.map_for(words, &fabric, layout.locks(), process)?;
    let tier = HostTier::new(memory.clone(), layout.locks());
    if tier.pid_namespace() != host.pid_namespace && file.is_in_use()? {
        return Err(AttachError::OtherPidNamespace { node });
    }
    file.use_for_life()?;
    let clock = SystemClock::start();
    match LocalMember::join(fabric, memory, node, &host, process, ProcLiveness, &clock) {
        Ok(member) => Ok(member),
        Err(error) => {
            // A refusal leaves nothing behind.
            file.remove_if_new()?;
            Err(error.into())
        }
    }
}

fn leave(member: LocalMember, tier_path: &Path) {
    let outcome = HostTierFile::lock(tier_path).and_then(|file| match member.leave() {
        LeaveOutcome::NodeLeft => file.remove(),
        LeaveOutcome::OthersRemain => Ok(()),
    });
    if let Err(error) = outcome {
        // Nothing depends on the file's removal: the next process to join makes it anew.
        tracing::warn!(%error, "the host tier could not be left in order");
    }
}
