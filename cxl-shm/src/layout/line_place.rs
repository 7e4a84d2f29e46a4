//! Which line of a region is which: for tools that check lines, or show them to people.

use super::superblock::{CURRENT_AT, SELECTOR_AT, SLOT_LINES, SlotLine, check_slot_line};
use super::{
    BallotRecord, ChunkEntry, DOUBLE_BUFFER_LINES, FREE_RING_LINES, HostName, INTENT_LINES,
    IntentRecord, JOIN_MARKS, JoinMarkHost, LINE_ARRIVAL, LINE_CHUNK_DEMAND, LINE_CLAIM_WORD,
    LINE_HEARTBEAT, LINE_HOST_NAME, LINE_JOIN_MARK_HOSTS, LINE_JOIN_MARKS, LINE_MANAGER,
    LINE_MANAGER_HEARTBEAT, LINE_NODE, LINE_RECLAIMER, LINE_SUMMARY, Layout, LockSet, NodeLine,
    ROOT_LINES, ROOTS_BYTES, RecoveryRecord, RootHead, RootName,
};
use crate::fabric::{LineError, LineWords, Record, unseal};
use crate::units::{LINE_BYTES, LineOffset, LineRange, NodeId, PAGE_BYTES};

/// What a line of a region holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LineKind {
    /// Of a slot of the superblock: identity, extents, words of the layer above, platform profile.
    SuperblockIdentity,
    /// See [`Self::SuperblockIdentity`].
    SuperblockExtents,
    /// See [`Self::SuperblockIdentity`].
    SuperblockApplication,
    /// See [`Self::SuperblockIdentity`].
    SuperblockProfile,
    /// Says that there is a region at all.
    Selector,
    /// Says which slot of the superblock is in force.
    CurrentSlot,
    /// State and incarnation of a node.
    Node,
    /// A word that changes while a node lives.
    Heartbeat,
    /// Name of a node's host.
    HostName,
    /// Claim of a lock manager.
    ManagerClaim,
    /// A word that changes while a lock manager lives.
    ManagerHeartbeat,
    /// The last request of a node for a lock.
    RequestSummary,
    /// The life of a node that is joining.
    Arrival,
    /// How many chunks a node asks others for.
    ChunkDemand,
    /// The host that came last for a node slot.
    ClaimWord,
    /// The node whose reclaimer this host is.
    Reclaimer,
    /// A host that comes for a node slot.
    JoinMark,
    /// The same host in full.
    JoinMarkHost,
    /// Head of a redo record.
    IntentHead,
    /// A line that a redo record writes.
    IntentImage,
    /// What a node promised and accepted about the death of another.
    Ballot,
    /// How far a node is with the recovery of another.
    Recovery,
    /// A node's requests for locks, a word a lock.
    Requests,
    /// A node's acknowledgements, a word a lock.
    Acknowledgements,
    /// The grants of a lock manager, a word a node and lock.
    Grants,
    /// How many objects a node freed, in the ring to another node.
    FreeRing,
    /// How far a node has read the rings of others, a word a node.
    FreeTails,
    /// Head of a named root.
    RootHead,
    /// A part of the name of a root.
    RootName,
    /// Which locks are in use.
    LockTable,
    /// Whose a chunk is.
    Chunk,
    /// Of the area of a node: what is there is for the layer above to say.
    Area,
    /// Payload or a heap.
    Payload,
    /// Of no part.
    Unused,
}

/// Which line of its kind a line is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinePlace {
    /// What it holds.
    pub kind: LineKind,
    /// The node whose line it is, if it is one's.
    pub node: Option<NodeId>,
    /// The number of the line among those of its kind and node: of a lock, victim, root, chunk, slot of
    /// the superblock, or of the line.
    pub index: u64,
}

