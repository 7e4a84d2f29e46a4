//! Keeping the host's table of blocks on drives: the agent follows the drive logs of all nodes.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory, refresh_all};
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use super::announce::life_of;
use super::host_table::HostTable;
use super::{DriveClaim, DriveError};
use crate::format::{Behind, DriveAreas, LogKind, behind};
use crate::identity::IndexKey;
use crate::process::{Cache, DriveWatch};

/// Between two beats.
const BEAT_MS: u64 = 250;
/// Entries of a directory that are read before the logs are looked at again.
const SCAN_SLOTS: u32 = 1 << 15;

/// Scans of one sync at most: of each node, and as often as a table can grow. A directory whose log
/// is overrun again and again waits for the next sync.
const SCANS_MAX: usize = 128;

/// What a sync had to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriveSync {
    /// Entries of drive logs that were taken in.
    pub entries: u64,
    /// Directories that were scanned.
    pub scans: u64,
    /// Blocks that the table had no row for.
    pub dropped: u64,
}

/// What the agent knows of the drives of all nodes, beside the host's table that it keeps.
#[derive(Debug)]
pub struct DriveReplica {
    drives: DriveAreas,
    nodes: Vec<Followed>,
    /// Rows of the table that are taken.
    taken: usize,
    next_beat_ms: u64,
}

/// How far the agent follows a node.
#[derive(Clone, Copy, Debug, Default)]
struct Followed {
    watch: DriveWatch,
    /// Whether its beat was seen before.
    seen: bool,
    alive: bool,
    life: u32,
    /// How far its log was read; `None` before its directory was.
    position: Option<u64>,
}

impl DriveReplica {
    /// Begins with an empty table: [`sync`](Self::sync) fills it.
    #[must_use]
    pub fn begin<B: Backend>(claim: &DriveClaim<'_, B>, cache: &Cache<'_, B>) -> Self {
        let table = cache.drive_table(claim.drives);
        table.set_beat(0);
        table.set_alive(0);
        table.make(0);
        table.make(table.next_rows());
        let nodes = claim.drives.nodes().map(|_| Followed::default()).collect();
        Self { drives: claim.drives, nodes, taken: 0, next_beat_ms: 0 }
    }

