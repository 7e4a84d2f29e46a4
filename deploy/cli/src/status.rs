//! `rackline status`: the nodes, the lock manager and the use of memory. It needs no membership and
//! changes nothing.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::clock::{Clock as _, SystemClock};
use cxl_shm::fabric::{Fabric, MappedFabric};
use cxl_shm::layout::{
    ChunkState, Layout, LockProtocol, NodeState, Superblock, SuperblockError, failed_extents,
    read_superblock,
};
use cxl_shm::lifecycle::{
    EndingNumber, NodeDeath, NodeHeartbeat, NumberUse, membership_epoch, watch_heartbeats,
};
use cxl_shm::lock::ManagerSeen;
use cxl_shm::node::{HEARTBEAT_MS, SUSPECT_MS};
use cxl_shm::region::Region;
use cxl_shm::region::Visibility;
use cxl_shm::units::{ChunkId, Extent, NodeId};
use kv_cache::CacheGeometry;
use serde::Serialize;

use crate::agents::{self, AgentStatus};
use crate::directives::{self, DirectiveStatus};
use crate::identities::Identities;
use crate::output::say;
use crate::summaries::{self, Counted, SummaryStatus};
use crate::watch::blocks::NodeBlocks;
use crate::watch::findings::{self, Finding, Level};

/// Show the state of a region.
///
/// The command only reads the region, which need not be in use. It watches the heartbeats for up to
/// 1.5 seconds, and agents of drives for up to 0.7 seconds.
///
/// With --check it is a probe: it prints what is wrong, with what to do, and nothing else.
/// Exit code 0: nothing is wrong. 3: something is lost or slower until somebody acts, or is on its way
/// to be repaired. 2: somebody has to act. 1: the region could not be looked at.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// Print the state as JSON.
    #[arg(long)]
    json: bool,

    /// Print what is wrong alone, and say by the exit code how bad it is.
    #[arg(long)]
    check: bool,
}

/// In place of a host's name.
const UNKNOWN: &str = "unknown";

#[derive(Debug, Serialize)]
pub(crate) struct Status {
    pub(crate) uuid: String,
    pub(crate) region: PathBuf,
    pub(crate) region_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) chunks: u32,
    pub(crate) chunks_free: u32,
    /// Entries of the chunk table that cannot be read: out of use.
    pub(crate) chunks_unreadable: u32,
    /// Chunks in which memory failed.
    pub(crate) chunks_failed: Vec<FailedChunk>,
    /// How processes that attach on this host publish, and why.
    pub(crate) visibility: String,
    /// How the locks between hosts work.
    pub(crate) lock_protocol: String,
    pub(crate) lock_manager: Option<LockManagerStatus>,
    /// Grows with every death that is declared.
    pub(crate) membership_epoch: u64,
    /// Numbers that only grow, of which less than a tenth is left.
    pub(crate) numbers_ending: Vec<NumberStatus>,
    pub(crate) nodes: Vec<NodeStatus>,
    /// What the processes of all nodes have done.
    pub(crate) rack: Counted,
    /// Pins and clears in force.
    pub(crate) directives: Vec<DirectiveStatus>,
    /// Agents that ever served the drives of a node.
    pub(crate) agents: Vec<AgentStatus>,
    #[serde(flatten)]
    pub(crate) identities: Identities,
    /// What is wrong, and what to do.
    pub(crate) findings: Vec<Finding>,
}