impl Layout {
    /// What the line at `at` is.
    #[must_use]
    pub fn line_place(&self, at: LineOffset) -> LinePlace {
        let bytes = at.bytes();
        let whole = |kind, index| LinePlace { kind, node: None, index };
        let nodes = u64::from(self.geometry.nodes);
        if bytes < self.nodes_at {
            return superblock_place(bytes);
        }
        let per_node = [
            (self.nodes_at, PAGE_BYTES, node_line_place as fn(u64) -> (LineKind, u64)),
            (self.intents_at, super::INTENTS_STRIDE, |line| match line % INTENT_LINES {
                0 => (LineKind::IntentHead, line / INTENT_LINES),
                _ => (LineKind::IntentImage, line / INTENT_LINES),
            }),
            (self.ballots_at, self.lines_stride, |line| (LineKind::Ballot, line / 2)),
            (self.recoveries_at, self.lines_stride, |line| (LineKind::Recovery, line / 2)),
            (self.requests_at, self.words_stride, |line| (LineKind::Requests, line)),
            (self.acks_at, self.words_stride, |line| (LineKind::Acknowledgements, line)),
            (self.grants_at, self.grants_stride, |line| (LineKind::Grants, line)),
            (self.free_rings_at, nodes * FREE_RING_LINES * LINE_BYTES, |line| {
                (LineKind::FreeRing, line)
            }),
            (self.free_tails_at, PAGE_BYTES, |line| (LineKind::FreeTails, line)),
            (self.areas_at, self.area_stride, |line| (LineKind::Area, line)),
        ];
        for (start, stride, of_line) in per_node {
            let Some(from_start) = bytes.checked_sub(start).filter(|_| stride > 0) else {
                continue;
            };
            let Ok(node) = u16::try_from(from_start / stride) else { continue };
            let Some(node) = self.node(node) else { continue };
            let (kind, index) = of_line(from_start % stride / LINE_BYTES);
            let is_record = matches!(kind, LineKind::Ballot | LineKind::Recovery);
            if is_record && index >= nodes {
                return whole(LineKind::Unused, 0);
            }
            return LinePlace { kind, node: Some(node), index };
        }
        let within = |start: u64, length: u64| {
            bytes.checked_sub(start).filter(|it| *it < length).map(|it| it / LINE_BYTES)
        };
        if let Some(line) = within(self.roots_at, ROOTS_BYTES) {
            let head = line % ROOT_LINES == 0;
            return whole(
                if head { LineKind::RootHead } else { LineKind::RootName },
                line / ROOT_LINES,
            );
        }
        if let Some(line) = within(self.lock_table_at, LockSet::LINES * LINE_BYTES) {
            return whole(LineKind::LockTable, line);
        }
        if let Some(line) = within(self.chunk_table_at, u64::from(self.chunks) * LINE_BYTES) {
            return whole(LineKind::Chunk, line);
        }
        match within(self.chunks_at, self.payload().bytes()) {
            Some(line) => whole(LineKind::Payload, line / (self.geometry.chunk_bytes / LINE_BYTES)),
            None => whole(LineKind::Unused, 0),
        }
    }

    /// Every line before the areas, the lines of the superblock's spare slot among them.
    pub fn metadata_lines(&self) -> impl Iterator<Item = LineRange> + use<> {
        let end =
            LineRange::new(LineOffset::new(0).expect("the first line"), self.areas_at / LINE_BYTES);
        end.into_iter().flat_map(|all| all.parts(PAGE_BYTES))
    }
}

fn superblock_place(bytes: u64) -> LinePlace {
    let (slot, line) = (bytes / PAGE_BYTES, bytes % PAGE_BYTES / LINE_BYTES);
    let kind = match (bytes, line) {
        (SELECTOR_AT, _) => LineKind::Selector,
        (CURRENT_AT, _) => LineKind::CurrentSlot,
        (SELECTOR_AT.., _) | (_, SLOT_LINES..) => LineKind::Unused,
        (_, 0) => LineKind::SuperblockIdentity,
        (_, 1) => LineKind::SuperblockExtents,
        (_, 2) => LineKind::SuperblockApplication,
        (_, _) => LineKind::SuperblockProfile,
    };
    LinePlace { kind, node: None, index: slot }
}

