//! What a node says of itself, for tools of any host: four lines, which repeat a number so that a
//! reader sees lines of one time.

use bytemuck::{Pod, Zeroable};
use cxl_shm::fabric::{Fabric, LineError, OwnedArea, OwnedLine, PeerArea, PublishBatch, Record};
use cxl_shm::node::HEARTBEAT_MS;
use cxl_shm::units::Incarnation;

use super::halves;

/// Lines of a summary.
pub(super) const SUMMARY_LINES: u64 = 4;
/// Looks at lines that are being written.
const LOOKS: u32 = 4;

/// What the processes of a host have done together since the host joined, and what its node has in
/// the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSummary {
    /// The life of the node that says so. What an earlier life said is no news of this one.
    pub incarnation: Incarnation,
    /// Grows with every summary of this life, about twice a second while a process of the host lives.
    pub number: u32,
    /// The heartbeat of the node when it said so. Its distance to the heartbeat of now tells how old
    /// the summary is, and no clocks of two hosts are compared.
    pub heartbeat: u64,
    /// Blocks of the node that can be read.
    pub ready_blocks: u64,
    /// Blocks of the node that are being written.
    pub writing_blocks: u64,
    /// Bytes of the payload slots that blocks take.
    pub used_bytes: u64,
    /// Bytes of the payload slots that are free.
    pub free_bytes: u64,
    /// Chunks that the node owns for blocks.
    pub chunks: u32,
    /// Holds of processes of the host that are in force: one for each process and block.
    pub holds: u32,
    /// Lookups of a prefix.
    pub lookups: u64,
    /// Blocks that were looked up.
    pub lookup_blocks: u64,
    /// Blocks of those that the caller got.
    pub lookup_hits: u64,
    /// Blocks that were fetched and valid.
    pub fetched_blocks: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Blocks that were found, and could not be fetched or held.
    pub misses: u64,
    /// Blocks that were published, but for those from a drive.
    pub published_blocks: u64,
    /// Their bytes.
    pub published_bytes: u64,
    /// Blocks that were published from a drive.
    pub promoted_blocks: u64,
    /// Their bytes.
    pub promoted_bytes: u64,
    /// Blocks that were evicted.
    pub evicted_blocks: u64,
    /// Complete blocks that left the pool, for whatever reason.
    pub removed_blocks: u64,
    /// Blocks of the misses that were damaged in memory: descriptors or bytes that were not those
    /// that were published.
    pub damaged_blocks: u64,
    /// Pages of payload that the device could not read.
    pub memory_faults: u64,
    /// Processes that ended without leaving.
    pub ended_processes: u64,
}

/// What a tool sees of the summary of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SummarySeen {
    /// The node has never said anything.
    Nothing,
    /// The node has said so. Whether it still lives is for its heartbeat to show.
    Told(NodeSummary),
    /// The lines cannot be read: they are damaged, or their host died while it wrote them.
    Unreadable,
}

impl SummarySeen {
    /// The summary, if `incarnation` of the node has told it.
    #[must_use]
    pub fn of(self, incarnation: Incarnation) -> Option<NodeSummary> {
        match self {
            Self::Told(summary) if summary.incarnation == incarnation => Some(summary),
            _ => None,
        }
    }
}

/// A line of figures: number and incarnation, then six figures.
trait FigureLine: Record {
    fn of(words: [u64; 7]) -> Self;
    fn words(&self) -> [u64; 7];
}

macro_rules! figure_line {
    ($name:ident, $kind:literal) => {
        #[derive(Clone, Copy, Debug, Pod, Zeroable)]
        #[repr(C)]
        struct $name([u64; 7]);

        impl Record for $name {
            const KIND: u32 = u32::from_le_bytes(*$kind);
        }

        impl FigureLine for $name {
            fn of(words: [u64; 7]) -> Self {
                Self(words)
            }

            fn words(&self) -> [u64; 7] {
                self.0
            }
        }
    };
}

