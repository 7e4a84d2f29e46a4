//! Which line of a node's area is which, and its fields: for tools that show lines to people.

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, LineField, Superblock, WORD_FIELDS};
use cxl_shm::units::{LINE_WORDS, NodeId};

use super::area::AreaPart;
use super::geometry::GeometryError;
use super::inspect::areas_of;
use super::log::ENTRIES_A_LINE;

/// A line of a node's area, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AreaLine {
    /// What it holds.
    pub what: String,
    /// Its fields, without a seal.
    pub fields: &'static [LineField],
    /// Why it does not read; `None` when it reads, or every value is one.
    pub fault: Option<String>,
}

const fn field(name: &'static str, at: u8, bytes: u8) -> LineField {
    LineField::new(name, at, bytes)
}

const HEADS: &[LineField] = &[
    field("log_head", 0, 8),
    field("tables_in_use", 8, 8),
    field("directives", 16, 8),
    field("last_lost_clear", 24, 8),
    field("last_lost_directive", 32, 8),
];
const LOG: &[LineField] = &[
    field("key", 0, 16),
    field("slot", 16, 4),
    field("generation", 20, 4),
    field("kind", 24, 4),
    field("crc", 28, 4),
    field("second_key", 32, 16),
    field("second_slot", 48, 4),
    field("second_generation", 52, 4),
    field("second_kind", 56, 4),
    field("second_crc", 60, 4),
];
const DESCRIPTOR: &[LineField] = &[
    field("generation", 0, 4),
    field("state", 4, 1),
    field("flags", 5, 1),
    field("owner", 6, 1),
    field("process", 7, 1),
    field("key", 8, 16),
    field("payload_offset", 24, 8),
    field("payload_bytes", 32, 4),
    field("checksum", 36, 4),
    field("witness", 40, 8),
    field("incarnation", 48, 4),
    field("depth", 52, 2),
    field("namespace", 54, 2),
];
const DIRECTIVE: &[LineField] = &[
    field("kind", 0, 8),
    field("number", 8, 8),
    field("namespace", 16, 16),
    field("length_ms", 32, 8),
    field("percent", 40, 8),
    field("asked_ms", 48, 8),
];

/// Line `index` of the area of `node`, as this host's caches hold it, for tools that are no members.
///
/// # Errors
/// [`GeometryError`] when the region was not formatted for a cache of this version.
///
/// # Panics
/// When the region has no such node.
pub fn area_line<F: Fabric>(
    fabric: &F,
    superblock: &Superblock,
    layout: &Layout,
    node: NodeId,
    index: u64,
) -> Result<AreaLine, GeometryError> {
    let areas = areas_of(superblock, layout)?;
    let line = |what: String, fields| AreaLine { what, fields, fault: None };
    let words = LINE_WORDS as u64;
    Ok(match areas.part_of(index) {
        AreaPart::Heads => line("heads of the log and the directives".to_owned(), HEADS),
        AreaPart::Log(at) => {
            let first = at * ENTRIES_A_LINE;
            line(format!("log, places {first} and {}", first + 1), LOG)
        }
        AreaPart::Segment(slot) => {
            let content =
                u32::try_from(slot).ok().map(|slot| areas.segment(node).cached(fabric, slot));
            let fault = content.and_then(Result::err).map(|error| error.to_string());
            AreaLine { what: format!("descriptor {slot}"), fields: DESCRIPTOR, fault }
        }
        AreaPart::ReaderWords(at) => {
            let share = u64::from(areas.geometry().share_slots());
            let (owner, slot) = (at * words / share, at * words % share);
            line(format!("reader words: blocks of node {owner}, from slot {slot} on"), WORD_FIELDS)
        }
        AreaPart::Directives(at) => line(format!("directive, place {at}"), DIRECTIVE),
        AreaPart::Answers(at) => {
            line(format!("answers to directives of nodes from {} on", at * words), WORD_FIELDS)
        }
        AreaPart::Summary(at) => line(format!("summary, line {at}"), WORD_FIELDS),
        AreaPart::Drives(at) => line(format!("what is said of drives, line {at}"), WORD_FIELDS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BlockState, Descriptor, DescriptorLine, Handle};
    use crate::identity::{BlockKey, IndexKey, NamespaceTag};
    use cxl_shm::host::ProcessSlot;
    use cxl_shm::units::{Extent, Incarnation};

    #[test]
    fn fields_of_a_descriptor_have_its_values() {
        let descriptor = Descriptor {
            handle: Handle::new(NodeId(3), 5, 9),
            state: BlockState::Ready,
            key: BlockKey::new(IndexKey::from_words([3, 4]), 6),
            payload: Extent::new(8192, 5000).unwrap(),
            checksum: 77,
            incarnation: Incarnation(2),
            depth: 8,
            process: ProcessSlot(255),
            namespace: NamespaceTag(0xabcd),
        };
        let mut words = [0; 8];
        let line = DescriptorLine::block(&descriptor);
        for (word, bytes) in words.iter_mut().zip(bytemuck::bytes_of(&line).chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        let values: Vec<_> = DESCRIPTOR.iter().filter_map(|it| it.value_in(&words)).collect();
        assert_eq!(values, [9, 3, 0, 3, 255, 8192, 5000, 77, 6, 2, 8, 0xabcd]);
    }
}
