//! Where everything is in a region: offsets derived from the geometry, one after another.
//!
//! ```text
//! offset 0
//! +--------------------------------------------------------------------------+
//! | superblock slot A (page)   | slot B (page)   | selector (page)           |  formatter, then
//! |                                                                          |  holder of lock 7
//! +--------------------------------------------------------------------------+
//! | node page 0 | node page 1 | ...          identity, heartbeat, host name, |  node i
//! |                                          manager claim, summary, arrival,|
//! |                                          chunks asked for, reclaimer       |
//! |   and its admission: a claim word, a mark a host                         |  joining hosts
//! | intents 0   | intents 1   | ...          redo records, 8 lines per lock  |  node i
//! | ballots 0   | ballots 1   | ...          two lines per node              |  node i
//! | recoveries 0| recoveries 1| ...          two lines per node              |  node i
//! +--------------------------------------------------------------------------+
//! | requests 0  | requests 1  | ...          a ticket word per lock           |  node i
//! | acks 0      | acks 1      | ...          a state word per lock            |  node i
//! | grants 0    | grants 1    | ...          nodes x locks state words        |  manager on node i
//! +--------------------------------------------------------------------------+
//! | free rings 0| free rings 1| ...          a page per receiving node        |  node i
//! | free tails 0| free tails 1| ...          a word per sending node          |  node i
//! +--------------------------------------------------------------------------+
//! | named roots                              4 lines per root                 |  holder of lock 0
//! | lock table                               a bit per lock                   |  holder of lock 3
//! | chunk table                              one line per chunk               |  holder of lock 1
//! +--------------------------------------------------------------------------+
//! | area 0      | area 1      | ...          opaque to this crate             |  node i
//! +--------------------------------------------------------------------------+
//! | chunk 0 | chunk 1 | ...                  payload and heaps                |  their owner
//! +--------------------------------------------------------------------------+
//! ```
//!
//! Each part of each writer starts on a page of its own, so that no line ever has two writing hosts
//! (MEM-M1) and payload shares no page with metadata (MEM-M6). A host that joins a vacant slot
//! writes for its admission: a claim word and marks, a line for each of them, and beside each mark
//! a record of whose it is (`lifecycle/admission.rs`).

mod death_records;
mod double_buffer;
mod failed_pages;
mod heap_records;
mod intent_record;
mod line_fields;
mod line_place;
mod lock_set;
mod profile;
mod records;
mod region_kind;
mod root_records;
mod superblock;

pub use death_records::{Appointment, BallotRecord, Case, RecoveryRecord, RecoveryStep};
pub(crate) use double_buffer::{OwnedDoubleBuffer, PeerDoubleBuffer, Unreadable};
pub use failed_pages::{FailedPages, failed_extents, failed_in};
#[doc(hidden)]
pub use heap_records::header;
pub use heap_records::{HEAP_PURPOSE, HeapHeader};
pub use intent_record::{INTENT_IMAGES, IntentRecord};
pub use line_fields::{LineField, WORDS as WORD_FIELDS};
pub use line_place::{LineKind, LinePlace};
pub use lock_set::LockSet;
pub use profile::{FenceEvidence, PayloadPolicy, Platform, PlatformProfile};
pub(crate) use records::JoinMarkHost;
pub use records::{
    Arrival, ChunkEntry, ChunkState, HostName, Machine, ManagerClaim, NodeLine, NodeState,
};
pub use region_kind::RegionKind;
pub use root_records::{ROOT_NAME_BYTES_MAX, RootHead, RootName, RootState, root_name_hash};
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use superblock::pretend_format_version;
pub use superblock::{
    FORMAT_VERSION, FormatError, LockProtocol, Superblock, SuperblockError, format_superblock,
    format_superblock_without, read_superblock, replace_profile,
};
pub(crate) use superblock::{SuperblockWatch, flush_superblock};

