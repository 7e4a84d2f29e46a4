//! Where the cache's parts are in a node's area.
//!
//! ```text
//! line 0                head of the publication log, tables of the segment that are in use,
//!                       count of directives, what is lost of them
//! line 1 ..             publication log: two entries a line
//! ..                    descriptor segment: one descriptor a line
//! ..                    reader word arrays: one of each node's segment, a word a slot of its share
//! ..                    directives, a line each; answers, a word a node
//! ..                    what the node says of itself, four lines
//! ..                    what is said of drives ([`super::drives`]), if the region has room for it
//! ```
//!
//! One host writes all of it (MEM-M1): the node's own. While the node is vacant, its reclaimer
//! writes the parts before the reader words (`reclaim`). There is no header. The sizes are in the
//! superblock, and an area of zeros, as the formatter leaves it, is an empty log and an empty
//! segment.

use cxl_shm::fabric::{OwnedArea, OwnedWord, PeerWord};
use cxl_shm::layout::Layout;
use cxl_shm::units::{LINE_WORDS, LineRange, NodeId};

use super::directive::{self, OwnDirectives, PeerDirectives};
use super::drives::{DrivePlan, OwnDrives, PeerDrives};
use super::log::{ENTRIES_A_LINE, OwnLog, PeerLog};
use super::reader_word::{OwnReaderWords, PeerReaderWords};
use super::summary::{OwnSummary, PeerSummary, SUMMARY_LINES};
use super::{CacheGeometry, Handle, OwnSegment, PeerSegment};

const LOG_FIRST: u64 = 1;
/// Word of the first line that says how many tables are in use (INDEX-S5).
const TABLES_WORD: u64 = 1;
/// Word of the first line that counts the node's directives (CLEAR-D1).
const DIRECTIVES_WORD: u64 = 2;
/// Words of the first line about directives whose lines were written again (CLEAR-D9): the last that
/// cleared something, and the last.
const LOST_WORDS: [u64; 2] = [3, 4];

/// First lines and lengths of the parts of an area.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AreaPlan {
    geometry: CacheGeometry,
    nodes: u16,
}

impl AreaPlan {
    pub(crate) fn new(geometry: CacheGeometry, nodes: u16) -> Self {
        Self { geometry, nodes }
    }

    pub(crate) fn lines(self) -> u64 {
        self.drives_first() + self.drives().map_or(0, DrivePlan::lines)
    }

    fn drives_first(self) -> u64 {
        self.summary_first() + SUMMARY_LINES
    }

    fn summary_first(self) -> u64 {
        self.directives_first() + directive::lines(self.nodes)
    }

    fn drives(self) -> Option<DrivePlan> {
        self.geometry.drives().map(|geometry| DrivePlan { geometry, nodes: self.nodes })
    }

    fn directives_first(self) -> u64 {
        self.reader_words_first() + self.reader_word_lines()
    }

    fn log_lines(self) -> u64 {
        u64::from(self.geometry.log_entries()) / ENTRIES_A_LINE
    }

    fn segment_first(self) -> u64 {
        LOG_FIRST + self.log_lines()
    }

    fn reader_words_first(self) -> u64 {
        self.segment_first() + u64::from(self.geometry.descriptor_slots())
    }

    /// Lines of all reader word arrays of an area.
    fn reader_word_lines(self) -> u64 {
        // Slots are a power of two of at least a line of words.
        u64::from(self.nodes) * u64::from(self.geometry.share_slots()) / LINE_WORDS as u64
    }
}

/// A part of an area, and a line of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AreaPart {
    Heads,
    Log(u64),
    Segment(u64),
    ReaderWords(u64),
    Directives(u64),
    Answers(u64),
    Summary(u64),
    Drives(u64),
}

impl AreaPlan {
    /// Where line `line` of an area is.
    fn part_of(self, line: u64) -> AreaPart {
        let answers_first = self.directives_first() + directive::DIRECTIVES;
        let parts = [
            (self.drives_first(), AreaPart::Drives as fn(u64) -> AreaPart),
            (self.summary_first(), AreaPart::Summary),
            (answers_first, AreaPart::Answers),
            (self.directives_first(), AreaPart::Directives),
            (self.reader_words_first(), AreaPart::ReaderWords),
            (self.segment_first(), AreaPart::Segment),
            (LOG_FIRST, AreaPart::Log),
        ];
        let part = parts.into_iter().find(|(first, _)| line >= *first);
        part.map_or(AreaPart::Heads, |(first, part)| part(line - first))
    }
}

