//! What an audit finds: a name, where it is, what it means, and what to do.

use std::fmt;

use cxl_shm::layout::LineKind;
use cxl_shm::units::{ChunkId, LockId, NodeId};

/// Something in a region that is not as it should be.
///
/// `at` is an offset from the start of the region, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A sealed line of the region's own metadata does not read.
    MetadataDamaged {
        /// What the line holds.
        kind: LineKind,
        /// The node whose line it is.
        node: Option<NodeId>,
        /// Which of these lines it is.
        index: u64,
        /// Where.
        at: u64,
    },
    /// One of the two lines of a record that is written in turn does not read. The other one does.
    CopyDamaged {
        /// What the line holds.
        kind: LineKind,
        /// The node whose line it is.
        node: Option<NodeId>,
        /// The node that the record is about.
        index: u64,
        /// Where.
        at: u64,
    },
    /// The entry of a chunk does not read, or says nothing that this version knows.
    ChunkUnreadable {
        /// The chunk.
        chunk: ChunkId,
        /// Where its entry is.
        at: u64,
    },
    /// The entry of a chunk names an owner that cannot be.
    ChunkOwnerImpossible {
        /// The chunk.
        chunk: ChunkId,
        /// The node that the entry names.
        owner: NodeId,
        /// Where its entry is.
        at: u64,
    },
    /// Memory of a chunk failed.
    ChunkFailed {
        /// The chunk.
        chunk: ChunkId,
        /// Where its entry is.
        at: u64,
    },
    /// A node without processes has an update open.
    UpdateOpen {
        /// The node.
        node: NodeId,
        /// The lock under which the update was made.
        lock: LockId,
        /// Where its redo record is.
        at: u64,
    },
    /// A node takes part, as its line says, and no process of it is there.
    NodeAbandoned {
        /// The node.
        node: NodeId,
        /// Where its line is.
        at: u64,
    },
    /// The word that says how many tables of a segment are in use is damaged.
    TablesWordDamaged {
        /// The node.
        node: NodeId,
        /// Where.
        at: u64,
    },
    /// A descriptor does not read, or names what cannot be.
    DescriptorDamaged {
        /// The node.
        node: NodeId,
        /// The slot of its segment.
        slot: u32,
        /// Where.
        at: u64,
        /// Whether the seal does not fit. Otherwise it seals what cannot be.
        torn: bool,
    },
    /// The payload of a block is in no slot of a chunk that its node owns.
    BlockMisplaced {
        /// The node.
        node: NodeId,
        /// The slot of its segment.
        slot: u32,
        /// Where the descriptor is.
        at: u64,
        /// Where the payload is.
        payload: u64,
    },
    /// Two blocks have the same payload.
    BlocksOverlap {
        /// The node.
        node: NodeId,
        /// The slots of its segment.
        slots: [u32; 2],
        /// Where the second descriptor is.
        at: u64,
    },
    /// No search finds the block, because one ends before it.
    BlockHidden {
        /// The node.
        node: NodeId,
        /// The slot of its segment.
        slot: u32,
        /// Where the descriptor is.
        at: u64,
    },
    /// A node without processes has a block that is being written.
    BlockUnfinished {
        /// The node.
        node: NodeId,
        /// The slot of its segment.
        slot: u32,
        /// Where the descriptor is.
        at: u64,
    },
    /// An entry of a publication log does not read.
    LogEntryDamaged {
        /// The node.
        node: NodeId,
        /// Number of the entry.
        number: u64,
        /// Whether it is the log of the drives.
        of_drives: bool,
        /// Where.
        at: u64,
    },
    /// A node without processes says that it holds blocks.
    HoldsLeft {
        /// The node.
        node: NodeId,
        /// How many words say so.
        words: u64,
        /// Where the first one is.
        at: u64,
    },
    /// A directive does not read.
    DirectiveDamaged {
        /// The node that asked.
        node: NodeId,
        /// Number of the directive.
        number: u64,
        /// Where.
        at: u64,
    },
    /// A node has answered a directive, or a request, that there never was.
    AnswerImpossible {
        /// The node that answered.
        node: NodeId,
        /// The node that asked.
        asking: NodeId,
        /// Where.
        at: u64,
    },
    /// What a node says of itself does not read.
    SummaryDamaged {
        /// The node.
        node: NodeId,
        /// Where.
        at: u64,
    },
    /// What the agent of a node says of its drives does not read.
    AgentDamaged {
        /// The node.
        node: NodeId,
        /// Where.
        at: u64,
    },
    /// An entry of a drive directory does not read.
    DriveEntryDamaged {
        /// The node.
        node: NodeId,
        /// The slot of its directory.
        slot: u32,
        /// Where.
        at: u64,
    },
    /// A request to restore a block from a drive does not read.
    RequestDamaged {
        /// The node that asked.
        node: NodeId,
        /// The node that was asked.
        asked: NodeId,
        /// Number of the request.
        number: u64,
        /// Where.
        at: u64,
    },
    /// The bytes of a block are not those that its checksum was computed of.
    PayloadDamaged {
        /// The node.
        node: NodeId,
        /// The slot of its segment.
        slot: u32,
        /// Where the payload is.
        at: u64,
        /// Its length in bytes.
        bytes: u64,
        /// The checksum in the descriptor.
        expected: u32,
        /// The checksum of the bytes.
        found: u32,
    },
    /// The device failed where the payload of a block is.
    PayloadFailed {
        /// The node.
        node: NodeId,
        /// The slot of its segment.
        slot: u32,
        /// Where the payload is.
        at: u64,
    },
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Gravity {
    /// Bytes are not what was written.
    Damage,
    /// Something was left, which the next life of the node or a recovery ends.
    Left,
}

