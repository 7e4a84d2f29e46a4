//! Descriptors: one line each, in the owner's segment, the only truth about a block.
//!
//! ```text
//! word 0   generation u32 | state u8 | flags u8 | owner u8 | process u8  the publication word
//! word 1-2 key, but its last 8 bytes
//! word 3   offset of the payload in the region, in bytes
//! word 4   length of the payload in bytes u32 | CRC-32C of the payload u32
//! word 5   the last 8 bytes of the key: model fingerprint, its high half xor 4 bytes of the hash
//! word 6   incarnation of the owner u32 | depth in the prefix u16 | tag of the namespace u16
//! word 7   seal: version u32 | CRC-32C u32, over the kind and the line's offset too
//! ```
//!
//! - **BLOCK-D1** A slot's generation grows by one each time the slot is taken for a block, and
//!   stays when the block goes: {owner, slot, generation} names one life of one block.
//! - **BLOCK-D2** A payload is reused only after every descriptor that named it says FREE,
//!   published, and its new descriptor says WRITING, published (EVICT-H2).
//! - **BLOCK-D3** Nothing of a descriptor is used before its seal, its state, its owner and the
//!   range of its payload were checked (MEM-M5).
//!
//! A tombstone (FREE) has flags: whether its block was evicted, and whether a search ends at it
//! (INDEX-S2).
//!
//! - **BLOCK-D4** Flags and state values that this version does not know make the line malformed: a
//!   miss, never a guess.

use bytemuck::{Pod, Zeroable};
use cxl_shm::fabric::{LineError, Record};
use cxl_shm::host::{PROCESSES_MAX, ProcessSlot};
use cxl_shm::layout::Layout;
use cxl_shm::units::{Extent, Incarnation, NODES_MAX, NodeId, PAGE_BYTES};

use crate::identity::{BlockKey, IndexKey, NamespaceTag};

const FREE: u8 = 1;
const WRITING: u8 = 2;
const READY: u8 = 3;
const EVICTING: u8 = 4;
const SPILLED: u8 = 5;

/// Of a tombstone: its block made room for others.
const EVICTED: u8 = 1;
/// Of a tombstone: a search that comes here has seen all that it could find (INDEX-S2).
const ENDS: u8 = 2;

const _: () = assert!(NODES_MAX <= 1 << 8 && PROCESSES_MAX <= 1 << 8, "they have 8 bits each");

/// A descriptor as it lies in its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct DescriptorLine {
    generation: u32,
    state: u8,
    flags: u8,
    owner: u8,
    process: u8,
    key: IndexKey,
    payload_offset: u64,
    payload_bytes: u32,
    checksum: u32,
    witness: u64,
    incarnation: u32,
    depth: u16,
    namespace: u16,
}

impl Record for DescriptorLine {
    const KIND: u32 = u32::from_le_bytes(*b"DESC");
}

const _: () = {
    assert!(std::mem::offset_of!(DescriptorLine, key) == 8);
    assert!(std::mem::offset_of!(DescriptorLine, payload_offset) == 24);
    assert!(std::mem::offset_of!(DescriptorLine, witness) == 40);
    assert!(std::mem::offset_of!(DescriptorLine, incarnation) == 48);
};

/// Names one life of one block: where its descriptor is, and which generation of it.
///
/// A handle is a hint. What it names may be gone by the time it is used, which is then a miss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle {
    owner: NodeId,
    slot: u32,
    generation: u32,
}

impl Handle {
    pub(crate) fn new(owner: NodeId, slot: u32, generation: u32) -> Self {
        Self { owner, slot, generation }
    }

    /// The node that owns the block.
    #[must_use]
    pub fn owner(&self) -> NodeId {
        self.owner
    }

    /// Index of the descriptor in the owner's segment.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// How many blocks the descriptor has described so far.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }
}

/// Where a block is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Its payload is being written; nobody may read it.
    Writing,
    /// Complete and readable.
    Ready,
    /// Still readable, but its owner considers removing it (EVICT-H2).
    Evicting,
    /// Its bytes are on a drive of its owner; the payload says how many, and no place.
    Spilled,
}

/// A descriptor of a block, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// Names this life of the block.
    pub handle: Handle,
    /// Where it is in its life.
    pub state: BlockState,
    /// What it is known by.
    pub key: BlockKey,
    /// Its bytes: inside one chunk, starting on a page.
    pub payload: Extent,
    /// CRC-32C of the payload; 0 while it is being written.
    pub checksum: u32,
    /// Incarnation of the owner that published it.
    pub incarnation: Incarnation,
    /// Blocks before it in its prefix, at most 65,535.
    pub depth: u16,
    /// The owner's process that wrote it.
    pub process: ProcessSlot,
    /// The namespace that it counts for.
    pub namespace: NamespaceTag,
}

