//! Lines of the metadata that the device cannot read any more, from some moment of a run on.

use std::collections::BTreeMap;

use cxl_shm::layout::{Layout, LineKind};
use cxl_shm::units::LineOffset;
use cxl_shm::verify::simulated::{FailedLine, Schedule};

use crate::rack::{Cluster, wait_ms};

/// Lives of a process whose lives before were cut off. After the last it stays without the pool.
pub(crate) const LIVES: u32 = 3;
/// Lines that fail in a run.
const LINES_MAX: u64 = 3;
/// From the start to the first that fails, and from one to the next: from 1 ms to 64 ms, short and long
/// gaps as often as each other.
const GAPS: u64 = 7;

/// The parts of the metadata whose lines fail, as often as each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// The superblock, and what says which copy of it is in force.
    Superblock,
    /// What a node says of itself, and what is said for its admission.
    Node,
    /// Redo records, ballots and records of recoveries.
    Records,
    /// Requests, acknowledgements and grants of locks.
    Locks,
    /// The chunk table.
    Chunks,
    /// The line of an area with the head of its log.
    Heads,
    /// Logs, descriptors and reader words.
    Area,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Superblock,
        Self::Node,
        Self::Records,
        Self::Locks,
        Self::Chunks,
        Self::Heads,
        Self::Area,
    ];

    /// The part that the line at `at` is in; `None` when it is in none of them.
    #[must_use]
    pub fn of(layout: &Layout, at: LineOffset) -> Option<Self> {
        let place = layout.line_place(at);
        Some(match place.kind {
            LineKind::SuperblockIdentity
            | LineKind::SuperblockExtents
            | LineKind::SuperblockApplication
            | LineKind::SuperblockProfile
            | LineKind::Selector
            | LineKind::CurrentSlot => Self::Superblock,
            LineKind::Node
            | LineKind::Heartbeat
            | LineKind::HostName
            | LineKind::ManagerClaim
            | LineKind::ManagerHeartbeat
            | LineKind::RequestSummary
            | LineKind::Arrival
            | LineKind::ChunkDemand
            | LineKind::ClaimWord
            | LineKind::Reclaimer
            | LineKind::JoinMark
            | LineKind::JoinMarkHost => Self::Node,
            LineKind::IntentHead
            | LineKind::IntentImage
            | LineKind::Ballot
            | LineKind::Recovery => Self::Records,
            // Each has a word for each lock, and a page: the lines without a word are not used.
            LineKind::Requests | LineKind::Acknowledgements if place.index == 0 => Self::Locks,
            LineKind::Grants if place.index < u64::from(layout.geometry().nodes) => Self::Locks,
            LineKind::Chunk => Self::Chunks,
            LineKind::Area if place.index == 0 => Self::Heads,
            LineKind::Area => Self::Area,
            _ => return None,
        })
    }
}

/// Draws number `number` of run `seed`.
pub(crate) fn random(seed: u64, number: u64) -> u64 {
    let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ number;
    let random = random.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (random ^ random >> 31).wrapping_mul(0x94d0_49bb_1331_11eb) >> 7
}

/// Lines of the metadata in which something was written by now, by their parts.
fn lines_in_use(cluster: &Cluster) -> BTreeMap<Part, Vec<LineOffset>> {
    let layout = Layout::new(cluster.geometry()).unwrap_or_else(|error| panic!("{error}"));
    let metadata = cluster.rack.device_bytes(layout.metadata());
    let mut lines: BTreeMap<Part, Vec<LineOffset>> = BTreeMap::new();
    for (bytes, at) in metadata.chunks(64).zip((0_u64..).step_by(64)) {
        let at = LineOffset::new(at).filter(|_| bytes.iter().any(|byte| *byte != 0));
        if let Some(at) = at
            && let Some(part) = Part::of(&layout, at)
        {
            lines.entry(part).or_default().push(at);
        }
    }
    lines
}

/// Host 0 has a task that makes lines fail. It asks for none of them.
pub(crate) fn with_failing_lines(schedule: Schedule, cluster: &Cluster, seed: u64) -> Schedule {
    let cluster = cluster.clone();
    schedule.daemon(0, "failing lines", move |_| {
        let clock = cluster.clock(0);
        for number in 0..1 + random(seed, 0) % LINES_MAX {
            let draw = |what: u64| random(seed, 1 + number * 8 + what);
            wait_ms(&clock, 1 << (draw(0) % GAPS));
            let lines = lines_in_use(&cluster);
            let parts = lines.len() as u64;
            let part = lines.values().nth(usize::try_from(draw(1) % parts).unwrap_or(0));
            let Some(part) = part else { continue };
            let line = part[usize::try_from(draw(2) % part.len() as u64).unwrap_or(0)];
            let how = FailedLine {
                heals: draw(3).is_multiple_of(2),
                takes_page: draw(4).is_multiple_of(4),
            };
            cluster.rack.fail(line, how);
        }
        loop {
            wait_ms(&clock, 1000);
        }
    })
}
