//! What can be put right while no process uses a region.

use std::fmt;

use cxl_shm::fabric::{Fabric, LineError};
use cxl_shm::layout::NodeState;
use cxl_shm::units::NodeId;

use super::{Audit, Fault};
use crate::format::{DescriptorLine, SlotContent, halves, used_word};

/// Something that a repair does. A repair says so before it does anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Repair {
    /// Say anew how many tables of a segment are in use, as its slots show.
    CountTables {
        /// The node.
        node: NodeId,
    },
    /// Remove a block: its descriptor becomes a tombstone.
    RemoveBlock {
        /// The node.
        node: NodeId,
        /// The slot of its segment.
        slot: u32,
    },
    /// Move the head of a log on by more than a ring, so that no reader reads its entries (INDEX-G3).
    SkipLog {
        /// The node.
        node: NodeId,
        /// Whether it is the log of the drives.
        of_drives: bool,
    },
    /// Blank an entry of a drive directory. The agent of the node announces its blocks anew.
    BlankDriveEntry {
        /// The node.
        node: NodeId,
        /// The slot of its directory.
        slot: u32,
    },
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveBlock { node, slot } => {
                write!(f, "remove the block of node {node}, descriptor {slot}")
            }
            Self::SkipLog { node, of_drives } => {
                let which = if *of_drives { "drive log" } else { "log" };
                write!(f, "move the head of the {which} of node {node} past all entries")
            }
            Self::CountTables { node } => write!(f, "count the tables in use of node {node} anew"),
            Self::BlankDriveEntry { node, slot } => {
                write!(f, "blank entry {slot} of the drive directory of node {node}")
            }
        }
    }
}

/// Why nothing was repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// A node takes part.
    #[error(
        "node {node} takes part: stop its processes. Where they are gone already, start a lock \
         manager, which declares the node dead and recovers it, and stop it again"
    )]
    Member {
        /// The node.
        node: NodeId,
    },
    /// Whether a node takes part cannot be read.
    #[error(
        "the state of node {node} cannot be read: a process of the node may write at any time. Stop \
         all hosts, and format the region again"
    )]
    Unreadable {
        /// The node.
        node: NodeId,
    },
}

impl Repair {
    /// What would put `fault` right, each once and in order.
    #[must_use]
    pub fn of(faults: &[Fault]) -> Vec<Self> {
        let mut repairs: Vec<_> = faults.iter().flat_map(Self::of_one).collect();
        repairs.sort_unstable();
        repairs.dedup();
        repairs
    }

    fn of_one(fault: &Fault) -> Vec<Self> {
        match *fault {
            Fault::DescriptorDamaged { node, slot, .. }
            | Fault::BlockMisplaced { node, slot, .. }
            | Fault::BlockHidden { node, slot, .. }
            | Fault::PayloadDamaged { node, slot, .. } => vec![Self::RemoveBlock { node, slot }],
            Fault::BlocksOverlap { node, slots, .. } => {
                slots.map(|slot| Self::RemoveBlock { node, slot }).to_vec()
            }
            Fault::LogEntryDamaged { node, of_drives, .. } => {
                vec![Self::SkipLog { node, of_drives }]
            }
            Fault::TablesWordDamaged { node, .. } => vec![Self::CountTables { node }],
            Fault::DriveEntryDamaged { node, slot, .. } => {
                vec![Self::BlankDriveEntry { node, slot }]
            }
            _ => Vec::new(),
        }
    }
}

impl<F: Fabric> Audit<'_, F> {
    /// Whether a repair may write (AUDIT-F1): no node takes part. The caller knows besides that no
    /// process of this host has the region mapped for use, and that no heartbeat advances.
    ///
    /// # Errors
    /// [`RepairError`]: what to do.
    pub fn may_repair(&self) -> Result<(), RepairError> {
        for node in self.layout.nodes() {
            let line = self.layout.node_line(node);
            self.read_anew(line.range());
            match line.cached(self.fabric).map(|line| line.state()) {
                Err(LineError::Blank { .. }) => {}
                Ok(Some(NodeState::Left | NodeState::Dead)) => {}
                Ok(Some(NodeState::Joining | NodeState::Joined)) => {
                    return Err(RepairError::Member { node });
                }
                Ok(None) | Err(LineError::Corrupt { .. }) => {
                    return Err(RepairError::Unreadable { node });
                }
            }
        }
        Ok(())
    }

    /// Carries out `repairs` (AUDIT-F4).
    ///
    /// # Errors
    /// [`RepairError`]; nothing is changed then.
    pub fn repair(&self, repairs: &[Repair]) -> Result<(), RepairError> {
        self.may_repair()?;
        for repair in repairs {
            match *repair {
                Repair::RemoveBlock { node, slot } => self.remove_block(node, slot),
                Repair::SkipLog { node, of_drives } => {
                    let Some((head, log)) = self.log_of(node, of_drives) else { continue };
                    self.read_anew(head.range());
                    let skipped = head.cached(self.fabric).wrapping_add(log.entries() + 1);
                    self.write_word(head, skipped);
                }
                Repair::CountTables { node } => self.count_tables(node),
                Repair::BlankDriveEntry { node, slot } => {
                    let Some(drives) = self.areas.drives() else { continue };
                    let drives = drives.of(node);
                    self.read_anew(drives.entries(slot & !1, 2));
                    for word in drives.entry_words(slot) {
                        self.write_word(word, 0);
                    }
                }
            }
        }
        Ok(())
    }

    fn remove_block(&self, node: NodeId, slot: u32) {
        let (segment, own) = (self.areas.segment(node), self.layout.area(node).claim());
        self.read_anew(segment.range(slot));
        // Whatever is damaged: the next block of the slot is to have another generation, and no reader
        // has seen this one since its host began anew.
        let (generation, _) = halves(self.fabric.read_line(segment.range(slot).start())[0]);
        let free = DescriptorLine::free(node, generation, false);
        // MEM-M1: no node takes part, and the formatter's mark keeps joining hosts away.
        self.areas.own_segment(node, own).line(slot).publish(self.fabric, &free);
    }

    fn count_tables(&self, node: NodeId) {
        let (segment, tables) = (self.areas.segment(node), self.areas.geometry().tables());
        let mut last = 0;
        for slot in 0..segment.slots() {
            self.read_anew(segment.range(slot));
            if segment.cached(self.fabric, slot) != Ok(SlotContent::Blank) {
                last = slot;
            }
        }
        let word = self.areas.tables_word(node);
        self.read_anew(word.range());
        self.write_word(word, used_word(tables.index_of(last) + 1));
    }

    /// MEM-M1: as in [`remove_block`](Self::remove_block).
    fn write_word(&self, word: cxl_shm::fabric::PeerWord, value: u64) {
        word.claim().publish(self.fabric, value);
    }
}
