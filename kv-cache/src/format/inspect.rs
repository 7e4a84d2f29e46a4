//! Descriptors and holds as tools read them that are no members.

use cxl_shm::fabric::{Fabric, refresh_all};
use cxl_shm::layout::{Layout, Superblock};
use cxl_shm::units::NodeId;

use super::area::Areas;
use super::directive::{Answer, DIRECTIVES, Directive};
use super::drives::AgentSeen;
use super::geometry::{CacheGeometry, GeometryError};
use super::reader_word::{PeerReaderWords, ReaderWord, age};
use super::segment::PeerSegment;
use super::summary::SummarySeen;

/// The descriptor segment of `node`, for tools that are no members.
///
/// # Errors
/// [`GeometryError`] when the region was not formatted for a cache of this version.
///
/// # Panics
/// When the region has no such node.
pub fn segment_of(
    superblock: &Superblock,
    layout: &Layout,
    node: NodeId,
) -> Result<PeerSegment, GeometryError> {
    Ok(areas_of(superblock, layout)?.segment(node))
}

/// The blocks that `reader` says it holds, freshly read: owner and descriptor slot of each, of slots
/// that share a reader word the lowest. For tools that are no members.
///
/// # Errors
/// [`GeometryError`] when the region was not formatted for a cache of this version.
///
/// # Panics
/// When the region has no such node.
pub fn held_by<F: Fabric>(
    fabric: &F,
    superblock: &Superblock,
    layout: &Layout,
    reader: NodeId,
) -> Result<Vec<(NodeId, u32)>, GeometryError> {
    let areas = areas_of(superblock, layout)?;
    let reader_words = areas.reader_words(reader);
    fabric.refresh(reader_words.range());
    let slots = areas.geometry().share_slots();
    let all = layout.nodes().flat_map(|owner| (0..slots).map(move |slot| (owner, slot)));
    let is_held = |(owner, slot): &(NodeId, u32)| {
        ReaderWord::from_word(reader_words.word(*owner, *slot).cached(fabric)).held
    };
    Ok(all.filter(is_held).collect())
}

/// The nodes that say that they hold the block in `slot` of `owner`'s segment, or one that shares its
/// reader words. Freshly read, for tools that are no members.
///
/// # Errors
/// [`GeometryError`] when the region was not formatted for a cache of this version.
///
/// # Panics
/// When the region has no such node.
pub fn holders_of<F: Fabric>(
    fabric: &F,
    superblock: &Superblock,
    layout: &Layout,
    owner: NodeId,
    slot: u32,
) -> Result<Vec<NodeId>, GeometryError> {
    let areas = areas_of(superblock, layout)?;
    let word = |reader| areas.reader_words(reader).word(owner, slot);
    let holds = |reader: &NodeId| ReaderWord::from_word(word(*reader).fresh(fabric)).held;
    Ok(layout.nodes().filter(holds).collect())
}

/// When the blocks of one node were used, by nodes that are asked, for tools that are no members.
#[derive(Clone, Debug)]
pub struct BlockUses {
    owner: NodeId,
    head: u64,
    readers: Vec<PeerReaderWords>,
}

/// By how many entries a use may be newer than the head of the log, which was read before it.
const NEWER_MAX: u32 = 1 << 20;

/// When a block was used. Of blocks that share a reader word a use of one counts for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockUse {
    /// On how many nodes.
    pub nodes: u16,
    /// How long ago the last use was: in entries that the owner has added to its log since. `None`
    /// when no node has used the block.
    pub age: Option<u32>,
}

impl BlockUses {
    /// Those of `owner`'s blocks on the nodes `readers`, freshly read.
    ///
    /// # Errors
    /// [`GeometryError`] when the region was not formatted for a cache of this version.
    ///
    /// # Panics
    /// When the region has no such node.
    pub fn look<F: Fabric>(
        fabric: &F,
        superblock: &Superblock,
        layout: &Layout,
        owner: NodeId,
        readers: &[NodeId],
    ) -> Result<Self, GeometryError> {
        let areas = areas_of(superblock, layout)?;
        let readers: Vec<_> = readers.iter().map(|reader| areas.reader_words(*reader)).collect();
        let head = areas.log_head(owner);
        let words = readers.iter().map(|reader| reader.range_of(owner));
        refresh_all(fabric, words.chain([head.range()]));
        Ok(Self { owner, head: head.cached(fabric), readers })
    }

