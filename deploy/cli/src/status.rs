//! `rackline status`: the nodes, the lock manager and the use of memory. It needs no membership and
//! changes nothing.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::{Fabric, MappedFabric};
use cxl_shm::layout::{
    ChunkState, Layout, LockProtocol, NodeState, Superblock, SuperblockError, failed_extents,
    read_superblock,
};
use cxl_shm::lifecycle::{
    EndingNumber, NodeDeath, NodeHeartbeat, NumberUse, membership_epoch, watch_heartbeats,
};
use cxl_shm::lock::ManagerSeen;
use cxl_shm::region::Region;
use cxl_shm::region::Visibility;
use cxl_shm::units::{ChunkId, Extent, NodeId};
use kv_cache::{CacheGeometry, SlotContent};
use rackline::identity_in;
use serde::Serialize;

use crate::agents::{self, AgentStatus};
use crate::directives::{self, DirectiveStatus};
use crate::identities::Identities;
use crate::output::say;
use crate::summaries::{self, Counted, SummaryStatus};

/// Show the state of a region.
///
/// The command only reads the region, which need not be in use. It watches the heartbeats for up to
/// 1.5 seconds, and agents of drives for up to 0.7 seconds.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// Print the state as JSON.
    #[arg(long)]
    json: bool,
}

/// In place of a host's name.
const UNKNOWN: &str = "unknown";

#[derive(Debug, Serialize)]
struct Status {
    uuid: String,
    region: PathBuf,
    region_bytes: u64,
    chunk_bytes: u64,
    chunks: u32,
    chunks_free: u32,
    /// Entries of the chunk table that cannot be read: out of use.
    chunks_unreadable: u32,
    /// Chunks in which memory failed.
    chunks_failed: Vec<FailedChunk>,
    /// How processes that attach on this host publish, and why.
    visibility: String,
    /// How the locks between hosts work.
    lock_protocol: String,
    lock_manager: Option<LockManagerStatus>,
    /// Grows with every death that is declared.
    membership_epoch: u64,
    /// Numbers that only grow, of which less than a tenth is left.
    numbers_ending: Vec<NumberStatus>,
    nodes: Vec<NodeStatus>,
    /// What the processes of all nodes have done.
    rack: Counted,
    /// Pins and clears in force.
    directives: Vec<DirectiveStatus>,
    /// Agents that ever served the drives of a node.
    agents: Vec<AgentStatus>,
    #[serde(flatten)]
    identities: Identities,
}

#[derive(Debug, Serialize)]
struct FailedChunk {
    chunk: u32,
    /// Where the memory failed: from the start of the region, in bytes.
    offset: u64,
    bytes: u64,
    /// The node that has yet to empty the chunk. Without one the chunk is out of use.
    node: Option<u16>,
}

impl FailedChunk {
    fn all(layout: &Layout, fabric: &MappedFabric) -> Vec<Self> {
        let of = |failed: Extent| {
            let chunk = layout.chunk_of(failed)?;
            let state = layout.chunk_entry(chunk).cached(fabric).ok()?.state();
            let node = match state {
                Some(ChunkState::Owned { owner, .. }) => Some(owner.0),
                _ => None,
            };
            Some(Self { chunk: chunk.0, offset: failed.offset(), bytes: failed.bytes(), node })
        };
        failed_extents(layout, fabric).into_iter().filter_map(of).collect()
    }

    fn print(&self) {
        let Self { chunk, offset, bytes, node } = self;
        let state = match node {
            Some(node) => format!("node {node} empties it"),
            None => "it is out of use".to_owned(),
        };
        say!("  chunk {chunk}: {bytes} bytes at {offset:#x} failed, {state}");
    }
}

#[derive(Debug, Serialize)]
struct NumberStatus {
    /// `tickets`, `terms`, `incarnations` or `ballots`.
    number: &'static str,
    node: Option<u16>,
    lock: Option<u32>,
    /// How many are left.
    left: u64,
    /// How many there are in all.
    limit: u64,
    /// What the end of the numbers means, and what to do.
    advice: String,
}