impl CacheGeometry {
    /// Lines that a node's area needs in a region of `nodes` nodes
    /// ([`cxl_shm::layout::Geometry::area_lines`]): each node has a reader word for each block of
    /// the share of each node.
    #[must_use]
    pub fn area_lines(&self, nodes: u16) -> u64 {
        AreaPlan::new(*self, nodes).lines()
    }
}

/// Payload for which a host can count one hold: a small block.
const HOLD_BYTES: u64 = 64 << 10;
/// Holds that a host can count at least, unless the region has fewer descriptors: 16 prompts of
/// 131,072 tokens, on 8 ranks, with blocks of 16 tokens.
const HOLDS_MIN: u64 = 1 << 20;

/// Most holds that the processes of a host can have at once: one for each process and block. As
/// many as a region full of small blocks has blocks.
pub(crate) fn holds_max(geometry: CacheGeometry, layout: &Layout) -> u64 {
    let all_slots = u64::from(layout.geometry().nodes) * u64::from(geometry.descriptor_slots());
    all_slots.min((layout.payload().bytes() / HOLD_BYTES).max(HOLDS_MIN))
}

/// The areas of all nodes of a region, which the layout was checked to have room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Areas {
    layout: Layout,
    plan: AreaPlan,
}

impl Areas {
    /// The areas of `layout`. `geometry` was decoded for areas of this layout's size.
    pub(crate) fn new(layout: Layout, geometry: CacheGeometry) -> Self {
        Self { layout, plan: AreaPlan::new(geometry, layout.geometry().nodes) }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn geometry(&self) -> CacheGeometry {
        self.plan.geometry
    }

    /// Where line `line` of an area is.
    pub(super) fn part_of(&self, line: u64) -> AreaPart {
        self.plan.part_of(line)
    }

    /// Word that says how many entries a node's log ever had.
    pub(crate) fn log_head(&self, node: NodeId) -> PeerWord {
        self.layout.area(node).word(0).expect("an area has a line for its log's head")
    }

    /// Log and segment of a node: what its reclaimer may write.
    pub(crate) fn published(&self, node: NodeId) -> LineRange {
        let part = self.layout.area(node).part(0, self.plan.reader_words_first());
        part.expect("an area has room for its reader words").range()
    }

    pub(crate) fn log(&self, node: NodeId) -> PeerLog {
        let part = self.layout.area(node).part(LOG_FIRST, self.plan.log_lines());
        PeerLog::new(part.expect("an area has room for its log"))
    }

    pub(crate) fn segment(&self, node: NodeId) -> PeerSegment {
        let slots = u64::from(self.geometry().descriptor_slots());
        let part = self.layout.area(node).part(self.plan.segment_first(), slots);
        let used = self.layout.area(node).word(TABLES_WORD);
        PeerSegment::new(
            part.expect("an area has room for its segment"),
            node,
            self.layout,
            self.geometry().tables(),
            used.expect("an area has a line for its log's head"),
        )
    }

    /// Word that says how many tables of a node's segment are in use (INDEX-S5).
    pub(crate) fn tables_word(&self, node: NodeId) -> PeerWord {
        let word = self.layout.area(node).word(TABLES_WORD);
        word.expect("an area has a line for its log's head")
    }

    /// The segment that holds a handle's descriptor; `None` when there is no such descriptor.
    pub(crate) fn segment_of(&self, handle: Handle) -> Option<PeerSegment> {
        let node = self.layout.node(handle.owner().0)?;
        (handle.slot() < self.geometry().descriptor_slots()).then(|| self.segment(node))
    }

    /// What `reader` says of the blocks of all nodes.
    pub(crate) fn reader_words(&self, reader: NodeId) -> PeerReaderWords {
        let part = self
            .layout
            .area(reader)
            .part(self.plan.reader_words_first(), self.plan.reader_word_lines());
        let slots = self.geometry().share_slots();
        PeerReaderWords::new(part.expect("an area has room for its reader words"), slots)
    }

    /// This node's own reader words, in its own area.
    pub(crate) fn own_reader_words(&self, area: OwnedArea) -> OwnReaderWords {
        let part = area.part(self.plan.reader_words_first(), self.plan.reader_word_lines());
        let slots = self.geometry().share_slots();
        OwnReaderWords::new(part.expect("an area has room for its reader words"), slots)
    }

    /// Word that counts the directives of a node.
    pub(crate) fn directive_count(&self, node: NodeId) -> PeerWord {
        let word = self.layout.area(node).word(DIRECTIVES_WORD);
        word.expect("an area has a line for its log's head")
    }

    /// Words about the directives of a node that have no line any more: the last that cleared
    /// something, and the last.
    pub(crate) fn lost_directives(&self, node: NodeId) -> [PeerWord; 2] {
        let area = self.layout.area(node);
        LOST_WORDS.map(|word| area.word(word).expect("an area has a line for its log's head"))
    }

    /// What a node asks for, and what it has answered.
    pub(crate) fn directives(&self, node: NodeId) -> PeerDirectives {
        let lines = directive::lines(self.plan.nodes);
        let part = self.layout.area(node).part(self.plan.directives_first(), lines);
        PeerDirectives { part: part.expect("an area has room for its directives") }
    }

    /// This node's own directives and answers, in its own area.
    pub(crate) fn own_directives(&self, area: OwnedArea) -> OwnDirectives {
        let part = area.part(self.plan.directives_first(), directive::lines(self.plan.nodes));
        OwnDirectives {
            part: part.expect("an area has room for its directives"),
            count: area.word(DIRECTIVES_WORD).expect("an area has a line for its log's head"),
            lost: LOST_WORDS
                .map(|word| area.word(word).expect("an area has a line for its log's head")),
        }
    }

    /// What a node says of itself.
    pub(crate) fn summary(&self, node: NodeId) -> PeerSummary {
        let part = self.layout.area(node).part(self.plan.summary_first(), SUMMARY_LINES);
        PeerSummary { part: part.expect("an area has room for its summary") }
    }

    /// What this node says of itself, in its own area.
    pub(crate) fn own_summary(&self, area: OwnedArea) -> OwnSummary {
        let part = area.part(self.plan.summary_first(), SUMMARY_LINES);
        OwnSummary { part: part.expect("an area has room for its summary") }
    }

    /// What nodes say of drives; `None` when the region has no room for that.
    pub(crate) fn drives(&self) -> Option<DriveAreas> {
        let plan = self.plan.drives()?;
        Some(DriveAreas { layout: self.layout, first: self.plan.drives_first(), plan })
    }

    /// Most holds that the processes of a host can have at once.
    pub(crate) fn holds_max(&self) -> u64 {
        holds_max(self.geometry(), &self.layout)
    }

    /// Word that says how many tables of this node's own segment are in use.
    pub(crate) fn own_tables_word(&self, area: OwnedArea) -> OwnedWord {
        area.word(TABLES_WORD).expect("an area has a line for its log's head")
    }

    /// This node's own log, in its own area.
    pub(crate) fn own_log(&self, area: OwnedArea) -> OwnLog {
        let head: OwnedWord = area.word(0).expect("an area has a line for its log's head");
        let part = area.part(LOG_FIRST, self.plan.log_lines());
        OwnLog::new(head, part.expect("an area has room for its log"))
    }

    /// This node's own segment, in its own area.
    pub(crate) fn own_segment(&self, node: NodeId, area: OwnedArea) -> OwnSegment {
        let slots = u64::from(self.geometry().descriptor_slots());
        let part = area.part(self.plan.segment_first(), slots);
        OwnSegment::new(part.expect("an area has room for its segment"), node, self.layout)
    }
}

/// What the nodes of a region say of drives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveAreas {
    layout: Layout,
    first: u64,
    pub(crate) plan: DrivePlan,
}

impl DriveAreas {
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        self.layout.nodes()
    }

    /// What `node` says.
    pub(crate) fn of(&self, node: NodeId) -> PeerDrives {
        let part = self.layout.area(node).part(self.first, self.plan.lines());
        let part = part.expect("an area has room for what it says of drives");
        PeerDrives { part, plan: self.plan }
    }

    /// What this node says, in its own area.
    pub(crate) fn own(&self, area: OwnedArea) -> OwnDrives {
        let part = area.part(self.first, self.plan.lines());
        let part = part.expect("an area has room for what it says of drives");
        OwnDrives { part, plan: self.plan }
    }
}