impl Gravity {
    /// In a word, for JSON.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Damage => "damage",
            Self::Left => "left",
        }
    }
}

const REPAIR: &str = "stop all processes of the region, then `rackline fsck --repair`";
const NEXT_WRITE: &str = "nothing: the next write of the line replaces it";
const FORMAT: &str = "plan a stop of all hosts, and format the region again";
const JOIN: &str = "start a process of the node, which takes it up";

impl Fault {
    /// The name, for people and JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::MetadataDamaged { .. } => "metadata_damaged",
            Self::CopyDamaged { .. } => "copy_damaged",
            Self::ChunkUnreadable { .. } => "chunk_unreadable",
            Self::ChunkOwnerImpossible { .. } => "chunk_owner_impossible",
            Self::ChunkFailed { .. } => "chunk_failed",
            Self::UpdateOpen { .. } => "update_open",
            Self::NodeAbandoned { .. } => "node_abandoned",
            Self::TablesWordDamaged { .. } => "tables_word_damaged",
            Self::DescriptorDamaged { .. } => "descriptor_damaged",
            Self::BlockMisplaced { .. } => "block_misplaced",
            Self::BlocksOverlap { .. } => "blocks_overlap",
            Self::BlockHidden { .. } => "block_hidden",
            Self::BlockUnfinished { .. } => "block_unfinished",
            Self::LogEntryDamaged { .. } => "log_entry_damaged",
            Self::HoldsLeft { .. } => "holds_left",
            Self::DirectiveDamaged { .. } => "directive_damaged",
            Self::AnswerImpossible { .. } => "answer_impossible",
            Self::SummaryDamaged { .. } => "summary_damaged",
            Self::AgentDamaged { .. } => "agent_damaged",
            Self::DriveEntryDamaged { .. } => "drive_entry_damaged",
            Self::RequestDamaged { .. } => "request_damaged",
            Self::PayloadDamaged { .. } => "payload_damaged",
            Self::PayloadFailed { .. } => "payload_failed",
        }
    }

    /// How bad it is.
    #[must_use]
    pub fn gravity(&self) -> Gravity {
        match self {
            Self::CopyDamaged { .. }
            | Self::ChunkFailed { .. }
            | Self::UpdateOpen { .. }
            | Self::NodeAbandoned { .. }
            | Self::BlockUnfinished { .. }
            | Self::HoldsLeft { .. } => Gravity::Left,
            _ => Gravity::Damage,
        }
    }

    /// Where it is: from the start of the region, in bytes.
    #[must_use]
    pub fn at(&self) -> u64 {
        match *self {
            Self::MetadataDamaged { at, .. }
            | Self::CopyDamaged { at, .. }
            | Self::ChunkUnreadable { at, .. }
            | Self::ChunkOwnerImpossible { at, .. }
            | Self::ChunkFailed { at, .. }
            | Self::UpdateOpen { at, .. }
            | Self::NodeAbandoned { at, .. }
            | Self::TablesWordDamaged { at, .. }
            | Self::DescriptorDamaged { at, .. }
            | Self::BlockMisplaced { at, .. }
            | Self::BlocksOverlap { at, .. }
            | Self::BlockHidden { at, .. }
            | Self::BlockUnfinished { at, .. }
            | Self::LogEntryDamaged { at, .. }
            | Self::HoldsLeft { at, .. }
            | Self::DirectiveDamaged { at, .. }
            | Self::AnswerImpossible { at, .. }
            | Self::SummaryDamaged { at, .. }
            | Self::AgentDamaged { at, .. }
            | Self::DriveEntryDamaged { at, .. }
            | Self::RequestDamaged { at, .. }
            | Self::PayloadDamaged { at, .. }
            | Self::PayloadFailed { at, .. } => at,
        }
    }

    /// What follows from it.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        match self {
            Self::MetadataDamaged { .. } => {
                "memory is damaged, or a host died while it wrote the line; readers ignore the line"
            }
            Self::CopyDamaged { .. } => {
                "a host died while it wrote this copy, or memory is damaged; readers use the other copy"
            }
            Self::ChunkUnreadable { .. } | Self::ChunkOwnerImpossible { .. } => {
                "the chunk is out of use, and its blocks may be lost"
            }
            Self::ChunkFailed { .. } => "the device reported errors in this chunk",
            Self::UpdateOpen { .. } => "the node ended during an update; its recovery completes it",
            Self::NodeAbandoned { .. } => {
                "the processes of the node ended without leaving; its locks and chunks stay taken"
            }
            Self::TablesWordDamaged { .. } => "every scan reads the whole segment of the node",
            Self::DescriptorDamaged { .. } => "its block is a miss, and its payload may stay taken",
            Self::BlockMisplaced { .. } => {
                "other data may be written over the block; a reader finds that by the checksum"
            }
            Self::BlocksOverlap { .. } => "at most one of the blocks has its bytes",
            Self::BlockHidden { .. } => "searches of the segment miss the block",
            Self::BlockUnfinished { .. } => "its payload stays taken until a process takes it up",
            Self::LogEntryDamaged { .. } => "each reader scans the whole segment once",
            Self::HoldsLeft { .. } => "owners of blocks ignore the holds of a node that is gone",
            Self::DirectiveDamaged { .. } => "no node carries it out, or a later one of this node",
            Self::AnswerImpossible { .. } => "later requests to this node count as answered",
            Self::SummaryDamaged { .. } => "`rackline status` shows no figures of the node",
            Self::AgentDamaged { .. } => "other hosts do not know the state of its drives",
            Self::DriveEntryDamaged { .. } => "other hosts do not find the block on the drive",
            Self::RequestDamaged { .. } => "the request is answered as damaged: a miss",
            Self::PayloadDamaged { .. } => "a fetch of the block is a miss",
            Self::PayloadFailed { .. } => {
                "a fetch of the block is a miss, and its chunk leaves the pool"
            }
        }
    }

    /// What to do.
    #[must_use]
    pub fn to_do(&self) -> &'static str {
        match self {
            Self::MetadataDamaged { .. } | Self::CopyDamaged { .. } => NEXT_WRITE,
            Self::ChunkUnreadable { .. } | Self::ChunkOwnerImpossible { .. } => FORMAT,
            Self::ChunkFailed { .. } | Self::PayloadFailed { .. } => {
                "look for the cause: `dmesg`, `cxl list --media-errors`"
            }
            Self::UpdateOpen { .. } | Self::NodeAbandoned { .. } => {
                "start a lock manager, which recovers the node, or a process of the node"
            }
            Self::BlockUnfinished { .. } => JOIN,
            Self::HoldsLeft { .. } => "nothing: they count for nobody",
            Self::DirectiveDamaged { .. } => {
                "ask again from that node: `rackline clear`, `rackline pin`"
            }
            Self::AnswerImpossible { .. } => FORMAT,
            Self::SummaryDamaged { .. } | Self::AgentDamaged { .. } => NEXT_WRITE,
            Self::RequestDamaged { .. } => NEXT_WRITE,
            Self::TablesWordDamaged { .. }
            | Self::DescriptorDamaged { .. }
            | Self::BlockMisplaced { .. }
            | Self::BlocksOverlap { .. }
            | Self::BlockHidden { .. }
            | Self::LogEntryDamaged { .. }
            | Self::DriveEntryDamaged { .. }
            | Self::PayloadDamaged { .. } => REPAIR,
        }
    }
}