impl From<NumberUse> for NumberStatus {
    fn from(number_use: NumberUse) -> Self {
        let (number, node, lock) = match number_use.number {
            EndingNumber::Tickets { node, lock } => ("tickets", Some(node.0), Some(lock.0)),
            EndingNumber::Terms => ("terms", None, None),
            EndingNumber::Incarnations { node } => ("incarnations", Some(node.0), None),
            EndingNumber::Ballots { victim } => ("ballots", Some(victim.0), None),
        };
        let (left, limit, advice) = (number_use.left(), number_use.most, number_use.in_words());
        Self { number, node, lock, left, limit, advice }
    }
}

#[derive(Debug, Serialize)]
struct LockManagerStatus {
    node: u16,
    term: u64,
    /// The lock manager has not stopped in an orderly way.
    serving: bool,
    /// Its words changed while they were watched.
    alive: bool,
    /// A node that has to acknowledge the term before the lock manager grants a lock.
    waiting_for: Option<u16>,
}

#[derive(Debug, Serialize)]
struct NodeStatus {
    node: u16,
    host: String,
    state: &'static str,
    incarnation: u32,
    /// Its heartbeat counter moved while it was watched. A missed heartbeat is no proof of death.
    alive: bool,
    /// The declared death of this incarnation.
    death: Option<DeathStatus>,
    chunks: u32,
    blocks: u64,
    block_bytes: u64,
    /// Descriptors that are in use, also of blocks that are being written.
    descriptors: u64,
    /// Most descriptors that the node can use at once.
    descriptors_max: u64,
    /// Descriptors that cannot be read: their blocks are misses.
    damaged: u64,
    /// What the processes of the node have done.
    summary: SummaryStatus,
}

#[derive(Debug, Serialize)]
struct DeathStatus {
    /// The node whose lock manager recovers it.
    recoverer: u16,
    /// The epoch of the slot's last decision.
    epoch: u64,
    /// The host is not fenced yet, so its chunks and locks stay untouched.
    quarantined: bool,
    /// The recovery has ended. A host may join the slot again.
    recovered: bool,
    /// The host died while it joined, before it had written its name into the slot.
    while_joining: bool,
    /// The dead host: its name, or its machine-id and boot when it died while it joined.
    dead_host: String,
    /// The step that the recovery has reached, in words.
    progress: String,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let region = Region::open_read_only(&options.region)?;
    let (superblock, layout) =
        read_superblock(region.fabric()).with_context(|| region.path().display().to_string())?;
    let status = look(&region, &superblock, &layout);
    if region.fabric().is_cut_off() {
        // What was read after that means nothing.
        bail!("{}: {}", region.path().display(), SuperblockError::MemoryFailed);
    }
    let status = status?;
    if options.json {
        say!("{}", serde_json::to_string(&status)?);
    } else {
        print(&status);
    }
    Ok(())
}