use crate::fabric::{PeerArea, PeerLine, PeerWord};
use crate::units::{
    ChunkId, Extent, LINE_BYTES, LINE_WORDS, LineOffset, LineRange, LockId, NODES_MAX, NodeId,
    PAGE_BYTES,
};

/// Lock that guards the chunk table. Lock 2 is for the formatting of segments (LOCK-L3); locks from
/// [`FIRST_FREE_LOCK`] on are for users.
pub const CHUNK_LOCK: LockId = LockId(1);
/// First lock that this crate does not use itself.
pub const FIRST_FREE_LOCK: u32 = 8;
/// Locks of the region's own, each with a redo record per node: open critical sections a node can
/// have at once.
pub const INTENTS: u64 = 8;
/// Lines of a redo record: its head and the images of the lines it writes.
pub const INTENT_LINES: u64 = 8;
/// Lock that guards the platform profile in the superblock.
pub const PROFILE_LOCK: LockId = LockId(7);
/// Lock that guards the table of named roots.
pub const ROOT_LOCK: LockId = LockId(0);
/// Lock that guards the table of locks in use.
pub const LOCK_TABLE_LOCK: LockId = LockId(3);
/// Entries of the table of named roots.
pub const ROOTS_MAX: u64 = 256;
/// Lines of an entry of that table.
pub const ROOT_LINES: u64 = 4;
/// Lines of a ring that carries frees from one node to another.
pub const FREE_RING_LINES: u64 = PAGE_BYTES / LINE_BYTES;

/// Most locks a region can have.
pub const LOCKS_MAX: u32 = 4096;
/// Smallest chunk: one page of each of sixteen payload slots.
pub const CHUNK_BYTES_MIN: u64 = 64 << 10;
/// Chunks start at a multiple of this where they are at least as large, so that huge pages fit.
const CHUNKS_ALIGN: u64 = 2 << 20;

/// Most words of the layer above in a host tier: 8 GiB of them.
pub const HOST_WORDS_MAX: u64 = 1 << 30;

const SUPERBLOCK_PAGES: u64 = 3;

// Lines of a node page.
const LINE_NODE: u64 = 0;
const LINE_HEARTBEAT: u64 = 1;
const LINE_HOST_NAME: u64 = 2;
const LINE_MANAGER: u64 = 3;
const LINE_MANAGER_HEARTBEAT: u64 = 4;
const LINE_SUMMARY: u64 = 5;
const LINE_ARRIVAL: u64 = 6;
const LINE_CHUNK_DEMAND: u64 = 7;
const LINE_CLAIM_WORD: u64 = 8;
const LINE_RECLAIMER: u64 = 9;
const LINE_JOIN_MARKS: u64 = 16;
const LINE_JOIN_MARK_HOSTS: u64 = LINE_JOIN_MARKS + JOIN_MARKS;
/// Join marks of a node slot, each for one host.
pub(crate) const JOIN_MARKS: u64 = 16;
const _: () =
    assert!((LINE_JOIN_MARK_HOSTS + JOIN_MARKS) * LINE_BYTES <= PAGE_BYTES, "fits the page");
/// Lines of a record that is written in turn, so that one of them is always whole.
pub(crate) const DOUBLE_BUFFER_LINES: u64 = 2;
const INTENTS_STRIDE: u64 = INTENTS * INTENT_LINES * LINE_BYTES;
const _: () = assert!(INTENTS_STRIDE.is_multiple_of(PAGE_BYTES), "intents fill whole pages");
const ROOTS_BYTES: u64 = ROOTS_MAX * ROOT_LINES * LINE_BYTES;
const _: () = assert!(ROOTS_BYTES.is_multiple_of(PAGE_BYTES), "the roots fill whole pages");

