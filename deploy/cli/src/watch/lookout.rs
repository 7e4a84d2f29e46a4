//! Looks at a rack again and again, and keeps what the last looks have shown. It reads the region, writes
//! nothing there and needs no membership.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use cxl_shm::clock::{Clock as _, SystemClock};
use cxl_shm::fabric::{Fabric as _, MappedFabric};
use cxl_shm::layout::{Layout, Superblock, SuperblockError, read_superblock};
use cxl_shm::region::Region;
use cxl_shm::units::NodeId;
use serde::Serialize;

use super::blocks::{HotPrefix, NodeBlocks};
use super::events::Events;
use super::findings::Level;
use super::history::{Counters, History, Life};
use super::map::ChunkMap;
use super::tenants::Tenants;
use super::waits::{LockWait, Waits};
use crate::status::{self, Status};

/// How often a program looks.
pub(crate) const LOOK_MS: u64 = 2_000;
/// Descriptors are read for a twentieth of the time at most: so long a look.
const SCAN_MS: u64 = LOOK_MS / 20;
/// First blocks of prompts that are shown.
const PREFIXES_MAX: usize = 8;

/// What one look has shown.
#[derive(Debug, Serialize)]
pub(crate) struct Seen {
    pub(crate) status: Status,
    pub(crate) map: ChunkMap,
    pub(crate) beats: Vec<Beat>,
    /// Locks that a node wants or holds for long; none where nobody knows, under the protocol `bakery`.
    pub(crate) waits: Option<Vec<LockWait>>,
    pub(crate) prefixes: Vec<HotPrefix>,
    pub(crate) tenants: Tenants,
    /// How long ago the descriptors of the node were read that were read longest ago; none when those
    /// of some node have not been read yet.
    pub(crate) blocks_age_ms: Option<u64>,
}

/// How long the heartbeat of a node stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Beat {
    pub(crate) node: u16,
    pub(crate) age_ms: u64,
}

/// The descriptors of a node, and when they were read.
#[derive(Debug, Default)]
struct Scans {
    blocks: Vec<NodeBlocks>,
    read_ms: Vec<Option<u64>>,
    next: usize,
    /// Reading took long: nothing is read before.
    rest_ms: u64,
}

#[derive(Debug)]
pub(crate) struct Lookout {
    region: Region,
    superblock: Superblock,
    layout: Layout,
    clock: SystemClock,
    scans: Scans,
    /// The heartbeat of each node, and since when it has this value.
    beats: Vec<Option<(u64, u64)>>,
    waits: Waits,
    pub(crate) events: Events,
    pub(crate) history: History,
}

impl Lookout {
    /// Ages are by `clock`.
    pub(crate) fn open(path: &Path, clock: SystemClock) -> Result<Self> {
        let region = Region::open_read_only(path)?;
        let (superblock, layout) =
            read_superblock(region.fabric()).with_context(|| path.display().to_string())?;
        let nodes = layout.nodes().count();
        let mut scans = Scans::default();
        scans.blocks.resize_with(nodes, NodeBlocks::default);
        scans.read_ms.resize(nodes, None);
        Ok(Self {
            region,
            superblock,
            layout,
            clock,
            scans,
            beats: vec![None; nodes],
            waits: Waits::default(),
            events: Events::default(),
            history: History::default(),
        })
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn fabric(&self) -> &MappedFabric {
        self.region.fabric()
    }

    fn scan_next(&mut self) -> Result<()> {
        let nodes: Vec<NodeId> = self.layout.nodes().collect();
        let at = self.scans.next % nodes.len();
        let blocks =
            NodeBlocks::scan(self.fabric(), &self.superblock, &self.layout, nodes[at], &nodes)?;
        self.scans.blocks[at] = blocks;
        self.scans.read_ms[at] = Some(self.now_ms());
        self.scans.next = at + 1;
        Ok(())
    }

    /// Reads descriptors of some nodes, without taking much of the processor.
    fn scan_some(&mut self) -> Result<()> {
        let begin_ms = self.now_ms();
        if begin_ms < self.scans.rest_ms {
            return Ok(());
        }
        for _ in 0..self.scans.blocks.len() {
            self.scan_next()?;
            let took_ms = self.now_ms() - begin_ms;
            if took_ms >= SCAN_MS {
                self.scans.rest_ms = begin_ms + took_ms * (LOOK_MS / SCAN_MS);
                break;
            }
        }
        Ok(())
    }

    /// Looks, and takes note of what has changed since `before`, and of rates.
    ///
    /// # Errors
    /// The region was formatted anew, or has no cache of this version.
    pub(crate) fn look(&mut self, before: Option<&Seen>) -> Result<Seen> {
        let (superblock, _) = read_superblock(self.fabric())?;
        if superblock.uuid != self.superblock.uuid {
            bail!("the region was formatted anew; start this program again");
        }
        self.scan_some()?;
        let blocks = &self.scans.blocks;
        let status = status::look(&self.region, &self.superblock, &self.layout, blocks);
        if self.fabric().is_cut_off() {
            // What was read after that means nothing.
            bail!(SuperblockError::MemoryFailed);
        }
        let status = status?;
        let now_ms = self.now_ms();
        let waits = status.locks_are_granted().then(|| {
            self.waits.look(&self.layout, self.region.fabric(), now_ms);
            self.waits.long(now_ms)
        });
        let seen = Seen {
            map: ChunkMap::look(&self.layout, self.fabric(), &self.scans.blocks),
            beats: self.look_at_beats(&status, now_ms),
            waits,
            prefixes: hottest(&self.scans.blocks),
            tenants: Tenants::of(&self.scans.blocks),
            blocks_age_ms: oldest(&self.scans.read_ms).map(|it| now_ms.saturating_sub(it)),
            status,
        };
        match before {
            Some(before) => self.events.compare(now_ms, &before.status, &seen.status),
            None => self.events.push(now_ms, Level::Note, "this program began to look".to_owned()),
        }
        let lives = seen.status.nodes.iter().map(Life::from).collect();
        self.history.push(now_ms, lives, Counters::from(&seen.status.rack));
        Ok(seen)
    }

    fn look_at_beats(&mut self, status: &Status, now_ms: u64) -> Vec<Beat> {
        let mut beats = Vec::new();
        for node in &status.nodes {
            let Some(id) = self.layout.node(node.node) else { continue };
            let value = self.layout.heartbeat(id).fresh(self.region.fabric());
            let last = &mut self.beats[id.index()];
            let since_ms = match last {
                Some((its, since_ms)) if *its == value => *since_ms,
                _ => now_ms,
            };
            *last = Some((value, since_ms));
            beats.push(Beat { node: node.node, age_ms: now_ms - since_ms });
        }
        beats
    }
}

fn hottest(blocks: &[NodeBlocks]) -> Vec<HotPrefix> {
    let mut prefixes: Vec<_> = blocks.iter().flat_map(|it| &it.prefixes).cloned().collect();
    prefixes.sort_by(HotPrefix::order);
    prefixes.truncate(PREFIXES_MAX);
    prefixes
}

/// When that was which is longest ago, if all have been.
fn oldest(read_ms: &[Option<u64>]) -> Option<u64> {
    read_ms.iter().copied().min().flatten()
}