    /// When the block in `slot` was used. Slots beyond those of the owner's segment share the words of
    /// others.
    pub fn of(&self, fabric: &impl Fabric, slot: u32) -> BlockUse {
        let mut found = BlockUse::default();
        for reader in &self.readers {
            let word = ReaderWord::from_word(reader.word(self.owner, slot).cached(fabric));
            if let Some(its) = age(word.tick, self.head) {
                // A use that is newer than the head.
                let its = if its > u32::MAX - NEWER_MAX { 0 } else { its };
                found.nodes += 1;
                found.age = Some(found.age.map_or(its, |age| age.min(its)));
            }
        }
        found
    }
}

/// A directive as a tool sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IssuedDirective {
    /// Its number, from 1, among those of the node that asked.
    pub number: u64,
    /// What is asked for; `None` when the line cannot be read: it is damaged.
    pub directive: Option<Directive>,
    /// The nodes that have carried it out, or refused it.
    pub answered_by: Vec<NodeId>,
    /// The nodes that refused it, as far as they have answered no later one.
    pub refused_by: Vec<NodeId>,
}

/// The last directives of a node, freshly read, for tools that are no members.
///
/// # Errors
/// [`GeometryError`] when the region was not formatted for a cache of this version.
///
/// # Panics
/// When the region has no such node.
pub fn directives_of<F: Fabric>(
    fabric: &F,
    superblock: &Superblock,
    layout: &Layout,
    asking: NodeId,
) -> Result<Vec<IssuedDirective>, GeometryError> {
    let areas = areas_of(superblock, layout)?;
    let count = areas.directive_count(asking).fresh(fabric);
    let answer = |node| areas.directives(node).answer(asking).fresh(fabric);
    let answers: Vec<(NodeId, Answer)> =
        layout.nodes().map(|node| (node, Answer::from_word(answer(node)))).collect();
    let issued = |number: u64| {
        let line = areas.directives(asking).line(number).fresh(fabric).ok();
        let nodes_with = |is: fn(&Answer, u64) -> bool| {
            let answers = answers.iter().filter(|(_, answer)| is(answer, number));
            answers.map(|(node, _)| *node).collect()
        };
        IssuedDirective {
            number,
            directive: line.and_then(|line| line.directive(number)),
            answered_by: nodes_with(|answer, number| answer.number >= number),
            refused_by: nodes_with(|answer, number| answer.refused && answer.number == number),
        }
    };
    let first = count.saturating_sub(DIRECTIVES) + 1;
    Ok((first..=count).map(issued).collect())
}

/// What the agent of a node says of its drives, freshly read, for tools that are no members. `None`
/// when the region has no room for that, no agent ever ran there, or the lines cannot be read.
///
/// # Errors
/// [`GeometryError`] when the region was not formatted for a cache of this version.
///
/// # Panics
/// When the region has no such node.
pub fn agent_of<F: Fabric>(
    fabric: &F,
    superblock: &Superblock,
    layout: &Layout,
    node: NodeId,
) -> Result<Option<AgentSeen>, GeometryError> {
    let drives = areas_of(superblock, layout)?.drives();
    Ok(drives.and_then(|drives| drives.of(node).agent(fabric)))
}

/// What a node says of itself, freshly read, for tools that are no members.
///
/// # Errors
/// [`GeometryError`] when the region was not formatted for a cache of this version.
///
/// # Panics
/// When the region has no such node.
pub fn summary_of<F: Fabric>(
    fabric: &F,
    superblock: &Superblock,
    layout: &Layout,
    node: NodeId,
) -> Result<SummarySeen, GeometryError> {
    Ok(areas_of(superblock, layout)?.summary(node).look(fabric))
}

/// The areas of all nodes, for tools that are no members.
pub(crate) fn areas_of(superblock: &Superblock, layout: &Layout) -> Result<Areas, GeometryError> {
    let region = layout.geometry();
    let geometry = CacheGeometry::decode(superblock.application, region.nodes, region.area_lines)?;
    Ok(Areas::new(*layout, geometry))
}
