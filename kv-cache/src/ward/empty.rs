//! Emptying a chunk of a ward.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory, PublishBatch};
use cxl_shm::layout::CHUNK_LOCK;
use cxl_shm::member::Liveness;
use cxl_shm::units::{ChunkId, NodeId};

use super::is_dead;
use crate::cache::Cache;
use crate::descriptor::{BlockState, Descriptor, DescriptorLine, SlotContent};
use crate::evict::{BATCH, Decision, look_at_stamps};
use crate::heap::SlotSize;
use crate::log::{LogEntry, LogKind, OwnLog};
use crate::segment::OwnSegment;

/// Chunks of a ward that are looked at in one go for one in which nobody holds anything.
const CHUNKS_LOOKED_AT_MAX: usize = 16;

impl<F: Fabric, H: HostMemory, L: Liveness> Cache<'_, F, H, L> {
    /// Gives a chunk of a node that is dead, and whose slot nobody has taken, back to the region:
    /// one of those with the fewest blocks in which nobody holds anything. Returns whether it did.
    ///
    /// Waits for the lock of the chunk table, each time for at most `timeout_ms`; evicts nothing
    /// while that is not to be had.
    pub(crate) fn empty_a_ward(&self, clock: &impl Clock, timeout_ms: u64) -> bool {
        let (member, layout) = (self.member(), self.areas().layout());
        let is_ward = |node: &NodeId| {
            *node != member.node()
                && is_dead(member, self.areas(), *node)
                && !self.payload_chunks_of(*node).is_empty()
        };
        let Some(node) = layout.nodes().find(is_ward) else { return false };
        if !self.take_ward(clock, node) {
            return false;
        }
        let chunks = self.payload_chunks_of(node);
        let given = Ward::of(self, node).empty_a_chunk(clock, chunks, timeout_ms);
        self.leave_ward(clock);
        self.local().count(|metrics| metrics.inherited_chunks += u64::from(given));
        given
    }

    fn payload_chunks_of(&self, node: NodeId) -> Vec<ChunkId> {
        let chunk_bytes = self.areas().layout().geometry().chunk_bytes;
        let chunks = self.member().chunks_of(node).into_iter();
        let is_payload =
            |(_, purpose): &(ChunkId, u64)| SlotSize::from_purpose(*purpose, chunk_bytes).is_some();
        chunks.filter(is_payload).map(|(chunk, _)| chunk).collect()
    }
}

/// What a dead node published, as its guardian may write it (W1).
#[derive(Debug)]
pub(crate) struct Ward<'c, 'm, F, H: HostMemory, L> {
    cache: &'c Cache<'m, F, H, L>,
    node: NodeId,
    segment: OwnSegment,
    log: OwnLog,
}

impl<'c, 'm, F: Fabric, H: HostMemory, L: Liveness> Ward<'c, 'm, F, H, L> {
    /// The ward that this host is the guardian of.
    pub(crate) fn of(cache: &'c Cache<'m, F, H, L>, node: NodeId) -> Self {
        let (member, areas) = (cache.member(), cache.areas());
        // M8: what the dead wrote last, and guardians before us.
        member.fabric().refresh(areas.published(node));
        let area = member.area_of_vacant(node);
        let (segment, log) = (areas.own_segment(node, area), areas.own_log(area));
        Self { cache, node, segment, log }
    }

    fn fabric(&self) -> &F {
        self.cache.member().fabric()
    }

    fn empty_a_chunk(&self, clock: &impl Clock, chunks: Vec<ChunkId>, timeout_ms: u64) -> bool {
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
        self.settle(&undecided);
        let mut chunks: Vec<_> = chunks.into_iter().collect();
        chunks.sort_by_key(|(_, blocks)| *blocks);
        for (chunk, _) in chunks.into_iter().take(CHUNKS_LOOKED_AT_MAX) {
            let inside = self.blocks().filter(|(other, _)| *other == chunk);
            let blocks: Vec<Descriptor> = inside.map(|(_, block)| block).collect();
            if blocks.chunks(BATCH).any(|batch| !self.decide(batch, clock).stay.is_empty()) {
                continue;
            }
            // Nothing is evicted while nobody can give chunks back.
            if !blocks.is_empty() && member.lock_shared(CHUNK_LOCK, clock, timeout_ms).is_err() {
                return false;
            }
            let gone = blocks.chunks(BATCH).all(|batch| {
                // W2.
                let areas = self.cache.areas();
                let ours = member.check_member().is_ok() && is_dead(member, areas, self.node);
                ours && self.evict(batch, clock)
            });
            crash::reach(CrashPoint::ChunkVacated);
            return gone
                && member
                    .free_chunk_of_vacant(clock, timeout_ms, self.node, chunk)
                    .unwrap_or(false);
        }
        false
    }

