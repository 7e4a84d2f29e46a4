//! What lies in a region: sizes, the areas of the nodes, descriptors, logs, reader words, and what
//! hosts say of their drives.
//!
//! Offsets, lines and words, and who may write them; no locks and no decisions. `docs/region.md` of
//! `cxl-shm` draws the rest of the region.

mod area;
mod area_line;
mod descriptor;
mod directive;
mod drives;
mod geometry;
mod inspect;
mod log;
mod reader_word;
mod segment;
mod summary;
mod tables;
mod words;

pub(crate) use area::{Areas, DriveAreas, holds_max};
pub(crate) use descriptor::{DescriptorLine, is_newer, next_generation};
pub(crate) use directive::{Answer, DIRECTIVES, DirectiveLine, OwnDirectives};
pub(crate) use drives::{
    DriveEntry, FORWARD_ROW_WORDS, FORWARD_ROWS, NUMBER_MAX, OwnDrives, PeerDrives, ROW_WORDS,
    RequestLine, TABLE_HEADER_WORDS, answer_word, answered_number, answered_outcome,
};
pub(crate) use inspect::areas_of;
pub(crate) use log::{Behind, LogEntry, LogKind, OwnLog, PeerLog, behind};
pub(crate) use reader_word::{HoldMark, OwnReaderWords, ReaderWord, age, tick_of};
pub(crate) use segment::{OwnSegment, tables_in_use, used_word};
pub(crate) use summary::OwnSummary;
pub(crate) use tables::{TABLES_MAX, Tables};
pub(crate) use words::halves;

pub use area_line::{AreaLine, area_line};
pub use descriptor::{BlockState, Descriptor, DescriptorError, Handle, SlotContent};
pub use directive::{Directive, Drain, OfDrain, Pin};
pub use drives::{
    AgentLine, AgentSeen, DRIVE_REQUESTS_MAX, DRIVE_SLOTS_MAX, DriveGeometry, RestoreOutcome,
    RestoreRequest,
};
pub use geometry::{
    CacheGeometry, DESCRIPTOR_SLOTS_MAX, DESCRIPTOR_SLOTS_MIN, GeometryError, LOG_ENTRIES_MAX,
    LOG_ENTRIES_MIN,
};
pub use inspect::{
    BlockUse, BlockUses, IssuedDirective, agent_of, directives_of, held_by, holders_of, segment_of,
    summary_of,
};
pub use reader_word::HOLD_MS_MAX;
pub use segment::{PROBE_SLOTS, PeerSegment};
pub use summary::{NodeSummary, SummarySeen};
