//! Descriptors and holds as tools read them that are no members.

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, Superblock};
use cxl_shm::units::NodeId;

use super::area::Areas;
use super::geometry::{CacheGeometry, GeometryError};
use super::reader_word::ReaderWord;
use super::segment::PeerSegment;

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

/// The areas of all nodes, for tools that are no members.
pub(crate) fn areas_of(superblock: &Superblock, layout: &Layout) -> Result<Areas, GeometryError> {
    let region = layout.geometry();
    let geometry = CacheGeometry::decode(superblock.application, region.nodes, region.area_lines)?;
    Ok(Areas::new(*layout, geometry))
}