    /// Sends the beat, sees which agents live, and takes in what they announced before the call. To
    /// be called several times a second. A directory whose log was overrun is scanned: that takes
    /// seconds when it is large, so an agent does this on a thread of its own.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub fn sync<B: Backend>(
        &mut self,
        cache: &Cache<'_, B>,
        clock: &impl Clock,
    ) -> Result<DriveSync, DriveError> {
        let table = cache.drive_table(self.drives);
        let mut sync = DriveSync::default();
        cache.check_member()?;
        self.look(cache, clock, &table, &mut sync);
        for _ in 0..SCANS_MAX {
            if self.is_crowded(&table) {
                self.grow(&table);
            }
            let wanting = |it: &Followed| it.alive && it.position.is_none();
            let index = self.nodes.iter().position(wanting);
            let Some(node) = index.and_then(|index| self.drives.nodes().nth(index)) else { break };
            sync.scans += 1;
            self.scan(cache, clock, &table, node, &mut sync)?;
        }
        Ok(sync)
    }

    /// Tells all processes of the host and all hosts at once that this agent is gone.
    pub fn stop<B: Backend>(self, cache: &Cache<'_, B>) {
        cache.drive_table(self.drives).set_beat(0);
        if cache.check_member().is_ok() {
            cache.own_drives(self.drives).beat().publish(cache.member().fabric(), 0);
        }
    }

    /// Reads what the logs have, and beats.
    fn look<B: Backend>(
        &mut self,
        cache: &Cache<'_, B>,
        clock: &impl Clock,
        table: &HostTable<impl HostMemory>,
        sync: &mut DriveSync,
    ) {
        let (drives, fabric) = (self.drives, cache.member().fabric());
        let now_ms = clock.now_ms();
        // No other host writes what the own node says: this host's caches have it.
        let me = cache.member().node();
        let others = drives.nodes().filter(|node| *node != me);
        refresh_all(fabric, others.map(|node| drives.of(node).head().range()));
        let mut new = Vec::new();
        for (node, followed) in drives.nodes().zip(&mut self.nodes) {
            let said = drives.of(node);
            followed.see(said.beat().cached(fabric), life_of(said.life().cached(fabric)), now_ms);
            let head = said.head().cached(fabric);
            let behind = followed.position.map(|at| (at, behind(at, head, said.log().entries())));
            match behind {
                Some((position, Behind::By(count))) if followed.alive && count > 0 => {
                    new.push((node, position, count));
                }
                Some((_, Behind::Overrun)) => followed.position = None,
                Some(_) | None => {}
            }
        }
        table.set_alive(self.alive());
        // MEM-M4: the heads were seen, now what they count.
        let ranges = |it: &(NodeId, u64, u64)| drives.of(it.0).log().ranges(it.1, it.2);
        refresh_all(fabric, new.iter().filter(|it| it.0 != me).flat_map(ranges));
        for (node, position, count) in new {
            self.follow(cache, table, node, position, count, sync);
        }
        self.beat(cache, table, now_ms);
    }

    /// Says that the agent lives, to processes of this host and to agents of others.
    fn beat<B: Backend>(
        &mut self,
        cache: &Cache<'_, B>,
        table: &HostTable<impl HostMemory>,
        now_ms: u64,
    ) {
        if now_ms < self.next_beat_ms {
            return;
        }
        self.next_beat_ms = now_ms + BEAT_MS;
        let word = cache.own_drives(self.drives).beat();
        let beat = word.own(cache.member().fabric()).wrapping_add(1).max(1);
        word.publish(cache.member().fabric(), beat);
        table.set_beat(beat);
    }

    fn follow<B: Backend>(
        &mut self,
        cache: &Cache<'_, B>,
        table: &HostTable<impl HostMemory>,
        node: NodeId,
        position: u64,
        count: u64,
        sync: &mut DriveSync,
    ) {
        let log = self.drives.of(node).log();
        self.nodes[node.index()].position = Some(position.wrapping_add(count));
        for step in 0..count {
            let number = position.wrapping_add(step);
            let Some(entry) = log.cached(cache.member().fabric(), number) else {
                // Overwritten while we read, or damaged (INDEX-G2).
                self.nodes[node.index()].position = None;
                return;
            };
            sync.entries += 1;
            match entry.kind {
                LogKind::Published => self.add(table, entry.key, node, sync),
                LogKind::Removed => self.taken -= table.remove(entry.key, node),
            }
        }
    }

    /// Reads a whole directory, and follows all logs meanwhile (TIER-D1).
    fn scan<B: Backend>(
        &mut self,
        cache: &Cache<'_, B>,
        clock: &impl Clock,
        table: &HostTable<impl HostMemory>,
        node: NodeId,
        sync: &mut DriveSync,
    ) -> Result<(), DriveError> {
        let (fabric, said) = (cache.member().fabric(), self.drives.of(node));
        self.taken -= table.remove_all_of(node);
        let life = self.nodes[node.index()].life;
        self.nodes[node.index()].position = Some(said.head().cached(fabric));
        let slots = self.drives.plan.geometry.slots();
        let mut first = 0;
        while first < slots {
            let count = SCAN_SLOTS.min(slots - first);
            if node != cache.member().node() {
                fabric.refresh(said.entries(first, count));
            }
            let found = (first..first + count).filter_map(|slot| said.entry(fabric, slot));
            for entry in found.filter(|entry| entry.life == life) {
                if self.is_crowded(table) {
                    return Ok(());
                }
                self.add(table, entry.key, node, sync);
            }
            first += count;
            cache.check_member()?;
            self.look(cache, clock, table, sync);
            if self.nodes[node.index()].position.is_none() {
                // Overrun meanwhile, or another life: it is scanned again.
                return Ok(());
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        table: &HostTable<impl HostMemory>,
        key: IndexKey,
        node: NodeId,
        sync: &mut DriveSync,
    ) {
        // A damaged log may name more blocks than there are entries, and a crowded table grows: what
        // it lacks is read again.
        let has_room = self.taken * 8 < table.rows() * 7;
        match has_room.then(|| table.add(key, node)).flatten() {
            Some(rows) => self.taken += rows,
            None => sync.dropped += 1,
        }
    }

    /// Whether the table should grow, and can.
    fn is_crowded(&self, table: &HostTable<impl HostMemory>) -> bool {
        self.taken * 3 > table.rows() * 2 && table.next_rows() > table.rows()
    }

    /// Makes a table of more rows, into which all directories are read again.
    fn grow(&mut self, table: &HostTable<impl HostMemory>) {
        table.make(table.next_rows());
        self.taken = 0;
        for followed in &mut self.nodes {
            followed.position = None;
        }
    }

    fn alive(&self) -> u64 {
        let bits = self.nodes.iter().enumerate().filter(|(_, it)| it.alive);
        bits.fold(0, |bits, (index, _)| bits | 1 << index)
    }
}

impl Followed {
    /// Takes in the beat and the life that a node says. An agent lives whose beat was seen to move.
    fn see(&mut self, beat: u64, life: u32, now_ms: u64) {
        let (before, was_seen) = (self.watch, self.seen);
        let moves = self.watch.is_alive(beat, now_ms);
        self.seen = true;
        self.alive = was_seen && moves && (self.alive || before != self.watch);
        if self.life != life {
            // TIER-D2.
            (self.life, self.position) = (life, None);
        }
    }
}
