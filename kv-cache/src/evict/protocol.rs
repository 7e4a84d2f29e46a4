//! How a block leaves: announce, decide, commit. There is one implementation of it, for the two
//! hosts that may evict: the owner, under its host's heap lock, and the reclaimer of a vacant node
//! (ORPHAN-W1).
//!
//! ```text
//! announce   descriptors EVICTING, published                (one fence)
//! decide     the reader words of their slots, freshly (EVICT-H1)   (two fences)
//! commit     held: READY again, published (EVICT-H6)              (one fence, seldom)
//!            else: FREE, published (BLOCK-D2)                     (one fence)
//!            what is kept beside the descriptors follows
//!            log entries; log head (INDEX-G1)                     (one fence each)
//! ```
//!
//! The order is the safety of the cache. A reader publishes its reader word, and then looks at the
//! descriptor: READY means held. The evicting host publishes EVICTING, and then looks at the
//! reader words. One of the two always sees the other (EVICT-H1), so each step takes what the step
//! before it returns.

use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::PublishBatch;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::NodeId;

use super::look::{Seen, look_at_reader_words};
use super::watch::HoldWatch;
use crate::broken::{Rule, is_broken};
use crate::format::{Areas, BlockState, Descriptor, DescriptorLine, LogEntry, OwnLog, OwnSegment};
use crate::heap::LockedHeap;

/// Segment and log of a node, as the one host writes them that may evict there.
#[derive(Debug)]
pub(crate) struct SegmentWriter<'m, B: Backend> {
    member: &'m Member<B>,
    areas: Areas,
    segment: OwnSegment,
    log: OwnLog,
}

/// Blocks that are to leave: those that readers may use say EVICTING, for all hosts to see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Announced {
    blocks: Vec<Descriptor>,
}

/// What becomes of blocks whose descriptors say EVICTING.
#[derive(Debug)]
pub(crate) struct Decision {
    /// Those that a reader holds.
    pub(crate) stay: Vec<Descriptor>,
    /// The others.
    pub(crate) leave: Vec<Descriptor>,
}

impl<'m, B: Backend> SegmentWriter<'m, B> {
    /// The writer of a segment and a log that `member` may write.
    pub(crate) fn new(
        member: &'m Member<B>,
        areas: Areas,
        segment: OwnSegment,
        log: OwnLog,
    ) -> Self {
        Self { member, areas, segment, log }
    }

    pub(crate) fn fabric(&self) -> &'m B::Fabric {
        self.member.fabric()
    }

    /// The node whose blocks these are.
    pub(crate) fn node(&self) -> NodeId {
        self.segment.node()
    }

    pub(crate) fn segment(&self) -> &OwnSegment {
        &self.segment
    }

    /// Announces that `blocks` are to leave. No reader has to hear of one that is being written.
    pub(crate) fn announce(&self, blocks: Vec<Descriptor>) -> Announced {
        let readable: Vec<_> = blocks.iter().filter(|it| it.is_readable()).copied().collect();
        // EVICT-H1: before the look.
        self.segment.publish_as(self.fabric(), &readable, BlockState::Evicting);
        crash::reach(CrashPoint::EvictAnnounced);
        Announced { blocks }
    }

    /// Looks which of the announced blocks are held.
    pub(crate) fn decide(
        &self,
        watch: &mut HoldWatch,
        announced: Announced,
        now_ms: u64,
    ) -> Decision {
        let Announced { blocks } = announced;
        if is_broken(Rule::EvictorLooksAgain) {
            return Decision { stay: Vec::new(), leave: blocks };
        }
        let held = self.are_held(watch, &blocks, now_ms);
        let (mut stay, mut leave) = (Vec::new(), Vec::new());
        for (block, held) in blocks.into_iter().zip(held) {
            if held { &mut stay } else { &mut leave }.push(block);
        }
        Decision { stay, leave }
    }

    /// Whether readers hold `blocks`, each, freshly read. For blocks that are not announced a hint:
    /// the next moment another may be held.
    pub(crate) fn are_held(
        &self,
        watch: &mut HoldWatch,
        blocks: &[Descriptor],
        now_ms: u64,
    ) -> Vec<bool> {
        self.look(watch, blocks, now_ms).into_iter().map(|seen| seen.held).collect()
    }

    /// What readers say of each of `blocks`, freshly read: holds, which are a hint as in
    /// [`are_held`](Self::are_held), and the last use.
    pub(crate) fn look(
        &self,
        watch: &mut HoldWatch,
        blocks: &[Descriptor],
        now_ms: u64,
    ) -> Vec<Seen> {
        let slots: Vec<u32> = blocks.iter().map(|block| block.handle.slot()).collect();
        let seen =
            look_at_reader_words(self.member, &self.areas, self.node(), watch, &slots, now_ms);
        // Nobody completes what a dead process was writing (BLOCK-E3).
        let of_block = |(block, seen): (&Descriptor, Seen)| Seen {
            held: seen.held && block.is_readable(),
            ..seen
        };
        blocks.iter().zip(seen).map(of_block).collect()
    }

    /// Makes READY again what stays, frees the rest, and announces that in the log. Before the log,
    /// `freed` brings up to date what the host keeps beside the descriptors.
    pub(crate) fn commit(&self, decision: &Decision, freed: impl FnOnce(&[Descriptor])) {
        let Decision { stay, leave } = decision;
        // EVICT-H6.
        self.segment.publish_as(self.fabric(), stay, BlockState::Ready);
        crash::reach(CrashPoint::EvictDecided);
        if leave.is_empty() {
            return;
        }
        let mut batch = PublishBatch::new(self.fabric());
        for block in leave {
            let handle = block.handle;
            let line = DescriptorLine::free(self.node(), handle.generation(), true);
            batch.line(self.segment.line(handle.slot()), &line);
        }
        // BLOCK-D2: gone for every reader before the payload can be taken again.
        batch.publish();
        crash::reach(CrashPoint::RetireFreed);
        freed(leave);
        let entries: Vec<_> = leave.iter().map(LogEntry::removed).collect();
        self.log.append(self.fabric(), &entries);
    }
}

impl<'m, B: Backend> LockedHeap<'m, B> {
    /// The owner's writer.
    pub(crate) fn writer(&self) -> SegmentWriter<'m, B> {
        SegmentWriter::new(self.member, self.areas, self.segment, self.log)
    }
}