/// What a region is made of. Everything else follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Size of the region.
    pub region_bytes: u64,
    /// Node slots, 1 to [`NODES_MAX`].
    pub nodes: u16,
    /// Locks, [`FIRST_FREE_LOCK`] to [`LOCKS_MAX`].
    pub locks: u32,
    /// Size of a chunk: a power of two.
    pub chunk_bytes: u64,
    /// Lines of each node's area, which belongs to the layer above.
    pub area_lines: u64,
    /// Words that the layer above has in each host tier, up to [`HOST_WORDS_MAX`]. Not part of
    /// the region, but every process of a host must agree on them.
    pub host_words: u64,
}

/// Why a geometry cannot be laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// Node count out of range.
    #[error("{nodes} nodes: a region has 1 to {NODES_MAX}")]
    Nodes {
        /// Asked for.
        nodes: u16,
    },
    /// Lock count out of range.
    #[error("{locks} locks: a region has {FIRST_FREE_LOCK} to {LOCKS_MAX}")]
    Locks {
        /// Asked for.
        locks: u32,
    },
    /// Chunk size not a power of two, or too small.
    #[error("chunks of {chunk_bytes} bytes: must be a power of two of at least {CHUNK_BYTES_MIN}")]
    ChunkBytes {
        /// Asked for.
        chunk_bytes: u64,
    },
    /// The metadata and one chunk a node do not fit.
    #[error(
        "a region of {region_bytes} bytes is too small: the metadata of {nodes} nodes and one \
         chunk of {chunk_bytes} bytes for each need {needed_bytes}; use a larger region, fewer \
         nodes or smaller chunks"
    )]
    TooSmall {
        /// Size of the region.
        region_bytes: u64,
        /// Node slots.
        nodes: u16,
        /// Size of a chunk.
        chunk_bytes: u64,
        /// Size that would do.
        needed_bytes: u64,
    },
    /// Too many words a host tier.
    #[error("{host_words} words a host tier: there are at most {HOST_WORDS_MAX}")]
    HostWords {
        /// Asked for.
        host_words: u64,
    },
    /// The numbers overflow 64 bits.
    #[error("the geometry does not fit 64 bits")]
    Overflow,
}

/// Offsets of all parts of a region. Derived, never read from shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    geometry: Geometry,
    nodes_at: u64,
    intents_at: u64,
    ballots_at: u64,
    recoveries_at: u64,
    lines_stride: u64,
    requests_at: u64,
    acks_at: u64,
    grants_at: u64,
    words_stride: u64,
    grants_stride: u64,
    free_rings_at: u64,
    free_tails_at: u64,
    roots_at: u64,
    lock_table_at: u64,
    chunk_table_at: u64,
    areas_at: u64,
    area_stride: u64,
    chunks_at: u64,
    chunks: u32,
}

impl Layout {
    /// Lays out `geometry`.
    ///
    /// # Errors
    /// [`GeometryError`]: what is out of range, and what would do.
    pub fn new(geometry: Geometry) -> Result<Self, GeometryError> {
        let Geometry { nodes, locks, .. } = geometry;
        if nodes == 0 || nodes > NODES_MAX {
            return Err(GeometryError::Nodes { nodes });
        }
        if !(FIRST_FREE_LOCK..=LOCKS_MAX).contains(&locks) {
            return Err(GeometryError::Locks { locks });
        }
        Self::with_counts_unchecked(geometry)
    }

