//! Mark and sweep: the directory made anew from the descriptors and the chunk table.

use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory, PublishBatch};
use cxl_shm::member::Liveness;

use super::{LockedHeap, SlotWord, tag};
use crate::descriptor::{BlockState, Descriptor, DescriptorLine, SlotContent};

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    /// Builds the directory anew. After return every complete block of this node that can be
    /// found is readable, its payload is taken, and all other slots are tombstones, published.
    ///
    /// Complete blocks of earlier lives of the node stay: their chunks are this node's still.
    /// Returns how many slots were made tombstones.
    pub(super) fn sweep(&mut self) -> u64 {
        self.directory.clear();
        self.find_chunks();
        let mut victims = Vec::new();
        let mut kept = Vec::new();
        let mut newest = 0;
        let mut used = false;
        for slot in 0..self.directory.slots() {
            let content = self.segment.own(self.fabric(), slot);
            used |= content != Ok(SlotContent::Blank);
            let word = match content {
                Ok(SlotContent::Blank) => continue,
                Ok(SlotContent::Free { generation, ends_search, .. }) => {
                    SlotWord::Free { generation, ends: ends_search }
                }
                Ok(SlotContent::Block(block)) => {
                    let generation = block.handle.generation();
                    match self.keep(&block) {
                        Some(word) => {
                            if block.state == BlockState::Evicting {
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
                newest = newest.max(generation);
            }
            self.directory.set_slot(slot, word);
        }

        crash::reach(CrashPoint::SweepMarked);
        let mut batch = PublishBatch::new(self.fabric());
        for (slot, generation) in &victims {
            // A line that cannot be read does not tell its generation: go on from one that no
            // handle to it can have (D1).
            let generation = generation.unwrap_or(newest);
            self.directory.set_slot(*slot, SlotWord::Free { generation, ends: false });
            let line = DescriptorLine::free(self.node(), generation, false);
            batch.line(self.segment.line(*slot), &line);
        }
        for block in &kept {
            batch.line(self.segment.line(block.handle.slot()), &DescriptorLine::block(block));
        }
        // D2.
        batch.publish();
        if used {
            // G3: what was published last may not have been announced.
            self.log.skip(self.fabric());
        }
        self.directory.set_built(self.member.incarnation());
        victims.len() as u64
    }

    /// What becomes of a block; `None` when it goes.
    fn keep(&self, block: &Descriptor) -> Option<SlotWord> {
        let (generation, tag) = (block.handle.generation(), tag(block.key));
        let word = match block.state {
            // Its owner died while it considered removing the block, which somebody may hold (H6).
            BlockState::Ready | BlockState::Evicting => SlotWord::Ready { generation, tag },
            // E3.
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
        self.directory.mark_payload(block.payload).then_some(word)
    }
}