figure_line!(PoolLine, b"sump");
figure_line!(ReadLine, b"sumr");
figure_line!(WriteLine, b"sumw");
figure_line!(TroubleLine, b"sumt");

impl NodeSummary {
    /// About how many milliseconds ago the node said so, when its heartbeat is `heartbeat` now.
    #[must_use]
    pub fn age_ms(&self, heartbeat: u64) -> u64 {
        heartbeat.saturating_sub(self.heartbeat).saturating_mul(HEARTBEAT_MS)
    }

    fn encode(&self) -> [[u64; 7]; 4] {
        let first = u64::from(self.number) << 32 | u64::from(self.incarnation.0);
        [
            [
                first,
                self.heartbeat,
                self.ready_blocks,
                self.writing_blocks,
                self.used_bytes,
                self.free_bytes,
                u64::from(self.holds) << 32 | u64::from(self.chunks),
            ],
            [
                first,
                self.lookups,
                self.lookup_blocks,
                self.lookup_hits,
                self.fetched_blocks,
                self.fetched_bytes,
                self.misses,
            ],
            [
                first,
                self.published_blocks,
                self.published_bytes,
                self.promoted_blocks,
                self.promoted_bytes,
                self.evicted_blocks,
                self.removed_blocks,
            ],
            [first, self.damaged_blocks, self.memory_faults, self.ended_processes, 0, 0, 0],
        ]
    }

    /// What four lines say; `None` when they are of different summaries.
    fn decode([pool, reads, writes, troubles]: [[u64; 7]; 4]) -> Option<Self> {
        let first = pool[0];
        if [reads, writes, troubles].iter().any(|line| line[0] != first) {
            return None;
        }
        let (incarnation, number) = halves(first);
        let [_, heartbeat, ready_blocks, writing_blocks, used_bytes, free_bytes, counts] = pool;
        let (chunks, holds) = halves(counts);
        let [_, lookups, lookup_blocks, lookup_hits, fetched_blocks, fetched_bytes, misses] = reads;
        let [
            _,
            published_blocks,
            published_bytes,
            promoted_blocks,
            promoted_bytes,
            evicted_blocks,
            removed_blocks,
        ] = writes;
        let [_, damaged_blocks, memory_faults, ended_processes, ..] = troubles;
        Some(Self {
            incarnation: Incarnation(incarnation),
            number,
            heartbeat,
            ready_blocks,
            writing_blocks,
            used_bytes,
            free_bytes,
            chunks,
            holds,
            lookups,
            lookup_blocks,
            lookup_hits,
            fetched_blocks,
            fetched_bytes,
            misses,
            published_blocks,
            published_bytes,
            promoted_blocks,
            promoted_bytes,
            evicted_blocks,
            removed_blocks,
            damaged_blocks,
            memory_faults,
            ended_processes,
        })
    }
}

/// The summary of a node, as any host may read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSummary {
    pub(crate) part: PeerArea,
}

impl PeerSummary {
    /// What the node says, freshly read. Lines that are being written are looked at again.
    pub(crate) fn look(&self, fabric: &impl Fabric) -> SummarySeen {
        let mut seen = SummarySeen::Unreadable;
        for _ in 0..LOOKS {
            fabric.refresh(self.part.range());
            seen = self.cached(fabric);
            if seen != SummarySeen::Unreadable {
                break;
            }
        }
        seen
    }

    fn lines(&self, fabric: &impl Fabric) -> [Result<[u64; 7], LineError>; 4] {
        [
            words_of::<PoolLine>(&self.part, 0, fabric),
            words_of::<ReadLine>(&self.part, 1, fabric),
            words_of::<WriteLine>(&self.part, 2, fabric),
            words_of::<TroubleLine>(&self.part, 3, fabric),
        ]
    }

