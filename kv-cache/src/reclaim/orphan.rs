//! Emptying a chunk of an orphan.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::CHUNK_LOCK;
use cxl_shm::lifecycle::is_vacant;
use cxl_shm::node::Backend;
use cxl_shm::units::{ChunkId, NodeId};

use crate::broken::{Rule, is_broken};
use crate::evict::{Announced, BATCH, Decision, HoldWatch, SegmentWriter};
use crate::format::{BlockState, Descriptor, SlotContent};
use crate::heap::{LinesOf, end_searches_at};
use crate::process::{Cache, ChunkWait};

/// Chunks of an orphan that are looked at in one go.
const CHUNKS_LOOKED_AT_MAX: usize = 16;
/// Blocks of these that are looked at, about: each has a word of every reader.
const BLOCKS_LOOKED_AT_MAX: usize = 4096;

/// The orphan has a new life.
struct Rejoined;

/// What came of a try to empty a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Emptied {
    /// One is the region's.
    Given,
    /// Somebody holds something in each of those that were looked at, or came to meanwhile; or they
    /// are not the orphan's any more.
    Held,
    /// The orphan has a new life.
    Rejoined,
    /// The lock of the chunk table was not acquired.
    NoLock,
}

/// What a vacant node published, as its reclaimer may write it (ORPHAN-W1).
#[derive(Debug)]
pub(crate) struct Orphan<'c, 'm, B: Backend> {
    cache: &'c Cache<'m, B>,
    writer: SegmentWriter<'m, B>,
}

impl<'c, 'm, B: Backend> Orphan<'c, 'm, B> {
    /// The orphan that this host is the reclaimer of.
    pub(crate) fn of(cache: &'c Cache<'m, B>, node: NodeId) -> Self {
        let (member, areas) = (cache.member(), cache.areas());
        // MEM-M8: what the orphan wrote last, and reclaimers before us.
        member.fabric().refresh(areas.published(node));
        let area = member.area_of_vacant(node);
        let (segment, log) = (areas.own_segment(node, area), areas.own_log(area));
        Self { cache, writer: SegmentWriter::new(member, *areas, segment, log) }
    }

    pub(super) fn empty_a_chunk(
        &self,
        clock: &impl Clock,
        chunks: Vec<ChunkId>,
        wait: &mut ChunkWait,
    ) -> Emptied {
        let member = self.cache.member();
        let mut chunks: BTreeMap<ChunkId, u64> =
            chunks.into_iter().map(|chunk| (chunk, 0)).collect();
        let mut undecided = Vec::new();
        for (chunk, block) in self.blocks() {
            chunks.entry(chunk).and_modify(|blocks| *blocks += 1);
            if block.state == BlockState::Evicting {
                undecided.push(block);
            }
        }
        self.resolve(&undecided);
        let (chunk, blocks) = match self.coldest(chunks, clock) {
            Ok(Some(coldest)) => coldest,
            Ok(None) => return Emptied::Held,
            Err(Rejoined) => return Emptied::Rejoined,
        };
        // Nothing is evicted while nobody can give chunks back. The orphan, should it come
        // back, does not wait for as long as a publish here waits for that.
        if !blocks.is_empty() {
            let ours = || self.is_ours();
            let lock = |left_ms| {
                let locked = member.lock_shared_while(CHUNK_LOCK, clock, left_ms, ours);
                locked.map(|guard| guard.is_some())
            };
            match wait.ask(clock, lock, |error| Some(*error)) {
                Ok(true) => {}
                Ok(false) => return Emptied::Rejoined,
                Err(_) => return Emptied::NoLock,
            }
        }
        for batch in blocks.chunks(BATCH) {
            // ORPHAN-W2.
            if !self.is_ours() {
                return Emptied::Rejoined;
            }
            if !self.evict(batch, clock) {
                return Emptied::Held;
            }
        }
        crash::reach(CrashPoint::ChunkVacated);
        let free = |left_ms| member.free_chunk_of_vacant(clock, left_ms, self.writer.node(), chunk);
        match wait.ask(clock, free, |error| Some(*error)) {
            Ok(true) => Emptied::Given,
            Ok(false) => Emptied::Held,
            Err(_) => Emptied::NoLock,
        }
    }

    /// Looks at the `chunks` with the fewest blocks, of which the map has the number. Returns the chunk
    /// whose blocks were used longest ago, on average, and its blocks. Chunks in which somebody holds
    /// a block are left out.
    fn coldest(
        &self,
        chunks: BTreeMap<ChunkId, u64>,
        clock: &impl Clock,
    ) -> Result<Option<(ChunkId, Vec<Descriptor>)>, Rejoined> {
        let mut chunks: Vec<_> = chunks.into_iter().collect();
        chunks.sort_by_key(|(_, blocks)| *blocks);
        chunks.truncate(CHUNKS_LOOKED_AT_MAX);
        // ORPHAN-W2: there may be millions to look at.
        self.check_ours()?;
        let mut contents: BTreeMap<ChunkId, Vec<Descriptor>> =
            chunks.iter().map(|(chunk, _)| (*chunk, Vec::new())).collect();
        for (chunk, block) in self.blocks() {
            contents.entry(chunk).and_modify(|blocks| blocks.push(block));
        }
        let (mut coldest, mut looked_at): (Option<(u64, _, _)>, _) = (None, 0);
        for (chunk, _) in chunks {
            if coldest.is_some() && looked_at >= BLOCKS_LOOKED_AT_MAX {
                break;
            }
            self.check_ours()?;
            let blocks = contents.remove(&chunk).unwrap_or_default();
            looked_at += blocks.len();
            let Some(used) = self.mean_use(&blocks, clock) else { continue };
            if coldest.as_ref().is_none_or(|(coldest, ..)| used < *coldest) {
                coldest = Some((used, chunk, blocks));
            }
        }
        Ok(coldest.map(|(_, chunk, blocks)| (chunk, blocks)))
    }