/// What it is and where, in words.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MetadataDamaged { kind, node, index, .. }
            | Self::CopyDamaged { kind, node, index, .. } => {
                write!(f, "{}", kind.in_words())?;
                if let Some(node) = node {
                    write!(f, ", node {node}")?;
                }
                write!(f, ", number {index}")
            }
            Self::ChunkUnreadable { chunk, .. } | Self::ChunkFailed { chunk, .. } => {
                write!(f, "chunk {chunk}")
            }
            Self::ChunkOwnerImpossible { chunk, owner, .. } => {
                write!(f, "chunk {chunk}, owner {owner}")
            }
            Self::UpdateOpen { node, lock, .. } => write!(f, "node {node}, lock {lock}"),
            Self::DescriptorDamaged { node, slot, torn, .. } => {
                let why = if *torn { "the seal does not fit" } else { "it names what cannot be" };
                write!(f, "node {node}, descriptor {slot}: {why}")
            }
            Self::BlockMisplaced { node, slot, payload, .. } => {
                write!(f, "node {node}, descriptor {slot}, payload at {payload:#x}")
            }
            Self::BlocksOverlap { node, slots: [first, second], .. } => {
                write!(f, "node {node}, descriptors {first} and {second}")
            }
            Self::BlockHidden { node, slot, .. }
            | Self::BlockUnfinished { node, slot, .. }
            | Self::PayloadFailed { node, slot, .. } => write!(f, "node {node}, descriptor {slot}"),
            Self::LogEntryDamaged { node, number, of_drives, .. } => {
                let which = if *of_drives { "drive log" } else { "log" };
                write!(f, "node {node}, {which} entry {number}")
            }
            Self::HoldsLeft { node, words, .. } => write!(f, "node {node}, {words} words"),
            Self::DirectiveDamaged { node, number, .. } => {
                write!(f, "node {node}, directive {number}")
            }
            Self::AnswerImpossible { node, asking, .. } => {
                write!(f, "node {node}, answers to node {asking}")
            }
            Self::NodeAbandoned { node, .. }
            | Self::TablesWordDamaged { node, .. }
            | Self::SummaryDamaged { node, .. }
            | Self::AgentDamaged { node, .. } => write!(f, "node {node}"),
            Self::DriveEntryDamaged { node, slot, .. } => {
                write!(f, "node {node}, entry {slot} of the drive directory")
            }
            Self::RequestDamaged { node, asked, number, .. } => {
                write!(f, "node {node}, request {number} to node {asked}")
            }
            Self::PayloadDamaged { node, slot, bytes, expected, found, .. } => write!(
                f,
                "node {node}, descriptor {slot}, {bytes} bytes: CRC {found:#010x}, expected \
                 {expected:#010x}"
            ),
        }
    }
}
