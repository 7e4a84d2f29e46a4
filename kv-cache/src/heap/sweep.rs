//! Mark and sweep: the directory made anew from the descriptors and the chunk table.

use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, PublishBatch};
use cxl_shm::node::Backend;

use super::{LockedHeap, Moved, SlotWord, tag};
use crate::broken::{Rule, is_broken};
use crate::format::{BlockState, Descriptor, DescriptorLine, SlotContent, is_newer, tables_in_use};

/// How many more blocks than any other slot of its node a slot may have held whose generation is
/// lost: more than any has in practice, and few enough to be lost a thousand times (`is_newer`).
const UNHEARD_OF: u32 = 1 << 20;

impl<B: Backend> LockedHeap<'_, B> {
    /// Builds the directory anew. After return every complete block of this node that can be
    /// found is readable, its payload is taken, and all other slots are tombstones, published.
    ///
    /// Complete blocks of earlier lives of the node stay: their chunks are this node's still.
    /// Returns how many slots were made tombstones.
    pub(super) fn sweep(&mut self) -> u64 {
        let known = self.known_generations();
        self.directory.clear();
        self.find_chunks();
        // MEM-M8: while nobody had this slot others may have written what it published (ORPHAN-W2).
        // BLOCK-D2: what is read here as free is free for all hosts, also what a process stored
        // that died before it had published it. It is written back, and each line is read from the
        // device.
        self.fabric().refresh(self.areas.published(self.node()));
        let used = self.tables_used.own(self.fabric());
        self.directory.use_tables(tables_in_use(used, self.directory.tables()));
        let mut victims = Vec::new();
        let mut kept = Vec::new();
        let mut there = Moved::default();
        let mut newest: Option<u32> = None;
        let mut is_used = false;
        for slot in 0..self.directory.slots_in_use() {
            let content = self.segment.own(self.fabric(), slot).or_else(|error| {
                let undecided = || self.segment.undecided(self.fabric(), slot);
                // Nobody ever wrote there, or its writer died within a line.
                undecided().ok_or(error)
            });
            is_used |= content != Ok(SlotContent::Blank);
            let word = match content {
                Ok(SlotContent::Blank) => continue,
                Ok(SlotContent::Free { generation, ends_search, .. }) => {
                    SlotWord::Free { generation, ends: ends_search }
                }
                Ok(SlotContent::Block(block)) => {
                    let generation = block.handle.generation();
                    match self.keep(&block) {
                        Some(word) => {
                            if let SlotWord::Ready { .. } = word {
                                there.blocks += 1;
                                there.bytes += block.payload.bytes();
                            }
                            if block.state == BlockState::Evicting
                                && !is_broken(Rule::EvictingComesBack)
                            {
                                kept.push(Descriptor { state: BlockState::Ready, ..block });
                            }
                            word
                        }
                        None => {
                            victims.push((slot, Some(generation)));
                            SlotWord::Free { generation, ends: false }
                        }
                    }
                }
                Err(_) => {
                    victims.push((slot, None));
                    continue;
                }
            };
            if let SlotWord::Free { generation, .. }
            | SlotWord::Writing { generation, .. }
            | SlotWord::Ready { generation, .. } = word
            {
                // Generations wrap: the greatest number may be of an old one.
                if newest.is_none_or(|newest| is_newer(generation, newest)) {
                    newest = Some(generation);
                }
            }
            self.directory.set_slot(slot, word);
        }

        crash::reach(CrashPoint::SweepMarked);
        let mut batch = PublishBatch::new(self.fabric());
        for (slot, generation) in &victims {
            // A line that cannot be read does not tell its generation. The directory did, if it is
            // of this life; else go on from one that no handle to the slot can have (BLOCK-D1).
            let generation = generation
                .or_else(|| known.get(*slot as usize).copied().flatten())
                .unwrap_or_else(|| newest.unwrap_or(0).wrapping_add(UNHEARD_OF));
            self.directory.set_slot(*slot, SlotWord::Free { generation, ends: false });
            let line = DescriptorLine::free(self.node(), generation, false);
            batch.line(self.segment.line(*slot), &line);
        }
        for block in &kept {
            batch.line(self.segment.line(block.handle.slot()), &DescriptorLine::block(block));
        }
        // BLOCK-D2.
        batch.publish();
        if is_used {
            // INDEX-G3: what was published last may not have been announced.
            self.log.skip(self.fabric());
        }
        self.directory.set_built(self.member.incarnation());
        self.swept = Some(there);
        victims.len() as u64
    }

    /// The generations of all slots, as far as the directory knows them from this life of the node;
    /// nothing when it is of an earlier one.
    fn known_generations(&self) -> Vec<Option<u32>> {
        if !self.directory.is_built_in(self.member.incarnation()) {
            return Vec::new();
        }
        let known = |slot| match self.directory.slot(slot) {
            // Also after a sweep that did not come to its end.
            SlotWord::Blank => None,
            SlotWord::Free { generation, .. }
            | SlotWord::Writing { generation, .. }
            | SlotWord::Ready { generation, .. } => Some(generation),
        };
        (0..self.directory.slots_in_use()).map(known).collect()
    }

    /// Makes the next holder of the heap lock sweep.
    pub(crate) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// What becomes of a block; `None` when it goes.
    fn keep(&self, block: &Descriptor) -> Option<SlotWord> {
        let (generation, tag) = (block.handle.generation(), tag(block.key));
        let word = match block.state {
            // Its owner died while it considered removing the block, which a reader may hold
            // (EVICT-H6).
            BlockState::Ready | BlockState::Evicting => SlotWord::Ready { generation, tag },
            // BLOCK-E3.
            BlockState::Writing
                if block.incarnation == self.member.incarnation()
                    && self.member.is_process_alive(block.process) =>
            {
                SlotWord::Writing { generation, tag }
            }
            // Nothing of this version knows drives.
            BlockState::Writing | BlockState::Spilled => return None,
        };
        // Two descriptors never share a payload, and none names one that is not ours.
        // BLOCK-P2.
        self.directory.mark_payload(block.payload).then_some(word)
    }
}