fn node_line_place(line: u64) -> (LineKind, u64) {
    const MARKS_END: u64 = LINE_JOIN_MARKS + JOIN_MARKS;
    const HOSTS_END: u64 = LINE_JOIN_MARK_HOSTS + JOIN_MARKS;
    let kind = match line {
        LINE_NODE => LineKind::Node,
        LINE_HEARTBEAT => LineKind::Heartbeat,
        LINE_HOST_NAME => LineKind::HostName,
        LINE_MANAGER => LineKind::ManagerClaim,
        LINE_MANAGER_HEARTBEAT => LineKind::ManagerHeartbeat,
        LINE_SUMMARY => LineKind::RequestSummary,
        LINE_ARRIVAL => LineKind::Arrival,
        LINE_CHUNK_DEMAND => LineKind::ChunkDemand,
        LINE_CLAIM_WORD => LineKind::ClaimWord,
        LINE_RECLAIMER => LineKind::Reclaimer,
        LINE_JOIN_MARKS..MARKS_END => return (LineKind::JoinMark, line - LINE_JOIN_MARKS),
        LINE_JOIN_MARK_HOSTS..HOSTS_END => {
            return (LineKind::JoinMarkHost, line - LINE_JOIN_MARK_HOSTS);
        }
        _ => LineKind::Unused,
    };
    (kind, 0)
}

/// Of a double-buffered record: both lines must be unreadable before it is.
const _: () = assert!(DOUBLE_BUFFER_LINES == 2, "a ballot and a recovery have two lines");

impl LineKind {
    /// Whether the line has a seal.
    #[must_use]
    pub fn is_sealed(self) -> bool {
        self.check(LineOffset::new(0).expect("the first line"), &[0; 8]).is_some()
    }

    /// Whether `words`, read at `at`, hold a record of this kind; `None` when lines of this kind have no
    /// seal, and every value is one.
    #[must_use]
    pub fn check(self, at: LineOffset, words: &LineWords) -> Option<Result<(), LineError>> {
        fn of<T: Record>(at: LineOffset, words: &LineWords) -> Option<Result<(), LineError>> {
            Some(unseal::<T>(at, words).map(|_| ()))
        }
        match self {
            Self::SuperblockIdentity => Some(check_slot_line(SlotLine::Identity, at, words)),
            Self::SuperblockExtents => Some(check_slot_line(SlotLine::Extents, at, words)),
            Self::SuperblockApplication => Some(check_slot_line(SlotLine::Application, at, words)),
            Self::SuperblockProfile => Some(check_slot_line(SlotLine::Profile, at, words)),
            Self::Selector => Some(check_slot_line(SlotLine::Selector, at, words)),
            Self::Node => of::<NodeLine>(at, words),
            Self::HostName => of::<HostName>(at, words),
            Self::JoinMarkHost => of::<JoinMarkHost>(at, words),
            Self::IntentHead => of::<IntentRecord>(at, words),
            Self::Ballot => of::<BallotRecord>(at, words),
            Self::Recovery => of::<RecoveryRecord>(at, words),
            Self::RootHead => of::<RootHead>(at, words),
            Self::RootName => of::<RootName>(at, words),
            Self::LockTable => of::<LockSet>(at, words),
            Self::Chunk => of::<ChunkEntry>(at, words),
            _ => None,
        }
    }

