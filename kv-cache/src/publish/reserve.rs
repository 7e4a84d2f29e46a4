//! The first half of publishing: descriptors and payload slots.

use std::sync::Arc;

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::PublishBatch;
use cxl_shm::node::Backend;
use cxl_shm::units::Extent;

use super::room::Shortage;
use super::{BlockSpec, Refusal, WritingBlock};
use crate::format::{
    BlockState, Descriptor, DescriptorLine, Handle, SlotContent, next_generation, used_word,
};
use crate::heap::{Insert, LockedHeap, SlotSize, SlotWord, tag};
use crate::identity::{BlockKey, Namespace, NamespaceTag};
use crate::process::{Cache, ChunkWait, ProcessState};

/// What became of a block that was to be published.
#[derive(Debug)]
#[must_use = "a block that is not committed is freed again"]
pub enum Reservation {
    /// It is to be written now.
    Writing(WritingBlock),
    /// It is in the pool, or some process of this host is writing it.
    AlreadyThere,
    /// There is no room for it.
    Refused(Refusal),
}

/// A block of a batch on its way through `reserve`.
struct Pending {
    spec: BlockSpec,
    namespace: NamespaceTag,
    size: Option<SlotSize>,
    outcome: Option<Reservation>,
}

/// Where the blocks of a call come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Engine,
    Drive,
}

/// How often the other processes of the host may take the room that a call has made, before what is
/// still open is refused: many times for each of the ranks of a host, which publish at the same
/// time.
const OUTRUN_MAX: usize = 64;

/// Descriptors that are loaded ahead of the commit of a batch: more would leave the caches again.
const PREFETCHED_MAX: usize = 64;

impl Pending {
    /// Whether it is still open for want of this.
    fn lacks(&self, shortage: Shortage) -> bool {
        self.outcome.is_none()
            && match shortage {
                Shortage::Payload(size, _) => self.size == Some(size),
                Shortage::Descriptors(_) => true,
                Shortage::Place(key) => self.spec.key == key,
            }
    }
}

