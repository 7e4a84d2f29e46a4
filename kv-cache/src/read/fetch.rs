//! Fetch: from a handle to bytes that are certainly those of the block.
//!
//! ```text
//! open    descriptors refreshed in one batch, checked      (one fence)
//! -> the caller drops the payload lines from this host's caches, and copies (MEM-M4, MEM-M9)
//! close   descriptors refreshed again, compared            (one fence)
//! ```
//!
//! - **READ-F1** The first look checks: a valid seal, READY or EVICTING, the handle's generation,
//!   all 192 bits of the key and the length that the reader wants, and a payload inside one chunk.
//! - **READ-F2** The second look always happens (EVICT-H3): the same descriptor, READY or EVICTING.
//!   The owner publishes FREE, and WRITING of the next block, before it changes a byte of the
//!   payload. So every byte copied between the looks was the block's.
//! - **READ-F3** The checksum, where the caller computed it, equals that of the descriptor. It
//!   finds what no protocol can: damaged memory. Payload that this process lost (FAULT-F3) is a miss
//!   before that.
//!
//! Every failure is a miss with a reason. The block is quarantined (INDEX-R3): this process does not
//! try it again. Not so a block with another key or length than its reader wants: others can use
//! it. A torn line is read again before it counts as a failure
//! (`read/damage.rs`), and again after that (INDEX-R5).

use cxl_shm::fabric::{Fabric, refresh_all};
use cxl_shm::layout::NodeState;
use cxl_shm::lifecycle::is_declared_dead;
use cxl_shm::node::Backend;
use cxl_shm::units::Extent;

use crate::format::{BlockState, Descriptor, Handle, SlotContent, is_newer};
use crate::identity::BlockKey;
use crate::process::Cache;
use crate::replica::{Miss, Missed};

/// A block as its reader wants it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Where a lookup found it.
    pub handle: Handle,
    /// Under which it was found.
    pub key: BlockKey,
    /// Its length in bytes.
    pub bytes: u64,
}

/// A block that passed the first look. Its bytes may be copied, and believed after the second.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "bytes are not to be believed before `close`"]
pub struct Ticket {
    descriptor: Descriptor,
}

impl Ticket {
    /// Where its bytes are.
    #[must_use]
    pub fn payload(&self) -> Extent {
        self.descriptor.payload
    }

    /// The block.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.descriptor.handle
    }
}