fn look(region: &Region, superblock: &Superblock, layout: &Layout) -> Result<Status> {
    let fabric = region.fabric();
    let first = ManagerSeen::look(layout, fabric);
    let heartbeats = watch_heartbeats(layout, fabric, &SystemClock::start());
    let lock_manager = ManagerSeen::look(layout, fabric).map(|seen| LockManagerStatus {
        node: seen.node.0,
        term: seen.term,
        serving: seen.serving,
        alive: first != Some(seen),
        waiting_for: seen.waiting_for(layout, fabric).map(|node| node.0),
    });
    let scarce = NumberUse::scarce(layout, superblock.lock_protocol, &heartbeats, fabric);
    fabric.refresh(layout.chunk_table());
    let chunk_states: Vec<_> = (0..layout.chunks())
        .map(|chunk| layout.chunk_entry(ChunkId(chunk)).cached(fabric).ok()?.state())
        .collect();
    let count = |wanted: &dyn Fn(&Option<ChunkState>) -> bool| {
        u32::try_from(chunk_states.iter().filter(|state| wanted(state)).count()).unwrap_or(u32::MAX)
    };
    let take_part: Vec<NodeId> = heartbeats
        .iter()
        .filter(|heartbeat| !heartbeat.state.is_some_and(NodeState::is_vacant))
        .map(|heartbeat| heartbeat.node)
        .collect();
    let directives = directives::in_force(fabric, superblock, layout, &take_part)?;
    let mut identities = Vec::new();
    let nodes = heartbeats
        .into_iter()
        .map(|heartbeat| {
            let owned = |state: &Option<ChunkState>| {
                matches!(state, Some(ChunkState::Owned { owner, .. }) if *owner == heartbeat.node)
            };
            let found =
                blocks_of(heartbeat.node, superblock, layout, fabric, &mut identities)?;
            node_status(&heartbeat, count(&owned), &found, superblock, layout, fabric)
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Status {
        uuid: superblock.uuid_text(),
        region: region.path().to_owned(),
        region_bytes: superblock.geometry.region_bytes,
        chunk_bytes: superblock.geometry.chunk_bytes,
        chunks: layout.chunks(),
        chunks_free: count(&|state| *state == Some(ChunkState::Free)),
        chunks_unreadable: count(&|state| state.is_none()),
        chunks_failed: FailedChunk::all(layout, fabric),
        lock_protocol: superblock.lock_protocol.to_string(),
        visibility: Visibility::of(region, superblock).to_string(),
        lock_manager,
        membership_epoch: membership_epoch(layout, fabric),
        numbers_ending: scarce.into_iter().map(NumberStatus::from).collect(),
        rack: summaries::sum(nodes.iter().map(|node| &node.summary)),
        nodes,
        directives,
        agents: agents::look(fabric, superblock, layout)?,
        identities: Identities::new(identities),
    })
}

fn node_status(
    heartbeat: &NodeHeartbeat,
    chunks: u32,
    blocks: &Blocks,
    superblock: &Superblock,
    layout: &Layout,
    fabric: &MappedFabric,
) -> Result<NodeStatus> {
    let region = layout.geometry();
    let cache = CacheGeometry::decode(superblock.application, region.nodes, region.area_lines)?;
    let death = NodeDeath::of(layout, fabric, heartbeat.node);
    // The slot still has the name of the previous host when this host died while it joined.
    let is_named = death.is_none_or(|death| !death.in_admission);
    let host = if is_named { &heartbeat.host } else { UNKNOWN };
    Ok(NodeStatus {
        node: heartbeat.node.0,
        host: host.to_owned(),
        state: state_of(heartbeat, death.as_ref()),
        incarnation: heartbeat.incarnation.0,
        alive: heartbeat.beats,
        death: death.map(|death| DeathStatus {
            recoverer: death.decision.appointment.recoverer.0,
            epoch: death.decision.appointment.epoch,
            quarantined: death.is_quarantined(),
            recovered: death.over,
            while_joining: death.in_admission,
            dead_host: death.whom_in_words(host),
            progress: death.in_words(),
        }),
        chunks,
        blocks: blocks.readable,
        block_bytes: blocks.bytes,
        descriptors: blocks.descriptors,
        descriptors_max: cache.blocks_max(),
        damaged: blocks.damaged,
        summary: summaries::look(heartbeat, superblock, layout, fabric)?,
    })
}

/// The state in a word.
fn state_of(heartbeat: &NodeHeartbeat, death: Option<&NodeDeath>) -> &'static str {
    match (heartbeat.state, death) {
        (Some(state), _) if state.is_vacant() => state.in_words(),
        (_, Some(death)) if death.is_quarantined() => "quarantined",
        (_, Some(_)) => "recovering",
        (_, None) if heartbeat.in_admission => "joining",
        (Some(_), None) if !heartbeat.beats => "suspected",
        (Some(state), None) => state.in_words(),
        (None, None) => "unreadable",
    }
}

#[derive(Debug, Default)]
struct Blocks {
    readable: u64,
    bytes: u64,
    descriptors: u64,
    damaged: u64,
}