impl<B: Backend> Cache<'_, B> {
    /// Reserves a descriptor and a payload slot for each block that is not in the pool yet. The
    /// results are in the order of `specs`.
    ///
    /// After return every host sees the reserved descriptors as being written, and no lookup
    /// finds them.
    ///
    /// When this node has no free payload slot of the size, a chunk is taken from the region, as
    /// long as that has any, which waits for other hosts, for at most `chunk_timeout_ms` in all of
    /// the call. When there is no chunk, or the lock of the chunk table cannot be acquired (the
    /// lock manager is silent, say), blocks of this node are evicted, at most a batch at a time; a
    /// lock that was not acquired is not asked for again in the same call. What is refused found
    /// everything held, or being written.
    pub fn reserve(
        &self,
        clock: &impl Clock,
        specs: &[BlockSpec],
        chunk_timeout_ms: u64,
    ) -> Vec<Reservation> {
        self.reserve_for(clock, &Namespace::default(), specs, chunk_timeout_ms)
    }

    /// As [`reserve`](Self::reserve), for blocks that count for `namespace`, in which their keys
    /// were made.
    pub fn reserve_for(
        &self,
        clock: &impl Clock,
        namespace: &Namespace,
        specs: &[BlockSpec],
        chunk_timeout_ms: u64,
    ) -> Vec<Reservation> {
        self.reserve_from(clock, Origin::Engine, namespace.tag(), specs, chunk_timeout_ms)
    }

    /// As [`reserve_for`](Self::reserve_for), for blocks of which only the tag of their namespace is
    /// known: those that come back from a drive. A drained node takes them (CLEAR-D10).
    pub fn reserve_tagged(
        &self,
        clock: &impl Clock,
        namespace: NamespaceTag,
        specs: &[BlockSpec],
        chunk_timeout_ms: u64,
    ) -> Vec<Reservation> {
        self.reserve_from(clock, Origin::Drive, namespace, specs, chunk_timeout_ms)
    }

    fn reserve_from(
        &self,
        clock: &impl Clock,
        origin: Origin,
        namespace: NamespaceTag,
        specs: &[BlockSpec],
        chunk_timeout_ms: u64,
    ) -> Vec<Reservation> {
        if let Err(dead) = self.check_member() {
            return specs.iter().map(|_| Reservation::Refused(dead.into())).collect();
        }
        let mut pending = self.pending(specs, namespace);
        let (mut chunk, mut wait) = (None, ChunkWait::new(chunk_timeout_ms));
        // Each round but the last makes room for at least one block, or refuses one; others of this
        // host may be faster and take it, as often as there are other processes that publish.
        for _ in 0..=2 * specs.len() + OUTRUN_MAX {
            let shortage = self.locked(clock, |heap| {
                if let Some(chunk) = chunk.take() {
                    heap.add_chunk(chunk);
                }
                heap.reserve(&mut pending, origin, self.process_state())
            });
            let Some(shortage) = shortage else { break };
            match self.make_room(clock, shortage, &mut wait) {
                Ok(new) => chunk = new,
                Err(refusal) => {
                    for entry in pending.iter_mut().filter(|entry| entry.lacks(shortage)) {
                        entry.outcome = Some(Reservation::Refused(refusal));
                    }
                }
            }
        }
        if let Some(chunk) = chunk {
            self.locked(clock, |heap| heap.add_chunk(chunk));
        }
        let outrun = || Reservation::Refused(Refusal::Outrun);
        let outcomes = pending.into_iter().map(|entry| entry.outcome.unwrap_or_else(outrun));
        let mut outcomes: Vec<_> = outcomes.collect();
        // FAULT-F7: a GPU reaches payload that another process of this host has by now.
        if let Err(lost) = self.check_reads() {
            outcomes.fill_with(|| Reservation::Refused(lost.into()));
        }
        self.count(|metrics| {
            for outcome in &outcomes {
                match outcome {
                    Reservation::Writing(_) => {}
                    Reservation::AlreadyThere => metrics.already_there += 1,
                    Reservation::Refused(_) => metrics.refused += 1,
                }
            }
        });
        outcomes
    }

    /// What can be said of the blocks before the heap is locked.
    fn pending(&self, specs: &[BlockSpec], namespace: NamespaceTag) -> Vec<Pending> {
        let chunk_bytes = self.member().layout().geometry().chunk_bytes;
        let replica = self.synced_replica();
        let mut used = Vec::new();
        let entry = |spec: &BlockSpec| {
            let size = SlotSize::for_block(spec.bytes, chunk_bytes);
            let outcome = if size.is_none() {
                let most_bytes = chunk_bytes.min(u64::from(u32::MAX));
                let refusal = Refusal::Length { bytes: spec.bytes, most_bytes };
                Some(Reservation::Refused(refusal))
            } else {
                // A copy of another node is as good as one of our own. The hint may be wrong:
                // then the next request that misses publishes it.
                let found = replica.find(spec.key);
                used.extend(found);
                found.map(|_| Reservation::AlreadyThere)
            };
            Pending { spec: *spec, namespace, size, outcome }
        };
        let pending = specs.iter().map(entry).collect();
        drop(replica);
        self.process_state().touch(used.into_iter());
        pending
    }
}