impl Status {
    /// Whether a lock manager grants the locks.
    pub(crate) fn locks_are_granted(&self) -> bool {
        self.lock_protocol == LockProtocol::Arbitrated.to_string()
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct FailedChunk {
    pub(crate) chunk: u32,
    /// Where the memory failed: from the start of the region, in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The node that has yet to empty the chunk. Without one the chunk is out of use.
    pub(crate) node: Option<u16>,
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
pub(crate) struct NumberStatus {
    /// `tickets`, `terms`, `incarnations` or `ballots`.
    pub(crate) number: &'static str,
    pub(crate) node: Option<u16>,
    pub(crate) lock: Option<u32>,
    /// How many are left.
    pub(crate) left: u64,
    /// How many there are in all.
    pub(crate) limit: u64,
    /// What the end of the numbers means, and what to do.
    pub(crate) advice: String,
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
pub(crate) struct LockManagerStatus {
    pub(crate) node: u16,
    pub(crate) term: u64,
    /// The lock manager has not stopped in an orderly way.
    pub(crate) serving: bool,
    /// Its words changed while they were watched.
    pub(crate) alive: bool,
    /// A node that has to acknowledge the term before the lock manager grants a lock.
    pub(crate) waiting_for: Option<u16>,
}

#[derive(Debug, Serialize)]
pub(crate) struct NodeStatus {
    pub(crate) node: u16,
    pub(crate) host: String,
    pub(crate) state: &'static str,
    pub(crate) incarnation: u32,
    /// Its heartbeat counter moved while it was watched. A missed heartbeat is no proof of death.
    pub(crate) alive: bool,
    /// The declared death of this incarnation.
    pub(crate) death: Option<DeathStatus>,
    pub(crate) chunks: u32,
    pub(crate) blocks: u64,
    pub(crate) block_bytes: u64,
    /// Descriptors that are in use, also of blocks that are being written.
    pub(crate) descriptors: u64,
    /// Most descriptors that the node can use at once.
    pub(crate) descriptors_max: u64,
    /// Descriptors that cannot be read: their blocks are misses.
    pub(crate) damaged: u64,
    /// What the processes of the node have done.
    pub(crate) summary: SummaryStatus,
}

#[derive(Debug, Serialize)]
pub(crate) struct DeathStatus {
    /// The node whose lock manager recovers it.
    pub(crate) recoverer: u16,
    /// The epoch of the slot's last decision.
    pub(crate) epoch: u64,
    /// The host is not fenced yet, so its chunks and locks stay untouched.
    pub(crate) quarantined: bool,
    /// The recovery has ended. A host may join the slot again.
    pub(crate) recovered: bool,
    /// The host died while it joined, before it had written its name into the slot.
    pub(crate) while_joining: bool,
    /// The dead host: its name, or its machine-id and boot when it died while it joined.
    pub(crate) dead_host: String,
    /// The step that the recovery has reached, in words.
    pub(crate) progress: String,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let region = Region::open_read_only(&options.region)?;
    let (superblock, layout) =
        read_superblock(region.fabric()).with_context(|| region.path().display().to_string())?;
    let scan = |node| NodeBlocks::scan(region.fabric(), &superblock, &layout, node, &[]);
    let blocks: Result<Vec<_>> = layout.nodes().map(scan).collect();
    let status = blocks.and_then(|blocks| look(&region, &superblock, &layout, &blocks));
    if region.fabric().is_cut_off() {
        // What was read after that means nothing.
        bail!("{}: {}", region.path().display(), SuperblockError::MemoryFailed);
    }
    let status = status?;
    match (options.json, options.check) {
        (true, true) => say!("{}", serde_json::to_string(&status.findings)?),
        (true, false) => say!("{}", serde_json::to_string(&status)?),
        (false, true) => check(&status.findings),
        (false, false) => print(&status),
    }
    let code = if options.check { code_of(&status.findings) } else { 0 };
    Ok(ExitCode::from(code))
}

fn check(findings: &[Finding]) {
    findings::print(findings);
    if code_of(findings) == 0 {
        say!("nothing is wrong");
    }
}

/// The exit code of a probe.
fn code_of(findings: &[Finding]) -> u8 {
    let is = |level| findings.iter().any(|finding| finding.level == level);
    match (is(Level::Bad), is(Level::Warning)) {
        (true, _) => 2,
        (false, true) => 3,
        (false, false) => 0,
    }
}

/// Looks at a rack. `blocks` are those of each node.
pub(crate) fn look(
    region: &Region,
    superblock: &Superblock,
    layout: &Layout,
    blocks: &[NodeBlocks],
) -> Result<Status> {
    let fabric = region.fabric();
    let clock = SystemClock::start();
    let first = ManagerSeen::look(layout, fabric);
    let heartbeats = watch_heartbeats(layout, fabric, &clock);
    let manager = watch_manager(first, layout, fabric, &clock);
    let lock_manager = manager.map(|seen| LockManagerStatus {
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
    let has_none = |node: &NodeId| {
        let its = &blocks[node.index()];
        (its.descriptors, its.damaged) == (0, 0)
    };
    let idle: Vec<NodeId> = take_part.iter().copied().filter(has_none).collect();
    let directives = directives::in_force(fabric, superblock, layout, &take_part, &idle)?;
    let nodes = heartbeats
        .into_iter()
        .map(|heartbeat| {
            let owned = |state: &Option<ChunkState>| {
                matches!(state, Some(ChunkState::Owned { owner, .. }) if *owner == heartbeat.node)
            };
            let its = &blocks[heartbeat.node.index()];
            node_status(&heartbeat, count(&owned), its, superblock, layout, fabric)
        })
        .collect::<Result<Vec<_>>>()?;
    let identities = layout
        .nodes()
        .zip(blocks)
        .flat_map(|(node, its)| its.identities.iter().map(move |text| (node.0, text.clone())));
    let mut status = Status {
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
        findings: Vec::new(),
    };
    status.findings = findings::of(&status);
    Ok(status)
}

/// Watches the lock manager until its words differ from `first`, or [`SUSPECT_MS`] of `clock` are
/// over. Nodes beat within some milliseconds: a manager that shares a busy core is not so fast.
fn watch_manager(
    first: Option<ManagerSeen>,
    layout: &Layout,
    fabric: &impl Fabric,
    clock: &SystemClock,
) -> Option<ManagerSeen> {
    loop {
        let seen = ManagerSeen::look(layout, fabric);
        let is_still = seen.is_some_and(|it| it.serving) && seen == first;
        if !is_still || clock.now_ms() >= SUSPECT_MS {
            return seen;
        }
        clock.sleep_ms(HEARTBEAT_MS);
    }
}

fn node_status(
    heartbeat: &NodeHeartbeat,
    chunks: u32,
    blocks: &NodeBlocks,
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
        // The line was read before the heartbeats were watched: it may be older than the death.
        (_, Some(death)) if death.over => NodeState::Dead.in_words(),
        (_, Some(death)) if death.is_quarantined() => "quarantined",
        (_, Some(_)) => "recovering",
        (_, None) if heartbeat.in_admission => "joining",
        (Some(_), None) if !heartbeat.beats => "suspected",
        (Some(state), None) => state.in_words(),
        (None, None) => "unreadable",
    }
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
    status.chunks_failed.iter().for_each(FailedChunk::print);
    say!("  on this host {}", status.visibility);
    print_locks(status);
    if status.membership_epoch > 0 {
        say!("membership epoch {}", status.membership_epoch);
    }
    if status.nodes.is_empty() {
        say!("no node has joined yet");
    } else {
        print_nodes(&status.nodes);
    }
    summaries::print(status.nodes.iter().map(|node| (node.node, &node.summary)));
    status.identities.print();
    directives::print(&status.directives);
    agents::print(&status.agents);
    findings::print(&status.findings);
}

fn print_nodes(nodes: &[NodeStatus]) {
    say!(
        "node  host              state        heartbeat  joined  chunks    blocks       bytes  \
         descriptors"
    );
    for node in nodes {
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
}

/// The lock protocol, and what the lock manager does while nothing is wrong with it.
fn print_locks(status: &Status) {
    let granted = status.locks_are_granted();
    let how = if granted { "a lock manager grants them" } else { "no lock manager needed" };
    say!("locks: {}, {how}", status.lock_protocol);
    let Some(manager) = &status.lock_manager else { return };
    let LockManagerStatus { node, term, serving, alive, waiting_for } = manager;
    if *serving && *alive && (waiting_for.is_none() || !granted) {
        let does = if granted { "serves" } else { "watches for dead hosts" };
        say!("lock manager: node {node}, term {term}, {does}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_is_the_exit_code_of_a_probe() {
        let code = |levels: &[Level]| {
            let finding = |level: &Level| Finding::new(*level, "what", "to do", "page.md#heat");
            code_of(&levels.iter().map(finding).collect::<Vec<_>>())
        };
        assert_eq!((code(&[]), code(&[Level::Note])), (0, 0));
        assert_eq!(code(&[Level::Warning, Level::Note]), 3);
        assert_eq!(code(&[Level::Note, Level::Warning, Level::Bad]), 2);
    }
}
