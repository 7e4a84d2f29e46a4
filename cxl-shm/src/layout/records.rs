//! The records that fill one line each. All little-endian; no field is trusted before its line's
//! seal was checked, and no state before it was one of those named here.

use bytemuck::{Pod, Zeroable};
use static_assertions::assert_eq_size;

use super::failed_pages::FailedPages;
use crate::fabric::Record;
use crate::units::{Incarnation, NodeId};

/// What a node says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NodeLine {
    state: u32,
    incarnation: u32,
    boot_id: [u64; 2],
    machine_id: [u64; 2],
    reserved: [u64; 2],
}

impl Record for NodeLine {
    const KIND: u32 = u32::from_le_bytes(*b"NODE");
}

/// Whether a node takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// Has published that it comes, and looks which manager to obey.
    Joining,
    /// Takes part.
    Joined,
    /// Has left in order: it holds nothing.
    Left,
    /// Was declared dead, fenced and recovered: it holds nothing. The recoverer writes this last:
    /// fencing passed the lines of the node to it (MEM-M1).
    Dead,
}

impl NodeState {
    /// Whether the slot holds nothing and may be joined by any host.
    #[must_use]
    pub fn is_vacant(self) -> bool {
        matches!(self, Self::Left | Self::Dead)
    }
}

impl NodeLine {
    /// A node in `state`.
    #[must_use]
    pub fn new(
        state: NodeState,
        incarnation: Incarnation,
        boot_id: [u64; 2],
        machine_id: [u64; 2],
    ) -> Self {
        let state = match state {
            NodeState::Joining => 1,
            NodeState::Joined => 2,
            NodeState::Left => 3,
            NodeState::Dead => 4,
        };
        Self { state, incarnation: incarnation.0, boot_id, machine_id, reserved: [0; 2] }
    }

    /// The same node in another state.
    #[must_use]
    pub fn with_state(&self, state: NodeState) -> Self {
        Self::new(state, self.incarnation(), self.boot_id, self.machine_id)
    }

    /// The installation of the host: the same over reboots. Zeros when it has none.
    #[must_use]
    pub fn machine_id(&self) -> [u64; 2] {
        self.machine_id
    }

    /// The state; `None` when it is none that this version knows.
    #[must_use]
    pub fn state(&self) -> Option<NodeState> {
        match self.state {
            1 => Some(NodeState::Joining),
            2 => Some(NodeState::Joined),
            3 => Some(NodeState::Left),
            4 => Some(NodeState::Dead),
            _ => None,
        }
    }

    /// State and incarnation, as they stand in the region: one word, which never tears.
    pub(crate) fn first_word(&self) -> u64 {
        u64::from(self.incarnation) << 32 | u64::from(self.state)
    }

    /// How many times the slot was joined.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }

    /// The kernel's id of the host's present boot: tells two hosts with one node number apart.
    #[must_use]
    pub fn boot_id(&self) -> [u64; 2] {
        self.boot_id
    }

    /// The machine it is.
    #[must_use]
    pub fn machine(&self) -> Machine {
        Machine { boot_id: self.boot_id, machine_id: self.machine_id }
    }
}

/// Which machine, and which boot of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Machine {
    /// The kernel's id of the boot.
    pub boot_id: [u64; 2],
    /// The installation's id: the same over reboots. Zeros when it has none.
    pub machine_id: [u64; 2],
}

/// Name of a node's host, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct HostName {
    bytes: [u8; 56],
}

impl Record for HostName {
    const KIND: u32 = u32::from_le_bytes(*b"HOST");
}

impl HostName {
    /// The first 56 bytes of `name`, cut at a character.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 56];
        let cut = name.floor_char_boundary(bytes.len());
        bytes[..cut].copy_from_slice(&name.as_bytes()[..cut]);
        Self { bytes }
    }
}

impl std::fmt::Display for HostName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = String::from_utf8_lossy(&self.bytes);
        for c in name.trim_end_matches('\0').chars() {
            // Another host may have written anything: nothing that could drive a terminal.
            write!(f, "{}", if c.is_control() { '?' } else { c })?;
        }
        Ok(())
    }
}

/// A host that comes for a node slot, or has come: what its join mark has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct JoinMarkHost {
    boot_id: [u64; 2],
    machine_id: [u64; 2],
    tier_device: u64,
    reserved: [u64; 2],
}

impl Record for JoinMarkHost {
    const KIND: u32 = u32::from_le_bytes(*b"JOIN");
}

impl JoinMarkHost {
    pub(crate) fn new(boot_id: [u64; 2], machine_id: [u64; 2], tier_device: u64) -> Self {
        Self { boot_id, machine_id, tier_device, reserved: [0; 2] }
    }