impl<B: Backend> LockedHeap<'_, B> {
    /// Reserves what there is room for, and leaves open what lacks something. Returns what is
    /// lacking.
    fn reserve(
        &mut self,
        pending: &mut [Pending],
        origin: Origin,
        process_state: &Arc<ProcessState>,
    ) -> Option<Shortage> {
        self.log.prefetch_head(self.fabric());
        process_state.note_lost(self.fabric());
        let refuses = origin == Origin::Engine
            && self.directory.drained(self.member.incarnation()) == Some(true);
        let mut shortage = None;
        let mut batch = PublishBatch::new(self.fabric());
        for entry in pending.iter_mut() {
            let (None, Some(size)) = (&entry.outcome, entry.size) else {
                continue;
            };
            if shortage.is_some_and(|shortage| entry.lacks(shortage)) {
                continue;
            }
            if self.has(entry.spec.key) {
                entry.outcome = Some(Reservation::AlreadyThere);
                continue;
            }
            if refuses {
                entry.outcome = Some(Reservation::Refused(Refusal::Drained));
                continue;
            }
            let (slot, last) = match self.directory.insert(entry.spec.key) {
                Insert::Into { slot, last } => (slot, last),
                Insert::Full => {
                    shortage = shortage.or(Some(Shortage::Descriptors(0)));
                    continue;
                }
                Insert::Crowded => {
                    shortage = shortage.or(Some(Shortage::Place(entry.spec.key)));
                    continue;
                }
            };
            let is_failed = |chunk| process_state.is_failed(chunk);
            let Some(payload) = self.directory.take_payload(size, entry.spec.bytes, is_failed)
            else {
                shortage = shortage.or(Some(Shortage::Payload(size, 0)));
                continue;
            };
            self.use_table_of(slot, &mut batch);
            let descriptor = self.writing(entry, slot, next_generation(last), payload);
            batch.line(self.segment.line(slot), &DescriptorLine::block(&descriptor));
            let (generation, tag) = (descriptor.handle.generation(), tag(entry.spec.key));
            self.directory.set_slot(slot, SlotWord::Writing { generation, tag });
            let block = WritingBlock::new(descriptor, Arc::clone(process_state));
            entry.outcome = Some(Reservation::Writing(block));
        }
        // WRITE-B1.
        batch.publish();
        crash::reach(CrashPoint::PublishReserved);
        self.prefetch_for_commit(pending);
        let blocks = |shortage| pending.iter().filter(|entry| entry.lacks(shortage)).count();
        shortage.map(|shortage| match shortage {
            Shortage::Payload(size, _) => Shortage::Payload(size, blocks(shortage)),
            Shortage::Descriptors(_) => Shortage::Descriptors(blocks(shortage)),
            Shortage::Place(_) => shortage,
        })
    }

    /// Loads what the commit reads while the payloads are copied: a publish has dropped its lines from
    /// the caches.
    fn prefetch_for_commit(&self, pending: &[Pending]) {
        let writing = pending.iter().filter_map(|entry| match &entry.outcome {
            Some(Reservation::Writing(block)) => Some(block.claim().slot),
            _ => None,
        });
        for slot in writing.take(PREFETCHED_MAX) {
            self.segment.line(slot).prefetch(self.fabric());
        }
        self.log.prefetch_next(self.fabric());
    }

    /// Says that the table of a slot is in use, together with what `batch` publishes (INDEX-S5).
    fn use_table_of(&self, slot: u32, batch: &mut PublishBatch<'_, B::Fabric>) {
        let used = self.directory.tables().index_of(slot) + 1;
        if used > self.directory.tables_in_use() {
            batch.word(self.tables_used, used_word(used));
            self.directory.use_tables(used);
        }
    }

    /// Whether this node has a block with `key`, complete or being written.
    fn has(&self, key: BlockKey) -> bool {
        self.directory.candidates(key).any(|slot| {
            let content = self.segment.own(self.fabric(), slot);
            matches!(content, Ok(SlotContent::Block(block)) if block.key.index() == key.index())
        })
    }

    fn writing(&self, entry: &Pending, slot: u32, generation: u32, payload: Extent) -> Descriptor {
        let Pending { spec, namespace, .. } = entry;
        Descriptor {
            namespace: *namespace,
            handle: Handle::new(self.node(), slot, generation),
            state: BlockState::Writing,
            key: spec.key,
            payload,
            checksum: 0,
            incarnation: self.member.incarnation(),
            depth: u16::try_from(spec.depth).unwrap_or(u16::MAX),
            process: self.member.process(),
        }
    }
}