    /// The kind in words, for people.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::SuperblockIdentity => "superblock: identity",
            Self::SuperblockExtents => "superblock: extents",
            Self::SuperblockApplication => "superblock: words of the cache",
            Self::SuperblockProfile => "superblock: platform profile",
            Self::Selector => "superblock: selector",
            Self::CurrentSlot => "superblock: slot in force",
            Self::Node => "state of a node",
            Self::Heartbeat => "heartbeat of a node",
            Self::HostName => "host name of a node",
            Self::ManagerClaim => "claim of a lock manager",
            Self::ManagerHeartbeat => "heartbeat of a lock manager",
            Self::RequestSummary => "last request of a node for a lock",
            Self::Arrival => "life of a node that joins",
            Self::ChunkDemand => "chunks that a node asks for",
            Self::ClaimWord => "claim of a node slot",
            Self::Reclaimer => "reclaimer",
            Self::JoinMark => "join mark",
            Self::JoinMarkHost => "host of a join mark",
            Self::IntentHead => "head of a redo record",
            Self::IntentImage => "image of a redo record",
            Self::Ballot => "ballot about a death",
            Self::Recovery => "progress of a recovery",
            Self::Requests => "requests for locks",
            Self::Acknowledgements => "acknowledgements of locks",
            Self::Grants => "grants of locks",
            Self::FreeRing => "ring of freed objects",
            Self::FreeTails => "progress in rings of freed objects",
            Self::RootHead => "named root",
            Self::RootName => "name of a root",
            Self::LockTable => "table of locks",
            Self::Chunk => "chunk",
            Self::Area => "area of a node",
            Self::Payload => "payload",
            Self::Unused => "unused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::units::{ChunkId, LockId};

    #[test]
    fn each_line_is_found_where_the_layout_has_it() {
        let geometry = Geometry {
            region_bytes: 4 << 20,
            nodes: 3,
            locks: 40,
            chunk_bytes: 64 << 10,
            area_lines: 100,
            host_words: 0,
        };
        let layout = Layout::new(geometry).unwrap();
        let place = |at: LineOffset| layout.line_place(at);
        let of = |kind, node, index| LinePlace { kind, node, index };
        for node in layout.nodes() {
            let some = Some(node);
            assert_eq!(place(layout.node_line(node).at()), of(LineKind::Node, some, 0));
            assert_eq!(place(layout.host_name(node).at()), of(LineKind::HostName, some, 0));
            let heartbeat = layout.heartbeat(node).range().start();
            assert_eq!(place(heartbeat), of(LineKind::Heartbeat, some, 0));
            assert_eq!(
                place(layout.join_mark_host(node, 3).at()),
                of(LineKind::JoinMarkHost, some, 3)
            );
            let starts = [
                (layout.intents(node), LineKind::IntentHead),
                (layout.ballots(node), LineKind::Ballot),
                (layout.recoveries(node), LineKind::Recovery),
                (layout.requests(node), LineKind::Requests),
                (layout.acks(node), LineKind::Acknowledgements),
                (layout.grants(node), LineKind::Grants),
                (layout.free_ring(node, NodeId(0)), LineKind::FreeRing),
                (layout.free_tails(node), LineKind::FreeTails),
                (layout.area(node), LineKind::Area),
            ];
            for (area, kind) in starts {
                assert_eq!(place(area.range().start()), of(kind, some, 0));
            }
            let request = layout.request(node, LockId(39)).range().start();
            assert_eq!(place(request), of(LineKind::Requests, some, 4));
            let image = layout.intents(node).range().iter().nth(8 + 5).unwrap();
            assert_eq!(place(image), of(LineKind::IntentImage, some, 1));
            let ballot = layout.ballots(node).range().iter().nth(3).unwrap();
            assert_eq!(place(ballot), of(LineKind::Ballot, some, 1));
        }
        for chunk in 0..layout.chunks() {
            let at = layout.chunk_entry(ChunkId(chunk)).at();
            assert_eq!(place(at), of(LineKind::Chunk, None, u64::from(chunk)));
            let payload = layout.chunk_area(ChunkId(chunk)).range().start();
            assert_eq!(place(payload), of(LineKind::Payload, None, u64::from(chunk)));
        }
        let root = layout.roots().range().iter().nth(4 * 7).unwrap();
        assert_eq!(place(root), of(LineKind::RootHead, None, 7));
        assert_eq!(
            place(LineOffset::new(4096 + 128).unwrap()).kind,
            LineKind::SuperblockApplication
        );
        assert_eq!(place(LineOffset::new(8192).unwrap()).kind, LineKind::Selector);
        assert_eq!(place(LineOffset::new(8192 + 64).unwrap()).kind, LineKind::CurrentSlot);
        let last = layout.metadata_lines().last().unwrap();
        assert_eq!(last.end_bytes(), layout.areas_at);
    }
}