    /// Ends what somebody was at who died: blocks that say EVICTING are READY again. Others may wait
    /// for what becomes of them (H1).
    pub(crate) fn settle(&self, undecided: &[Descriptor]) {
        self.segment.publish_as(self.fabric(), undecided, BlockState::Ready);
    }

    /// Its blocks, with the chunk that each is in. What cannot be read nobody else can read either,
    /// and it is its next life's to remove.
    fn blocks(&self) -> impl Iterator<Item = (ChunkId, Descriptor)> + '_ {
        let layout = self.cache.areas().layout();
        let block = |slot| match self.segment.own(self.fabric(), slot) {
            Ok(SlotContent::Block(block)) => Some((layout.chunk_of(block.payload)?, block)),
            Ok(_) | Err(_) => None,
        };
        (0..self.cache.geometry().descriptor_slots()).filter_map(block)
    }

    /// Evicts those of `blocks` that nobody holds. Returns whether all are gone.
    fn evict(&self, blocks: &[Descriptor], clock: &impl Clock) -> bool {
        self.announce(blocks);
        let decision = self.decide(blocks, clock);
        self.carry_out(&decision);
        decision.stay.is_empty()
    }

    /// Says that blocks are to leave. Of one that the dead was writing nobody has to hear.
    pub(crate) fn announce(&self, blocks: &[Descriptor]) {
        let readable: Vec<_> = blocks.iter().filter(|it| it.is_readable()).copied().collect();
        // H1: before the look.
        self.segment.publish_as(self.fabric(), &readable, BlockState::Evicting);
        crash::reach(CrashPoint::EvictAnnounced);
    }

    /// Looks who holds what of `blocks`.
    pub(crate) fn decide(&self, blocks: &[Descriptor], clock: &impl Clock) -> Decision {
        let (member, areas) = (self.cache.member(), self.cache.areas());
        let slots: Vec<u32> = blocks.iter().map(|block| block.handle.slot()).collect();
        let mut watches = self.cache.local().wards.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = watches.entry(self.node).or_default();
        let seen = look_at_stamps(member, areas, self.node, watch, &slots, clock.now_ms());
        let (mut stay, mut leave) = (Vec::new(), Vec::new());
        for (block, seen) in blocks.iter().zip(seen) {
            // What the dead was writing nobody completes any more (E3).
            let stays = seen.held && block.is_readable();
            if stays { &mut stay } else { &mut leave }.push(*block);
        }
        Decision { stay, leave }
    }

    /// Makes what stays READY again, and frees the rest.
    pub(crate) fn carry_out(&self, decision: &Decision) {
        let Decision { stay, leave } = decision;
        // H6.
        self.segment.publish_as(self.fabric(), stay, BlockState::Ready);
        crash::reach(CrashPoint::EvictDecided);
        let mut batch = PublishBatch::new(self.fabric());
        for block in leave {
            let handle = block.handle;
            let line = DescriptorLine::free(self.node, handle.generation(), true);
            batch.line(self.segment.line(handle.slot()), &line);
        }
        // D2: gone for every reader before the chunk can be anybody's.
        batch.publish();
        crash::reach(CrashPoint::RetireFreed);
        let entry = |block: &Descriptor| LogEntry {
            kind: LogKind::Removed,
            key: block.key,
            slot: block.handle.slot(),
            generation: block.handle.generation(),
        };
        self.log.append(self.fabric(), &leave.iter().map(entry).collect::<Vec<_>>());
        self.cache.local().count(|metrics| {
            metrics.evicted_blocks += leave.len() as u64;
            metrics.spared_held += stay.len() as u64;
        });
    }
}