    /// Lays out `geometry`, also with fewer locks than a region has: what is explored
    /// exhaustively has to be small.
    ///
    /// # Errors
    /// As [`Self::new`], except for the counts of nodes and locks, which the caller has checked.
    pub(crate) fn with_counts_unchecked(geometry: Geometry) -> Result<Self, GeometryError> {
        let Geometry { region_bytes, nodes, locks, chunk_bytes, area_lines, host_words } = geometry;
        if !chunk_bytes.is_power_of_two() || chunk_bytes < CHUNK_BYTES_MIN {
            return Err(GeometryError::ChunkBytes { chunk_bytes });
        }
        let overflow = GeometryError::Overflow;
        let nodes_wide = u64::from(nodes);
        let area_stride = pages(area_lines.checked_mul(LINE_BYTES).ok_or(overflow)?)?;
        // With this bound no sum or product below can overflow.
        if region_bytes > 1 << 56 || area_stride > 1 << 48 || chunk_bytes > 1 << 48 {
            return Err(overflow);
        }
        if host_words > HOST_WORDS_MAX {
            return Err(GeometryError::HostWords { host_words });
        }
        let words_stride = pages(u64::from(locks) * 8)?;
        let grants_stride = pages(nodes_wide * u64::from(locks) * 8)?;
        let nodes_at = SUPERBLOCK_PAGES * PAGE_BYTES;
        let lines_stride = pages(nodes_wide * DOUBLE_BUFFER_LINES * LINE_BYTES)?;
        let intents_at = nodes_at + nodes_wide * PAGE_BYTES;
        let ballots_at = intents_at + nodes_wide * INTENTS_STRIDE;
        let recoveries_at = ballots_at + nodes_wide * lines_stride;
        let requests_at = recoveries_at + nodes_wide * lines_stride;
        let acks_at = requests_at + nodes_wide * words_stride;
        let grants_at = acks_at + nodes_wide * words_stride;
        let free_rings_at = grants_at + nodes_wide * grants_stride;
        let free_tails_at = free_rings_at + nodes_wide * nodes_wide * FREE_RING_LINES * LINE_BYTES;
        let roots_at = free_tails_at + nodes_wide * PAGE_BYTES;
        let lock_table_at = roots_at + ROOTS_BYTES;
        let chunk_table_at = lock_table_at + PAGE_BYTES;

        let align = chunk_bytes.min(CHUNKS_ALIGN);
        let chunks_start = |table_chunks: u64| -> Result<(u64, u64), GeometryError> {
            let areas_at = chunk_table_at + pages(table_chunks * LINE_BYTES)?;
            let chunks_at = (areas_at + nodes_wide * area_stride).next_multiple_of(align);
            Ok((areas_at, chunks_at))
        };
        // A table for as many chunks as the region could hold without any table: at most one line
        // per chunk too many.
        let most = region_bytes / chunk_bytes;
        let (areas_at, chunks_at) = chunks_start(most)?;
        let chunks = region_bytes.saturating_sub(chunks_at) / chunk_bytes;
        let chunks = u32::try_from(chunks).map_err(|_| overflow)?;
        if chunks < u32::from(nodes) {
            let (_, start) = chunks_start(most.max(nodes_wide) + 1)?;
            let needed_bytes = start + nodes_wide * chunk_bytes;
            return Err(GeometryError::TooSmall { region_bytes, nodes, chunk_bytes, needed_bytes });
        }
        Ok(Self {
            geometry,
            nodes_at,
            intents_at,
            ballots_at,
            recoveries_at,
            lines_stride,
            requests_at,
            acks_at,
            grants_at,
            words_stride,
            grants_stride,
            free_rings_at,
            free_tails_at,
            roots_at,
            lock_table_at,
            chunk_table_at,
            areas_at,
            area_stride,
            chunks_at,
            chunks,
        })
    }

    /// What it was derived from.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Number of locks.
    #[must_use]
    pub fn locks(&self) -> u32 {
        self.geometry.locks
    }