    pub(crate) fn machine(&self) -> Machine {
        Machine { boot_id: self.boot_id, machine_id: self.machine_id }
    }

    /// All of it, for a name of fewer bits.
    pub(crate) fn words(&self) -> [u64; 5] {
        let [boot, machine] = [self.boot_id, self.machine_id];
        [boot[0], boot[1], machine[0], machine[1], self.tier_device]
    }
}

/// The claim of a lock manager on a node. One word: were it a record, a manager that died while
/// it wrote would leave it unreadable, and its term could be claimed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagerClaim {
    /// The term it claimed; 0 is none.
    pub term: u64,
    /// It has not said that it stopped.
    pub serving: bool,
}

impl ManagerClaim {
    /// From its word; `None` when no manager ever ran there.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        (word >> 1 != 0).then_some(Self { term: word >> 1, serving: word & 1 == 1 })
    }

    /// As a word.
    #[must_use]
    pub fn word(self) -> u64 {
        self.term << 1 | u64::from(self.serving)
    }
}

/// Which life of a node slot a process has come for that found the one before it gone. One word
/// that checks itself: a life that nobody came for would be declared dead, with all before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Nobody has come so yet.
    Nobody,
    /// Of this life, the last one.
    Life(Incarnation),
    /// The word is damaged: a host may have arrived.
    Damaged,
}

impl Arrival {
    /// From its word.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart into its fields")]
    pub fn from_word(word: u64) -> Self {
        let life = Self::Life(Incarnation(word as u32));
        match word {
            0 => Self::Nobody,
            word if life.word() == word => life,
            _ => Self::Damaged,
        }
    }

    /// As a word.
    #[must_use]
    pub fn word(self) -> u64 {
        match self {
            Self::Nobody => 0,
            Self::Life(life) => u64::from(!life.0) << 32 | u64::from(life.0),
            Self::Damaged => u64::MAX,
        }
    }
}

/// A line of the chunk table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ChunkEntry {
    words: [u64; 7],
}

impl Record for ChunkEntry {
    const KIND: u32 = u32::from_le_bytes(*b"CHNK");
}

/// Whose a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkState {
    /// Nobody's.
    Free,
    /// Nobody's, and out of use: memory of it failed (FAULT-C2).
    Failed,
    /// A node's, taken in one of its incarnations.
    Owned {
        /// The owner.
        owner: NodeId,
        /// Its incarnation when it took the chunk.
        incarnation: Incarnation,
        /// What the layer above uses it for; opaque here.
        purpose: u64,
    },
}

impl ChunkEntry {
    /// An entry in `state`.
    #[must_use]
    pub fn new(state: ChunkState) -> Self {
        let mut words = [0; 7];
        match state {
            ChunkState::Free => words[0] = 1,
            ChunkState::Failed => {
                words[0] = 1;
                return Self { words }.with_failed(Some(FailedPages::ALL));
            }
            ChunkState::Owned { owner, incarnation, purpose } => {
                words[0] = 2;
                words[1] = u64::from(owner.0) | u64::from(incarnation.0) << 32;
                words[2] = purpose;
            }
        }
        Self { words }
    }

    /// The state; `None` when it is none that this version knows. The owner is not checked to be
    /// a node of the region.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart into their fields")]
    pub fn state(&self) -> Option<ChunkState> {
        match self.words[0] {
            1 if self.failed().is_some() => Some(ChunkState::Failed),
            1 => Some(ChunkState::Free),
            2 => Some(ChunkState::Owned {
                owner: NodeId(self.words[1] as u16),
                incarnation: Incarnation((self.words[1] >> 32) as u32),
                purpose: self.words[2],
            }),
            _ => None,
        }
    }
}

impl ChunkEntry {
    /// The pages whose memory failed, if any.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart into its fields")]
    pub fn failed(&self) -> Option<FailedPages> {
        let (first, pages) = ((self.words[3] >> 32) as u32, self.words[3] as u32);
        (pages > 0).then_some(FailedPages { first, pages })
    }

    /// The same entry, with `failed` beside what it notes already: a note is never dropped (FAULT-C1).
    #[must_use]
    pub fn with_failed(mut self, failed: Option<FailedPages>) -> Self {
        if let Some(failed) = failed {
            let all = self.failed().map_or(failed, |noted| noted.hull(failed));
            self.words[3] = u64::from(all.first) << 32 | u64::from(all.pages);
        }
        self
    }
}

// A record fills its line except for the seal.
assert_eq_size!(NodeLine, [u8; 56]);
assert_eq_size!(HostName, [u8; 56]);
assert_eq_size!(JoinMarkHost, [u8; 56]);
assert_eq_size!(ChunkEntry, [u8; 56]);