fn blocks_of(
    node: NodeId,
    superblock: &Superblock,
    layout: &Layout,
    fabric: &MappedFabric,
    identities: &mut Vec<(u16, String)>,
) -> Result<Blocks> {
    let mut blocks = Blocks::default();
    kv_cache::segment_of(superblock, layout, node)?.scan(fabric, |_, content| match content {
        Ok(SlotContent::Block(descriptor)) => {
            blocks.descriptors += 1;
            if descriptor.is_readable() {
                blocks.readable += 1;
                blocks.bytes += descriptor.payload.bytes();
                identities.extend(identity_in(fabric, &descriptor).map(|text| (node.0, text)));
            }
        }
        Ok(_) => {}
        Err(_) => blocks.damaged += 1,
    });
    Ok(blocks)
}

fn print(status: &Status) {
    let used = status.chunks - status.chunks_free;
    say!("region {} in {}", status.uuid, status.region.display());
    say!(
        "  {}, {} of {} chunks of {} in use",
        ByteSize(status.region_bytes),
        used,
        status.chunks,
        ByteSize(status.chunk_bytes)
    );
    if status.chunks_unreadable > 0 {
        say!("  {} chunks out of use: their entries are damaged", status.chunks_unreadable);
    }
    status.chunks_failed.iter().for_each(FailedChunk::print);
    say!("  on this host {}", status.visibility);
    print_locks(status);
    if status.membership_epoch > 0 {
        say!("membership epoch {}", status.membership_epoch);
    }
    for number in &status.numbers_ending {
        say!("ends soon: {}", number.advice);
    }
    if status.nodes.is_empty() {
        say!("no node has joined yet");
        return;
    }
    say!(
        "node  host              state        heartbeat  joined  chunks    blocks       bytes  \
         descriptors"
    );
    for node in &status.nodes {
        say!(
            "{:>4}  {:<16}  {:<12} {:<9}  {:>5}x  {:>6}  {:>8}  {:>10}  {} of {}{}",
            node.node,
            node.host,
            node.state,
            if node.alive { "alive" } else { "missed" },
            node.incarnation,
            node.chunks,
            node.blocks,
            ByteSize(node.block_bytes).to_string(),
            node.descriptors,
            node.descriptors_max,
            if node.damaged > 0 {
                format!("  {} damaged descriptors", node.damaged)
            } else {
                String::new()
            }
        );
    }
    summaries::print(status.nodes.iter().map(|node| (node.node, &node.summary)));
    status.identities.print();
    directives::print(&status.directives);
    agents::print(&status.agents);
    for node in &status.nodes {
        match &node.death {
            Some(DeathStatus { progress, while_joining: true, dead_host, .. }) => {
                say!("node {}: {dead_host}: {progress}", node.node);
            }
            Some(DeathStatus { progress, .. }) => say!("node {}: {progress}", node.node),
            None => {}
        }
    }
}

/// The lock protocol, and the lock manager: what it does, and what to do when it does nothing.
fn print_locks(status: &Status) {
    let granted = status.lock_protocol == LockProtocol::Arbitrated.to_string();
    let how = if granted { "a lock manager grants them" } else { "no lock manager needed" };
    say!("locks: {}, {how}", status.lock_protocol);
    let Some(LockManagerStatus { node, term, serving, alive, waiting_for }) = &status.lock_manager
    else {
        let effect = if granted { "no host gets new chunks" } else { "no dead host is detected" };
        say!("lock manager: none has run yet: {effect}. Start one: `rackline lock-manager --help`");
        return;
    };
    let does = match (serving, alive, waiting_for) {
        (true, true, Some(node)) if granted => {
            format!("waits for node {node} to acknowledge it: start a process of that node")
        }
        (true, true, _) if granted => "serves".to_owned(),
        (true, true, _) => "watches for dead hosts".to_owned(),
        (true, false, _) => {
            "missed its heartbeats: start another lock manager, it takes over".to_owned()
        }
        (false, ..) if granted => "stopped: no host gets new chunks until one runs".to_owned(),
        (false, ..) => "stopped: no dead host is detected until one runs".to_owned(),
    };
    say!("lock manager: node {node}, term {term}, {does}");
}
