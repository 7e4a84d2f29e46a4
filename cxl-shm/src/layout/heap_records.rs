//! The first line of a chunk that belongs to a heap.

use bytemuck::{Pod, Zeroable};
use static_assertions::assert_eq_size;

use crate::fabric::{PeerLine, Record};
use crate::units::{Extent, Incarnation, LineRange, NodeId};

/// Whose heap has built the chunk: a host finds here, through its own caches, whether what the
/// chunk's lines say of pages and slots is its own, and others find the life that an object of the
/// chunk is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct HeapHeader {
    built: u32,
    node: u32,
    incarnation: u32,
    reserved: [u32; 11],
}

impl Record for HeapHeader {
    const KIND: u32 = u32::from_le_bytes(*b"HEAP");
}

impl HeapHeader {
    /// Built by `node` in one of its incarnations.
    #[must_use]
    pub fn built_by(node: NodeId, incarnation: Incarnation) -> Self {
        let node = u32::from(node.0);
        Self { built: 1, node, incarnation: incarnation.0, ..Self::zeroed() }
    }

    /// The node that has built it and in which of its incarnations; `None` when nobody has.
    #[must_use]
    pub fn builder(&self) -> Option<(NodeId, Incarnation)> {
        let node = u16::try_from(self.node).ok().filter(|_| self.built == 1)?;
        Some((NodeId(node), Incarnation(self.incarnation)))
    }

    /// Given up by `node` in one of its incarnations, which has no object there any more and is about
    /// to give the chunk back: it does not build it again before it has the lock of the chunk table.
    #[must_use]
    pub fn given_up_by(node: NodeId, incarnation: Incarnation) -> Self {
        Self { built: 2, ..Self::built_by(node, incarnation) }
    }

    /// Built by nobody.
    #[must_use]
    pub fn unbuilt() -> Self {
        Self::zeroed()
    }
}

assert_eq_size!(HeapHeader, [u8; 56]);

/// "OBJ" in the upper half of a chunk's purpose word: what it is to the chunk table.
pub const HEAP_PURPOSE: u64 = (u32::from_le_bytes(*b"OBJ\0") as u64) << 32;

#[doc(hidden)]
/// The first line of a chunk of a heap.
pub fn header(chunk: Extent) -> PeerLine<HeapHeader> {
    PeerLine::new(LineRange::covering(chunk).start())
}