impl Descriptor {
    /// Whether readers may use the payload (EVICT-H2).
    #[must_use]
    pub fn is_readable(&self) -> bool {
        matches!(self.state, BlockState::Ready | BlockState::Evicting)
    }
}

/// What a slot of a segment holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotContent {
    /// Nothing, ever: a key that hashes before it is not found after it.
    Blank,
    /// Nothing any more: a tombstone.
    Free {
        /// Generation of the last block.
        generation: u32,
        /// It made room for others, and was not removed for its own sake.
        evicted: bool,
        /// No key that hashes before it is found after it.
        ends_search: bool,
    },
    /// A block.
    Block(Descriptor),
}

/// Why a slot cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The line's seal does not fit: it is torn, damaged, or not a descriptor.
    #[error(transparent)]
    Torn(LineError),
    /// The seal fits, but what it seals cannot be.
    #[error("the descriptor names a state, an owner or a payload that this region does not have")]
    Malformed,
}

fn value_of(state: BlockState) -> u8 {
    match state {
        BlockState::Writing => WRITING,
        BlockState::Ready => READY,
        BlockState::Evicting => EVICTING,
        BlockState::Spilled => SPILLED,
    }
}

impl DescriptorLine {
    /// The line of a block.
    pub(crate) fn block(descriptor: &Descriptor) -> Self {
        let Descriptor { handle, payload, .. } = *descriptor;
        Self {
            generation: handle.generation,
            state: value_of(descriptor.state),
            flags: 0,
            owner: low_byte(handle.owner.0),
            process: low_byte(descriptor.process.0),
            key: descriptor.key.index(),
            payload_offset: payload.offset(),
            payload_bytes: u32::try_from(payload.bytes())
                .expect("payload slots are taken for blocks of at most 4 GiB"),
            checksum: descriptor.checksum,
            witness: descriptor.key.witness(),
            incarnation: descriptor.incarnation.0,
            depth: descriptor.depth,
            namespace: descriptor.namespace.0,
        }
    }

    /// The line of a slot whose last block had `generation`, and was `evicted` or removed.
    pub(crate) fn free(owner: NodeId, generation: u32, evicted: bool) -> Self {
        let flags = if evicted { EVICTED } else { 0 };
        Self { generation, state: FREE, flags, owner: low_byte(owner.0), ..Self::zeroed() }
    }

    /// The same line except for the state, if it says that the block stays or that it may leave.
    pub(crate) fn decide(&mut self, state: BlockState) {
        if matches!(self.state, READY | EVICTING) {
            self.state = value_of(state);
        }
    }

    /// The same tombstone, as one where searches end.
    pub(crate) fn ending(self) -> Self {
        Self { flags: self.flags | ENDS, ..self }
    }

    /// Checks the line, read from slot `slot` of the segment of `home` (BLOCK-D3).
    pub(crate) fn decode(
        &self,
        home: NodeId,
        slot: u32,
        layout: &Layout,
    ) -> Result<SlotContent, DescriptorError> {
        let known_flags = if self.state == FREE { EVICTED | ENDS } else { 0 };
        if u16::from(self.owner) != home.0 || self.flags & !known_flags != 0 {
            return Err(DescriptorError::Malformed);
        }
        let state = match self.state {
            FREE => {
                let [evicted, ends_search] = [EVICTED, ENDS].map(|flag| self.flags & flag != 0);
                let generation = self.generation;
                return Ok(SlotContent::Free { generation, evicted, ends_search });
            }
            WRITING => BlockState::Writing,
            READY => BlockState::Ready,
            EVICTING => BlockState::Evicting,
            SPILLED => BlockState::Spilled,
            _ => return Err(DescriptorError::Malformed),
        };
        let payload = Extent::new(self.payload_offset, u64::from(self.payload_bytes))
            .filter(|payload| payload.offset().is_multiple_of(PAGE_BYTES) && payload.bytes() > 0)
            .filter(|payload| match state {
                BlockState::Spilled => payload.offset() == 0,
                _ => layout.chunk_of(*payload).is_some(),
            })
            .ok_or(DescriptorError::Malformed)?;
        Ok(SlotContent::Block(Descriptor {
            handle: Handle::new(home, slot, self.generation),
            state,
            key: BlockKey::new(self.key, self.witness),
            payload,
            checksum: self.checksum,
            incarnation: Incarnation(self.incarnation),
            depth: self.depth,
            process: ProcessSlot(u16::from(self.process)),
            namespace: NamespaceTag(self.namespace),
        }))
    }
}

/// Of numbers that were checked to have no more.
#[expect(clippy::cast_possible_truncation, reason = "nodes and processes have 8 bits")]
fn low_byte(number: u16) -> u8 {
    number as u8
}

/// The generation of a slot's next block: never 0, which replicas have for a slot that they have
/// not heard of.
pub(crate) fn next_generation(last: u32) -> u32 {
    last.wrapping_add(1).max(1)
}