    /// Each node of the region.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.geometry.nodes).map(NodeId)
    }

    /// The node numbered `node`; `None` when the region has no such node. For numbers that came
    /// from outside or from shared memory.
    #[must_use]
    pub fn node(&self, node: u16) -> Option<NodeId> {
        (node < self.geometry.nodes).then_some(NodeId(node))
    }

    /// The chunk numbered `chunk`; `None` when the region has no such chunk.
    #[must_use]
    pub fn chunk_id(&self, chunk: u32) -> Option<ChunkId> {
        (chunk < self.chunks).then_some(ChunkId(chunk))
    }

    /// Bytes of the metadata: everything before the first chunk.
    #[must_use]
    pub fn metadata(&self) -> Extent {
        extent(0, self.chunks_at)
    }

    /// All chunks as one extent.
    #[must_use]
    pub fn payload(&self) -> Extent {
        extent(self.chunks_at, u64::from(self.chunks) * self.geometry.chunk_bytes)
    }

    /// The bytes of chunk `chunk`.
    ///
    /// # Panics
    /// When the region has no such chunk: get ids that are not our own from [`Self::chunk_id`].
    #[must_use]
    pub fn chunk(&self, chunk: ChunkId) -> Extent {
        assert!(chunk.0 < self.chunks, "chunk {chunk} of {}", self.chunks);
        let bytes = self.geometry.chunk_bytes;
        extent(self.chunks_at + u64::from(chunk.0) * bytes, bytes)
    }

    /// The lines of `chunk`.
    #[must_use]
    pub fn chunk_area(&self, chunk: ChunkId) -> PeerArea {
        PeerArea::new(LineRange::covering(self.chunk(chunk)))
    }

    /// The chunk that holds all of `extent`; `None` when none does.
    #[must_use]
    pub fn chunk_of(&self, extent: Extent) -> Option<ChunkId> {
        let from_start = extent.offset().checked_sub(self.chunks_at)?;
        let chunk = u32::try_from(from_start / self.geometry.chunk_bytes).ok()?;
        let chunk = self.chunk_id(chunk)?;
        self.chunk(chunk).contains(extent).then_some(chunk)
    }

    /// Identity line of a node.
    #[must_use]
    pub fn node_line(&self, node: NodeId) -> PeerLine<NodeLine> {
        PeerLine::new(self.node_page_line(node, LINE_NODE))
    }

    /// Host name of a node, valid with the node line.
    #[must_use]
    pub fn host_name(&self, node: NodeId) -> PeerLine<HostName> {
        PeerLine::new(self.node_page_line(node, LINE_HOST_NAME))
    }

    /// Heartbeat of a node: changes while the node lives.
    #[must_use]
    pub fn heartbeat(&self, node: NodeId) -> PeerWord {
        word(self.node_page(node), LINE_HEARTBEAT * LINE_WORDS as u64)
    }

    /// The claim of the lock manager that runs, or ran, on a node: a [`ManagerClaim`] in one word,
    /// which never tears.
    #[must_use]
    pub fn manager_claim(&self, node: NodeId) -> PeerWord {
        word(self.node_page(node), LINE_MANAGER * LINE_WORDS as u64)
    }

    /// Heartbeat of the lock manager on a node.
    #[must_use]
    pub fn manager_heartbeat(&self, node: NodeId) -> PeerWord {
        word(self.node_page(node), LINE_MANAGER_HEARTBEAT * LINE_WORDS as u64)
    }

    /// Changes with every request of a node that is told by a number, which it names.
    #[must_use]
    pub fn summary(&self, node: NodeId) -> PeerWord {
        word(self.node_page(node), LINE_SUMMARY * LINE_WORDS as u64)
    }

    /// A copy of the last new request of a node: the word after its summary, in one line, so that a
    /// lock manager polls both at once.
    pub(crate) fn request_copy(&self, node: NodeId) -> PeerWord {
        word(self.node_page(node), LINE_SUMMARY * LINE_WORDS as u64 + 1)
    }

    /// The incarnation that a process has claimed which found the former inhabitant of the slot
    /// gone, on the same machine: from then on nobody else may begin to recover that one. An
    /// [`Arrival`] in one word.
    #[must_use]
    pub fn arrival(&self, node: NodeId) -> PeerWord {
        word(self.node_page(node), LINE_ARRIVAL * LINE_WORDS as u64)
    }

    /// How many chunks a node that has run dry asks the others for.
    #[must_use]
    pub fn chunk_demand(&self, node: NodeId) -> PeerWord {
        word(self.node_page(node), LINE_CHUNK_DEMAND * LINE_WORDS as u64)
    }

    /// The node whose reclaimer the host of a node is, if any: a
    /// [`Reclaimer`](crate::lifecycle::Reclaimer) in one word.
    #[must_use]
    pub fn reclaimer(&self, node: NodeId) -> PeerWord {
        word(self.node_page(node), LINE_RECLAIMER * LINE_WORDS as u64)
    }

    /// Who came last for the slot of a node, and for which incarnation: the one word that several
    /// hosts write, each before it looks at [`Self::join_marks`].
    #[must_use]
    pub fn claim_word(&self, node: NodeId) -> PeerWord {
        word(self.node_page(node), LINE_CLAIM_WORD * LINE_WORDS as u64)
    }

    /// Mark `index`, below [`JOIN_MARKS`], of a node's slot: which host comes, or has
    /// come, for which incarnation.
    #[must_use]
    pub(crate) fn join_mark(&self, node: NodeId, index: u64) -> PeerWord {
        assert!(index < JOIN_MARKS, "mark {index} of {JOIN_MARKS}");
        word(self.node_page(node), (LINE_JOIN_MARKS + index) * LINE_WORDS as u64)
    }

    /// Whose join mark number `index` of a node's slot is, in full.
    #[must_use]
    pub(crate) fn join_mark_host(&self, node: NodeId, index: u64) -> PeerLine<JoinMarkHost> {
        assert!(index < JOIN_MARKS, "mark {index} of {JOIN_MARKS}");
        let line = self.node_page(node).line(LINE_JOIN_MARK_HOSTS + index);
        line.expect("the node page has room for them")
    }

    /// All join marks of a node's slot, a word a line, which says which host comes, or has
    /// come, for which incarnation; and after them, as many lines, each host in full. For one
    /// refresh.
    #[must_use]
    pub fn join_marks(&self, node: NodeId) -> LineRange {
        LineRange::new(self.node_page_line(node, LINE_JOIN_MARKS), 2 * JOIN_MARKS)
            .expect("the node page has room for them")
    }

    /// Intent lines of a node: [`INTENT_LINES`] for each of the first [`INTENTS`] locks.
    #[must_use]
    pub fn intents(&self, node: NodeId) -> PeerArea {
        self.per_node(self.intents_at, INTENTS_STRIDE, node)
    }

    /// What a node has promised and accepted about the death of each node: two lines per node,
    /// each holding a [`BallotRecord`], the newer one counting.
    #[must_use]
    pub fn ballots(&self, node: NodeId) -> PeerArea {
        self.per_node(self.ballots_at, self.lines_stride, node)
    }

    /// How far a node is with the recovery of each node: two lines per node, each holding a
    /// [`RecoveryRecord`], the newer one counting.
    #[must_use]
    pub fn recoveries(&self, node: NodeId) -> PeerArea {
        self.per_node(self.recoveries_at, self.lines_stride, node)
    }

    /// A node's requests, a word per lock: tickets, or numbers of the bakery.
    #[must_use]
    pub fn requests(&self, node: NodeId) -> PeerArea {
        self.per_node(self.requests_at, self.words_stride, node)
    }

    /// A node's request for `lock`.
    ///
    /// # Panics
    /// When the region has no such lock.
    #[must_use]
    pub fn request(&self, node: NodeId, lock: LockId) -> PeerWord {
        assert!(lock.0 < self.geometry.locks, "lock {lock} of {}", self.geometry.locks);
        word(self.requests(node), u64::from(lock.0))
    }

    /// A node's acknowledgements, a lock state per lock.
    #[must_use]
    pub fn acks(&self, node: NodeId) -> PeerArea {
        self.per_node(self.acks_at, self.words_stride, node)
    }

    /// The grants of the manager on node `manager`: lock states, locks of node 0 first.
    #[must_use]
    pub fn grants(&self, manager: NodeId) -> PeerArea {
        self.per_node(self.grants_at, self.grants_stride, manager)
    }

    /// Index in [`Self::grants`] of the word for `lock` of `node`.
    #[must_use]
    pub fn grant_index(&self, node: NodeId, lock: LockId) -> u64 {
        assert!(lock.0 < self.geometry.locks, "lock {lock} of {}", self.geometry.locks);
        u64::from(node.0) * u64::from(self.geometry.locks) + u64::from(lock.0)
    }

    /// The ring in which node `sender` tells node `receiver` what it freed of that node's heap:
    /// [`FREE_RING_LINES`] lines, written by the sender.
    #[must_use]
    pub fn free_ring(&self, sender: NodeId, receiver: NodeId) -> PeerArea {
        self.check(sender);
        self.check(receiver);
        let ring = u64::from(sender.0) * u64::from(self.geometry.nodes) + u64::from(receiver.0);
        let ring_bytes = FREE_RING_LINES * LINE_BYTES;
        PeerArea::new(lines(self.free_rings_at + ring * ring_bytes, FREE_RING_LINES))
    }

    /// How far node `receiver` has read the ring of each sender: a word per node.
    #[must_use]
    pub fn free_tails(&self, receiver: NodeId) -> PeerArea {
        self.per_node(self.free_tails_at, PAGE_BYTES, receiver)
    }

    /// The table of named roots: [`ROOTS_MAX`] entries of [`ROOT_LINES`] lines, written under
    /// [`ROOT_LOCK`].
    #[must_use]
    pub fn roots(&self) -> PeerArea {
        PeerArea::new(lines(self.roots_at, ROOTS_MAX * ROOT_LINES))
    }

    /// Which locks are in use, written under [`LOCK_TABLE_LOCK`]: lines of [`LockSet`].
    #[must_use]
    pub fn lock_table(&self) -> PeerArea {
        PeerArea::new(lines(self.lock_table_at, LockSet::LINES))
    }

    /// Entry of a chunk in the chunk table.
    #[must_use]
    pub fn chunk_entry(&self, chunk: ChunkId) -> PeerLine<ChunkEntry> {
        assert!(chunk.0 < self.chunks, "chunk {chunk} of {}", self.chunks);
        PeerLine::new(line(self.chunk_table_at + u64::from(chunk.0) * LINE_BYTES))
    }

    /// All lines of the chunk table, for one refresh.
    #[must_use]
    pub fn chunk_table(&self) -> LineRange {
        lines(self.chunk_table_at, u64::from(self.chunks))
    }

    /// The area of a node that belongs to the layer above.
    #[must_use]
    pub fn area(&self, node: NodeId) -> PeerArea {
        self.check(node);
        let at = self.areas_at + u64::from(node.0) * self.area_stride;
        PeerArea::new(lines(at, self.geometry.area_lines))
    }

    /// Every line before the chunks that only `node` writes, and the lines of its admission. The
    /// one list of them: what a host drops from its caches when it joins (MEM-M8), and what it
    /// flushes when it leaves. A node handle gives access to these lines alone
    /// ([`Self::is_owned_by`]), so nothing that is not refreshed at joining is ever read as one's
    /// own.
    pub fn owned_by(&self, node: NodeId) -> impl Iterator<Item = LineRange> + use<> {
        let rings = u64::from(node.0) * u64::from(self.geometry.nodes);
        let ring_lines = u64::from(self.geometry.nodes) * FREE_RING_LINES;
        let parts = [
            self.node_page(node),
            self.intents(node),
            self.ballots(node),
            self.recoveries(node),
            self.requests(node),
            self.acks(node),
            self.grants(node),
            self.free_tails(node),
            self.area(node),
            // As the sender, to all receivers.
            PeerArea::new(lines(
                self.free_rings_at + rings * FREE_RING_LINES * LINE_BYTES,
                ring_lines,
            )),
        ];
        parts.into_iter().map(|part| part.range())
    }

    /// Whether all of `range` is in [`Self::owned_by`].
    pub(crate) fn is_owned_by(&self, node: NodeId, range: LineRange) -> bool {
        self.owned_by(node).any(|part| {
            part.start().bytes() <= range.start().bytes() && range.end_bytes() <= part.end_bytes()
        })
    }

    fn node_page(&self, node: NodeId) -> PeerArea {
        self.per_node(self.nodes_at, PAGE_BYTES, node)
    }

    fn node_page_line(&self, node: NodeId, index: u64) -> LineOffset {
        self.check(node);
        line(self.nodes_at + u64::from(node.0) * PAGE_BYTES + index * LINE_BYTES)
    }

    fn per_node(&self, at: u64, stride: u64, node: NodeId) -> PeerArea {
        self.check(node);
        PeerArea::new(lines(at + u64::from(node.0) * stride, stride / LINE_BYTES))
    }

    fn check(&self, node: NodeId) {
        assert!(node.0 < self.geometry.nodes, "node {node} of {}", self.geometry.nodes);
    }
}