    /// When `blocks` were used last, on average: a position in the orphan's log. `None` when somebody
    /// holds one of them.
    fn mean_use(&self, blocks: &[Descriptor], clock: &impl Clock) -> Option<u64> {
        let mut sum = 0_u128;
        for batch in blocks.chunks(BATCH) {
            let seen = self.watching(|watch| self.writer.look(watch, batch, clock.now_ms()));
            if seen.iter().any(|seen| seen.held) {
                return None;
            }
            sum += seen.iter().map(|seen| u128::from(seen.used.unwrap_or(0))).sum::<u128>();
        }
        u64::try_from(sum / blocks.len().max(1) as u128).ok()
    }

    fn check_ours(&self) -> Result<(), Rejoined> {
        if self.is_ours() { Ok(()) } else { Err(Rejoined) }
    }

    /// Whether the orphan has no new life, and this host may still write.
    fn is_ours(&self) -> bool {
        let member = self.cache.member();
        member.check_member().is_ok()
            && is_vacant(self.cache.areas().layout(), self.writer.fabric(), self.writer.node())
    }

    /// Ends the work of a reclaimer that died: blocks that say EVICTING are READY again. Others may
    /// wait for what becomes of them (EVICT-H1).
    pub(crate) fn resolve(&self, undecided: &[Descriptor]) {
        if !is_broken(Rule::EvictingComesBack) {
            let (segment, fabric) = (self.writer.segment(), self.writer.fabric());
            segment.publish_as(fabric, undecided, BlockState::Ready);
        }
    }

    /// Its blocks, with the chunk that each is in. One that a reclaimer, or the orphan, died over
    /// within its line is EVICTING (EVICT-H6). What else cannot be read nobody else can read
    /// either, and it is its next life's to remove.
    fn blocks(&self) -> impl Iterator<Item = (ChunkId, Descriptor)> + '_ {
        let layout = self.cache.areas().layout();
        let block = |slot| {
            let (segment, fabric) = (self.writer.segment(), self.writer.fabric());
            let content = segment.own(fabric, slot).ok();
            match content.or_else(|| segment.undecided(fabric, slot)) {
                Some(SlotContent::Block(block)) => Some((layout.chunk_of(block.payload)?, block)),
                Some(_) | None => None,
            }
        };
        let segment = self.cache.areas().segment(self.writer.node());
        (0..segment.slots_in_use(self.writer.fabric())).filter_map(block)
    }

    /// Removes the blocks that `is_wanted`, held or not (CLEAR-D3). Returns how many; `None` when the
    /// orphan has a new life, which removes them itself.
    pub(crate) fn remove(&self, is_wanted: impl Fn(&Descriptor) -> bool) -> Option<u64> {
        let blocks = self.blocks().map(|(_, block)| block);
        let blocks: Vec<Descriptor> = blocks.filter(|it| is_wanted(it)).collect();
        let mut removed = 0;
        for batch in blocks.chunks(BATCH) {
            // ORPHAN-W2.
            if !self.is_ours() {
                return None;
            }
            self.commit(&Decision { stay: Vec::new(), leave: batch.to_vec() });
            removed += batch.len() as u64;
        }
        Some(removed)
    }

    /// Evicts those of `blocks` that nobody holds. Returns whether all are gone.
    fn evict(&self, blocks: &[Descriptor], clock: &impl Clock) -> bool {
        let announced = self.announce(blocks);
        let decision = self.decide(announced, clock);
        self.commit(&decision);
        decision.stay.is_empty()
    }

    /// Announces that blocks are to leave, as their owner would.
    pub(crate) fn announce(&self, blocks: &[Descriptor]) -> Announced {
        self.writer.announce(blocks.to_vec())
    }

    /// Looks which of the announced blocks are held.
    pub(crate) fn decide(&self, announced: Announced, clock: &impl Clock) -> Decision {
        self.watching(|watch| self.writer.decide(watch, announced, clock.now_ms()))
    }

    /// Makes READY again what stays, and frees the rest.
    pub(crate) fn commit(&self, decision: &Decision) {
        self.writer.commit(decision, |gone| {
            let (fabric, segment) = (self.writer.fabric(), *self.writer.segment());
            let lines = LinesOf { fabric, segment, tables: self.cache.geometry().tables() };
            end_searches_at(fabric, &segment, &lines, gone.iter().map(|it| it.handle.slot()));
        });
        self.cache.count(|metrics| {
            metrics.evicted_blocks += decision.leave.len() as u64;
            metrics.spared_held += decision.stay.len() as u64;
        });
    }

    /// What this process has seen of the holds on the orphan's blocks.
    fn watching<T>(&self, look: impl FnOnce(&mut HoldWatch) -> T) -> T {
        let mut watches =
            self.cache.process_state().orphans.lock().unwrap_or_else(PoisonError::into_inner);
        look(&mut watches.entry(self.writer.node()).or_default().holds)
    }
}