/// Whether generation `a` of a slot came after `b`. Right as long as fewer than two thousand
/// million blocks lie between them.
pub(crate) fn is_newer(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxl_shm::layout::Geometry;
    use proptest::prelude::*;

    fn layout() -> Layout {
        let geometry = Geometry {
            region_bytes: 4 << 20,
            nodes: 2,
            locks: 8,
            chunk_bytes: 256 << 10,
            area_lines: 64,
            host_words: 0,
        };
        Layout::new(geometry).unwrap()
    }

    fn ready() -> Descriptor {
        Descriptor {
            handle: Handle::new(NodeId(1), 5, 9),
            state: BlockState::Ready,
            key: BlockKey::new(IndexKey::from_words([3, 4]), 6),
            payload: Extent::new(layout().payload().offset() + 8192, 5000).unwrap(),
            checksum: 77,
            incarnation: Incarnation(2),
            depth: 3,
            process: ProcessSlot(255),
            namespace: NamespaceTag(0xabcd),
        }
    }

    fn decode(line: &DescriptorLine) -> Result<SlotContent, DescriptorError> {
        line.decode(NodeId(1), 5, &layout())
    }

    #[test]
    fn descriptors_survive_their_lines() {
        for state in [BlockState::Writing, BlockState::Ready, BlockState::Evicting] {
            let descriptor = Descriptor { state, ..ready() };
            let line = DescriptorLine::block(&descriptor);
            assert_eq!(decode(&line), Ok(SlotContent::Block(descriptor)));
        }
        let spilled = Descriptor {
            state: BlockState::Spilled,
            payload: Extent::new(0, 5000).unwrap(),
            ..ready()
        };
        assert!(!spilled.is_readable());
        assert_eq!(decode(&DescriptorLine::block(&spilled)), Ok(SlotContent::Block(spilled)));
        for evicted in [false, true] {
            let free = DescriptorLine::free(NodeId(1), 9, evicted);
            let content = |ends_search| SlotContent::Free { generation: 9, evicted, ends_search };
            assert_eq!(decode(&free), Ok(content(false)));
            assert_eq!(decode(&free.ending()), Ok(content(true)));
        }
    }

    #[test]
    fn what_cannot_be_is_malformed() {
        let line = DescriptorLine::block(&ready());
        let chunk_bytes = layout().geometry().chunk_bytes;
        let start = layout().payload().offset();
        let wrong = [
            DescriptorLine { state: 0, ..line },
            DescriptorLine { state: 6, ..line },
            DescriptorLine { state: 5, ..line },
            DescriptorLine { state: 1, flags: 4, ..line },
            DescriptorLine { flags: 1, ..line },
            DescriptorLine { owner: 0, ..line },
            DescriptorLine { payload_bytes: 0, ..line },
            DescriptorLine { payload_bytes: u32::MAX, ..line },
            DescriptorLine { payload_offset: line.payload_offset + 64, ..line },
            DescriptorLine { payload_offset: 0, ..line },
            DescriptorLine { payload_offset: u64::MAX - 4095, ..line },
            // Crosses from one chunk into the next.
            DescriptorLine { payload_offset: start + chunk_bytes - 4096, ..line },
        ];
        for line in wrong {
            assert_eq!(decode(&line), Err(DescriptorError::Malformed), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_names_anything_outside(bytes in prop::array::uniform32(0u8..), tail in prop::array::uniform24(0u8..), state in 0u8..7, near: bool) {
            let mut all = [0; 56];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&tail);
            let mut line: DescriptorLine = bytemuck::pod_read_unaligned(&all);
            line.state = state;
            line.flags = 0;
            line.owner = 1;
            if near {
                line.payload_offset = (line.payload_offset % (8 << 20)) & !4095;
                line.payload_bytes %= 512 << 10;
            }
            match decode(&line) {
                Ok(SlotContent::Block(block)) if block.state == BlockState::Spilled => {
                    prop_assert_eq!(block.payload.offset(), 0);
                    prop_assert_eq!(DescriptorLine::block(&block), line);
                }
                Ok(SlotContent::Block(block)) => {
                    let chunk = layout().chunk_of(block.payload).unwrap();
                    prop_assert!(layout().chunk(chunk).contains(block.payload));
                    prop_assert_eq!(DescriptorLine::block(&block), line);
                }
                Ok(SlotContent::Free { .. }) => prop_assert_eq!(line.state, FREE),
                Ok(SlotContent::Blank) => prop_assert!(false, "a sealed line is not blank"),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn generations_wrap() {
        assert!(is_newer(2, 1) && !is_newer(1, 2) && !is_newer(1, 1));
        assert!(is_newer(next_generation(u32::MAX), u32::MAX));
        assert_eq!(next_generation(u32::MAX), 1, "0 is no block's");
    }
}