    /// What this host's caches hold of it.
    pub(crate) fn cached(&self, fabric: &impl Fabric) -> SummarySeen {
        let lines = self.lines(fabric);
        match lines {
            [Ok(pool), Ok(reads), Ok(writes), Ok(troubles)] => {
                NodeSummary::decode([pool, reads, writes, troubles])
                    .map_or(SummarySeen::Unreadable, SummarySeen::Told)
            }
            _ if lines.iter().all(|line| matches!(line, Err(LineError::Blank { .. }))) => {
                SummarySeen::Nothing
            }
            _ => SummarySeen::Unreadable,
        }
    }
}

fn words_of<T: FigureLine>(
    part: &PeerArea,
    line: u64,
    fabric: &impl Fabric,
) -> Result<[u64; 7], LineError> {
    let line = part.line::<T>(line).expect("an area has room for its summary");
    line.cached(fabric).map(|line| line.words())
}

/// This node's own summary. Written under the heap lock (BLOCK-E1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnSummary {
    pub(super) part: OwnedArea,
}

impl OwnSummary {
    /// The number of the last summary that this life of the node has begun to tell; 0 when there is none.
    /// Lines that a dead process left of it have that number, and no other summary gets it.
    pub(crate) fn number(&self, incarnation: Incarnation, fabric: &impl Fabric) -> u32 {
        let lines = PeerSummary { part: self.part.peer() }.lines(fabric);
        let firsts = lines.iter().flatten().map(|words| halves(words[0]));
        let of_this_life = firsts.filter(|(life, _)| *life == incarnation.0);
        of_this_life.map(|(_, number)| number).max().unwrap_or(0)
    }

    /// Says so, with one fence.
    pub(crate) fn say(&self, fabric: &impl Fabric, summary: &NodeSummary) {
        let [pool, reads, writes, troubles] = summary.encode();
        let mut batch = PublishBatch::new(fabric);
        batch.line(self.line(0), &PoolLine::of(pool));
        batch.line(self.line(1), &ReadLine::of(reads));
        batch.line(self.line(2), &WriteLine::of(writes));
        batch.line(self.line(3), &TroubleLine::of(troubles));
        batch.publish();
    }

    fn line<T: FigureLine>(&self, index: u64) -> OwnedLine<T> {
        self.part.line(index).expect("an area has room for its summary")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_survives_its_lines_and_lines_of_two_are_none() {
        let mut next = 0;
        let mut figure = || {
            next += 1;
            next
        };
        let summary = NodeSummary {
            incarnation: Incarnation(7),
            number: 9,
            heartbeat: figure(),
            ready_blocks: figure(),
            writing_blocks: figure(),
            used_bytes: figure(),
            free_bytes: figure(),
            chunks: 101,
            holds: 102,
            lookups: figure(),
            lookup_blocks: figure(),
            lookup_hits: figure(),
            fetched_blocks: figure(),
            fetched_bytes: figure(),
            misses: figure(),
            published_blocks: figure(),
            published_bytes: figure(),
            promoted_blocks: figure(),
            promoted_bytes: figure(),
            evicted_blocks: figure(),
            removed_blocks: figure(),
            damaged_blocks: figure(),
            memory_faults: figure(),
            ended_processes: figure(),
        };
        let lines = summary.encode();
        assert_eq!(NodeSummary::decode(lines), Some(summary));
        let later = NodeSummary { number: 10, ..summary }.encode();
        for (line, words) in later.into_iter().enumerate() {
            let mut mixed = lines;
            mixed[line] = words;
            assert_eq!(NodeSummary::decode(mixed), None, "line {line}");
        }
        assert_eq!(SummarySeen::Told(summary).of(Incarnation(7)), Some(summary));
        assert_eq!(SummarySeen::Told(summary).of(Incarnation(8)), None);
        let now = summary.heartbeat + 100;
        assert_eq!((summary.age_ms(now), summary.age_ms(0)), (1000, 0));
    }
}
