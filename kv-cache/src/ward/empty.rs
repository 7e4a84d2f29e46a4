//! Emptying a chunk of a ward.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory, PublishBatch};
use cxl_shm::layout::CHUNK_LOCK;
use cxl_shm::member::{Liveness, is_vacant};
use cxl_shm::units::{ChunkId, NodeId};

use crate::cache::Cache;
use crate::descriptor::{BlockState, Descriptor, DescriptorLine, SlotContent};
use crate::evict::{BATCH, ChunkWait, Decision, look_at_stamps};
use crate::log::{LogEntry, LogKind, OwnLog};
use crate::segment::OwnSegment;

/// Chunks of a ward that are looked at in one go for one in which nobody holds anything.
const CHUNKS_LOOKED_AT_MAX: usize = 16;

/// What came of a try to empty a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Emptied {
    /// One is the region's.
    Given,
    /// Somebody holds something in each of those that were looked at, or came to meanwhile; or they
    /// are not the ward's any more.
    Held,
    /// The ward has a new life.
    CameBack,
    /// The lock of the chunk table was not to be had.
    NoLock,
}

/// What a vacant node published, as its guardian may write it (W1).
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
        // M8: what the ward wrote last, and guardians before us.
        member.fabric().refresh(areas.published(node));
        let area = member.area_of_vacant(node);
        let (segment, log) = (areas.own_segment(node, area), areas.own_log(area));
        Self { cache, node, segment, log }
    }

    fn fabric(&self) -> &F {
        self.cache.member().fabric()
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
        self.settle(&undecided);
        let mut chunks: Vec<_> = chunks.into_iter().collect();
        chunks.sort_by_key(|(_, blocks)| *blocks);
        for (chunk, _) in chunks.into_iter().take(CHUNKS_LOOKED_AT_MAX) {
            // W2: there may be millions to look at.
            if !self.is_ours() {
                return Emptied::CameBack;
            }
            let inside = self.blocks().filter(|(other, _)| *other == chunk);
            let blocks: Vec<Descriptor> = inside.map(|(_, block)| block).collect();
            if blocks.chunks(BATCH).any(|batch| !self.decide(batch, clock).stay.is_empty()) {
                continue;
            }
            // Nothing is evicted while nobody can give chunks back. The ward, should it come back,
            // does not wait for as long as a publish here waits for that.
            if !blocks.is_empty() {
                let ours = || self.is_ours();
                let lock = |left_ms| {
                    let locked = member.lock_shared_while(CHUNK_LOCK, clock, left_ms, ours);
                    locked.map(|guard| guard.is_some())
                };
                match wait.ask(clock, lock, |error| Some(*error)) {
                    Ok(true) => {}
                    Ok(false) => return Emptied::CameBack,
                    Err(_) => return Emptied::NoLock,
                }
            }
            for batch in blocks.chunks(BATCH) {
                // W2.
                if !self.is_ours() {
                    return Emptied::CameBack;
                }
                if !self.evict(batch, clock) {
                    return Emptied::Held;
                }
            }
            crash::reach(CrashPoint::ChunkVacated);
            let free = |left_ms| member.free_chunk_of_vacant(clock, left_ms, self.node, chunk);
            return match wait.ask(clock, free, |error| Some(*error)) {
                Ok(true) => Emptied::Given,
                Ok(false) => Emptied::Held,
                Err(_) => Emptied::NoLock,
            };
        }
        Emptied::Held
    }

    /// Whether the ward has no new life, and this host may still write.
    fn is_ours(&self) -> bool {
        let member = self.cache.member();
        member.check_member().is_ok()
            && is_vacant(self.cache.areas().layout(), self.fabric(), self.node)
    }

    /// Ends what somebody was at who died: blocks that say EVICTING are READY again. Others may wait
    /// for what becomes of them (H1).
    pub(crate) fn settle(&self, undecided: &[Descriptor]) {
        self.segment.publish_as(self.fabric(), undecided, BlockState::Ready);
    }

    /// Its blocks, with the chunk that each is in. One that a guardian, or the ward, died over within
    /// its line is EVICTING (H6). What else cannot be read nobody else can read either, and it is its next
    /// life's to remove.
    fn blocks(&self) -> impl Iterator<Item = (ChunkId, Descriptor)> + '_ {
        let layout = self.cache.areas().layout();
        let block = |slot| {
            let content = self.segment.own(self.fabric(), slot).ok();
            match content.or_else(|| self.segment.undecided(self.fabric(), slot)) {
                Some(SlotContent::Block(block)) => Some((layout.chunk_of(block.payload)?, block)),
                Some(_) | None => None,
            }
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

    /// Says that blocks are to leave. Of one that the ward was writing nobody has to hear.
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
        let watch = &mut watches.entry(self.node).or_default().holds;
        let seen = look_at_stamps(member, areas, self.node, watch, &slots, clock.now_ms());
        let (mut stay, mut leave) = (Vec::new(), Vec::new());
        for (block, seen) in blocks.iter().zip(seen) {
            // What the ward was writing nobody completes any more (E3).
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