fn pages(bytes: u64) -> Result<u64, GeometryError> {
    bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(GeometryError::Overflow)
}

fn line(at: u64) -> LineOffset {
    LineOffset::new(at).expect("parts are whole pages, and their strides whole lines")
}

fn lines(at: u64, count: u64) -> LineRange {
    LineRange::new(line(at), count).expect("the layout was checked to fit the region")
}

fn extent(offset: u64, bytes: u64) -> Extent {
    Extent::new(offset, bytes).expect("the layout was checked to fit the region")
}

fn word(area: PeerArea, index: u64) -> PeerWord {
    area.word(index).expect("the area holds a word per lock, a node page its words")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_never_overlap_and_stay_inside(
            region_bytes in 0u64..(1 << 40), nodes in 0u16..40, locks in 0u32..5000,
            chunk_shift in 10u32..32, area_lines in 0u64..(1 << 24),
        ) {
            let geometry = Geometry {
                region_bytes, nodes, locks, chunk_bytes: 1 << chunk_shift, area_lines,
                host_words: 0,
            };
            let Ok(layout) = Layout::new(geometry) else { return Ok(()) };
            let mut parts = vec![LineRange::new(line(0), SUPERBLOCK_PAGES * 64).unwrap()];
            for node in layout.nodes() {
                parts.push(layout.node_page(node).range());
                parts.push(layout.requests(node).range());
                parts.push(layout.acks(node).range());
                parts.push(layout.grants(node).range());
                parts.push(layout.area(node).range());
            }
            parts.push(layout.chunk_table());
            parts.push(LineRange::covering(layout.payload()));
            parts.sort_by_key(|part| part.start().bytes());
            for pair in parts.windows(2) {
                prop_assert!(pair[0].end_bytes() <= pair[1].start().bytes());
                prop_assert!(
                    pair[0].end_bytes().div_ceil(PAGE_BYTES) * PAGE_BYTES
                        <= pair[1].start().bytes().next_multiple_of(PAGE_BYTES)
                );
            }
            prop_assert!(parts.last().unwrap().end_bytes() <= region_bytes);
            prop_assert!(layout.chunks() >= u32::from(nodes));
        }
    }

    #[test]
    fn too_small_says_what_would_do() {
        let geometry = Geometry {
            region_bytes: 1 << 20,
            nodes: 4,
            locks: 64,
            chunk_bytes: 1 << 20,
            area_lines: 100,
            host_words: 0,
        };
        let Err(GeometryError::TooSmall { needed_bytes, .. }) = Layout::new(geometry) else {
            panic!("a region of one chunk has no room for four");
        };
        assert!(Layout::new(Geometry { region_bytes: needed_bytes, ..geometry }).is_ok());
    }
}