impl<B: Backend> Cache<'_, B> {
    /// Takes the first look at each block (READ-F1). The results are in the same order.
    ///
    /// # Errors
    /// Per block: why it is a miss.
    pub fn open(&self, wanted: &[Wanted]) -> Vec<Result<Ticket, Miss>> {
        let (fabric, areas) = (self.member().fabric(), self.areas());
        let line = |wanted: &Wanted| {
            areas.segment_of(wanted.handle).map(|segment| segment.range(wanted.handle.slot()))
        };
        refresh_all(fabric, wanted.iter().filter_map(line));
        let quarantined = {
            let replica = self.process_state().replica();
            let is_bad = |wanted: &Wanted| replica.is_quarantined(wanted.handle);
            wanted.iter().map(is_bad).collect::<Vec<_>>()
        };
        let look = |(wanted, quarantined): (&Wanted, bool)| {
            let descriptor = self.look_again(wanted.handle)?;
            accept(&descriptor, wanted)?;
            // FAULT-F3: a copy would only be of zeros.
            if fabric.has_lost(descriptor.payload) {
                return Err(Miss::MemoryFailed);
            }
            if quarantined { Err(Miss::Quarantined) } else { Ok(Ticket { descriptor }) }
        };
        let outcomes: Vec<_> = wanted.iter().zip(quarantined).map(look).collect();
        let names = wanted.iter().map(|wanted| (wanted.handle, wanted.key));
        self.note_misses(&misses_of(names, &outcomes));
        outcomes
    }

    /// Takes the second look at each block (READ-F2, READ-F3): with the CRC-32C of the bytes that
    /// were copied, or `None` where it was not computed. The results are in the same order.
    ///
    /// All copies are complete, and fenced: `load` of the DMA engines returns only then.
    ///
    /// # Errors
    /// Per block: why the bytes are not to be believed.
    pub fn close(&self, tickets: &[(Ticket, Option<u32>)]) -> Vec<Result<(), Miss>> {
        let outcomes = self.close_unused(tickets);
        let used = tickets.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
        self.process_state().touch(used.map(|((ticket, _), _)| ticket.handle()));
        self.count(|metrics| {
            for (ticket, _) in tickets.iter().zip(&outcomes).filter(|(_, ok)| ok.is_ok()) {
                metrics.fetched_blocks += 1;
                metrics.fetched_bytes += ticket.0.payload().bytes();
            }
        });
        outcomes
    }

    /// As [`close`](Self::close), for a copy that says nothing of the worth of the block: a backup.
    /// The copy is no use of the block, and no fetch in the metrics.
    ///
    /// # Errors
    /// Per block: why the bytes are not to be believed.
    pub fn close_unused(&self, tickets: &[(Ticket, Option<u32>)]) -> Vec<Result<(), Miss>> {
        let right = |found: &Option<u32>, checksum| found.is_none_or(|found| found == checksum);
        self.second_look(tickets, right)
    }

    /// Takes the second look at blocks of which a part was copied: with whether the caller knows that
    /// part to be right. The checksum of the descriptor is that of all parts, and says nothing of one.
    /// A part is no fetch in the metrics.
    ///
    /// # Errors
    /// Per block: why the bytes are not to be believed; [`Miss::Checksum`] of a part that is not right.
    pub fn close_parts(&self, tickets: &[(Ticket, bool)]) -> Vec<Result<(), Miss>> {
        self.second_look(tickets, |right, _| *right)
    }

    fn second_look<T>(
        &self,
        tickets: &[(Ticket, T)],
        is_right: impl Fn(&T, u32) -> bool,
    ) -> Vec<Result<(), Miss>> {
        let (fabric, areas) = (self.member().fabric(), self.areas());
        let line = |(ticket, _): &(Ticket, _)| {
            let handle = ticket.handle();
            areas.segment_of(handle).map(|segment| segment.range(handle.slot()))
        };
        refresh_all(fabric, tickets.iter().filter_map(line));
        let look = |(ticket, found): &(Ticket, T)| {
            let now = self.look_again(ticket.handle()).map_err(|_| Miss::Changed)?;
            // Everything but the state, which may have become or ceased to be EVICTING (EVICT-H2).
            let before = ticket.descriptor;
            if (Descriptor { state: before.state, ..now }) != before {
                return Err(Miss::Changed);
            }
            // FAULT-F3: the copy may have read zeros, which a checksum need not tell.
            if fabric.has_lost(before.payload) {
                return Err(Miss::MemoryFailed);
            }
            if is_right(found, before.checksum) { Ok(()) } else { Err(Miss::Checksum) }
        };
        let outcomes: Vec<_> = tickets.iter().map(look).collect();
        let names = tickets.iter().map(|(ticket, _)| (ticket.handle(), ticket.descriptor.key));
        self.note_misses(&misses_of(names, &outcomes));
        outcomes
    }

    /// The descriptor of a handle, as this host's caches hold it, if it is that of the handle and
    /// readable.
    pub(crate) fn look(&self, handle: Handle) -> Result<Descriptor, Miss> {
        let segment = self.areas().segment_of(handle).ok_or(Miss::Malformed)?;
        match segment.cached(self.member().fabric(), handle.slot())? {
            SlotContent::Blank => Err(Miss::Absent),
            SlotContent::Free { generation, .. } if is_newer(generation, handle.generation()) => {
                Err(Miss::StaleGeneration)
            }
            SlotContent::Free { evicted: true, .. } => Err(Miss::Evicted),
            SlotContent::Free { .. } => Err(Miss::Absent),
            SlotContent::Block(block) if block.handle != handle => Err(Miss::StaleGeneration),
            SlotContent::Block(block) if block.is_readable() => Ok(block),
            SlotContent::Block(block) if self.is_owner_dead(&block) => Err(Miss::OwnerDead),
            SlotContent::Block(block) if block.state == BlockState::Writing => Err(Miss::NotReady),
            SlotContent::Block(_) => Err(Miss::Spilled),
        }
    }

    /// Whether the life of the node that owns `block` is over.
    fn is_owner_dead(&self, block: &Descriptor) -> bool {
        let (layout, fabric) = (self.areas().layout(), self.member().fabric());
        let owner = block.handle.owner();
        layout.node_line(owner).fresh(fabric).is_ok_and(|line| {
            let later =
                block.state == BlockState::Writing && line.incarnation() != block.incarnation;
            later
                || line.state().is_some_and(NodeState::is_vacant)
                || is_declared_dead(layout, fabric, owner, line.incarnation())
        })
    }

    /// Counts misses, and quarantines what was missed (INDEX-R3).
    pub(crate) fn note_misses(&self, misses: &[Missed]) {
        if misses.is_empty() {
            return;
        }
        let mut replica = self.process_state().replica();
        for missed in misses {
            let (handle, fabric) = (missed.handle, self.member().fabric());
            // Looked at a moment ago: whatever the caches hold by now, the slot did say.
            let segment = self.areas().segment_of(handle);
            let read = segment.map(|segment| segment.cached(fabric, handle.slot()));
            replica.distrust(missed, read);
        }
        drop(replica);
        for Missed { handle, miss, .. } in misses {
            if miss.is_damage() {
                tracing::warn!(?handle, reason = miss.label(), "a block is damaged: {miss}");
            } else {
                tracing::debug!(?handle, reason = miss.label(), "a fetch missed: {miss}");
            }
        }
        self.count(|metrics| {
            for Missed { miss, .. } in misses {
                metrics.count_miss(*miss);
            }
        });
    }
}

/// The misses among `outcomes`.
fn misses_of<T>(
    names: impl Iterator<Item = (Handle, BlockKey)>,
    outcomes: &[Result<T, Miss>],
) -> Vec<Missed> {
    let miss = |((handle, key), outcome): ((Handle, BlockKey), &Result<T, Miss>)| {
        outcome.as_ref().err().map(|miss| Missed { handle, key, miss: *miss })
    };
    names.zip(outcomes).filter_map(miss).collect()
}

/// Whether the descriptor is that of the wanted block (READ-F1).
pub(crate) fn accept(descriptor: &Descriptor, wanted: &Wanted) -> Result<(), Miss> {
    if descriptor.key.index() != wanted.key.index() {
        return Err(Miss::WrongKey);
    }
    if descriptor.key != wanted.key {
        return Err(Miss::KeyCollision);
    }
    if descriptor.payload.bytes() != wanted.bytes {
        return Err(Miss::WrongLength);
    }
    Ok(())
}
