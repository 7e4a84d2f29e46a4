//! What a node's area has about the drives of its host: all of it hints.
//!
//! ```text
//! line 0      word 0: head of the drive log; word 1: lives of the agent; word 2: its beat
//! line 1-5    what the agent says of itself
//! line 6 ..   drive log: entries as in the publication log, two a line
//! ..          drive directory: two entries a line
//! ..          counts of requests: a word for each node that is asked
//! ..          requests: a ring of lines for each node that is asked
//! ..          answers: a word for each line of each node that asks
//! ..          clears: a word for each node, the last directive that its drives have carried out
//! ```
//!
//! The agent alone writes the first three parts, the answers and the last part. Counts and requests are written
//! under the heap lock by any process of the host.

mod agent_line;
mod entry;
mod geometry;
mod request;

use cxl_shm::fabric::{
    Fabric, OwnedArea, OwnedLine, OwnedWord, PeerArea, PeerLine, PeerWord, PublishBatch,
};
use cxl_shm::units::{LINE_WORDS, LineRange, NodeId, WORD_BYTES};

use super::log::{ENTRIES_A_LINE as LOG_ENTRIES_A_LINE, OwnLog, PeerLog};
use agent_line::{
    AGENT_LINES, AgentRecords, DrivesLine, OutcomesLine, ScheduleLine, StateLine, WorkLine,
};
pub use agent_line::{AgentLine, AgentSeen};
pub(crate) use entry::DriveEntry;
use entry::{ENTRIES_A_LINE, ENTRY_WORDS};
pub use geometry::{DRIVE_REQUESTS_MAX, DRIVE_SLOTS_MAX, DriveGeometry};
pub(crate) use geometry::{FORWARD_ROW_WORDS, FORWARD_ROWS, ROW_WORDS, TABLE_HEADER_WORDS};
pub(crate) use request::{NUMBER_MAX, RequestLine, answer_word, answered_number, answered_outcome};
pub use request::{RestoreOutcome, RestoreRequest};

const HEAD_WORD: u64 = 0;
const LIFE_WORD: u64 = 1;
const BEAT_WORD: u64 = 2;
const AGENT_FIRST: u64 = 1;
const LOG_FIRST: u64 = AGENT_FIRST + AGENT_LINES;

/// First lines and lengths of the parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DrivePlan {
    pub(crate) geometry: DriveGeometry,
    pub(crate) nodes: u16,
}

impl DrivePlan {
    pub(super) fn lines(self) -> u64 {
        self.clears_first() + u64::from(self.nodes).div_ceil(LINE_WORDS as u64)
    }

    fn clears_first(self) -> u64 {
        self.answers_first() + self.requests().div_ceil(LINE_WORDS as u64)
    }

    fn clear_word(self, asking: NodeId) -> u64 {
        self.clears_first() * LINE_WORDS as u64 + asking.index() as u64
    }

    fn log_lines(self) -> u64 {
        u64::from(self.geometry.log_entries()) / LOG_ENTRIES_A_LINE
    }

    fn directory_first(self) -> u64 {
        LOG_FIRST + self.log_lines()
    }

    fn counts_first(self) -> u64 {
        self.directory_first() + u64::from(self.geometry.slots()) / ENTRIES_A_LINE
    }

    fn requests_first(self) -> u64 {
        self.counts_first() + u64::from(self.nodes).div_ceil(LINE_WORDS as u64)
    }

    /// Lines of requests to all nodes.
    fn requests(self) -> u64 {
        u64::from(self.nodes) * self.ring()
    }

    fn answers_first(self) -> u64 {
        self.requests_first() + self.requests()
    }

    /// Requests to a node that may be unanswered.
    pub(crate) fn ring(self) -> u64 {
        u64::from(self.geometry.request_slots())
    }

    fn count_word(self, answering: NodeId) -> u64 {
        self.counts_first() * LINE_WORDS as u64 + answering.index() as u64
    }

    fn request_line(self, answering: NodeId, number: u64) -> u64 {
        self.requests_first() + answering.index() as u64 * self.ring() + number % self.ring()
    }

    fn answer_word(self, asking: NodeId, number: u64) -> u64 {
        let slot = asking.index() as u64 * self.ring() + number % self.ring();
        self.answers_first() * LINE_WORDS as u64 + slot
    }

    fn entry_word(self, slot: u32) -> u64 {
        self.directory_first() * LINE_WORDS as u64 + u64::from(slot) * ENTRY_WORDS
    }
}

/// What one node says of drives, as any host may read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerDrives {
    pub(super) part: PeerArea,
    pub(super) plan: DrivePlan,
}

impl PeerDrives {
    /// How many entries its drive log ever had.
    pub(crate) fn head(&self) -> PeerWord {
        self.word(HEAD_WORD)
    }

    /// How many lives its agent had.
    pub(crate) fn life(&self) -> PeerWord {
        self.word(LIFE_WORD)
    }

    /// Counts up while its agent lives; 0 once the agent has stopped.
    pub(crate) fn beat(&self) -> PeerWord {
        self.word(BEAT_WORD)
    }

    pub(crate) fn log(&self) -> PeerLog {
        PeerLog::new(self.lines(LOG_FIRST, self.plan.log_lines()))
    }

    /// The lines of `slots` entries from `first` on, both even.
    pub(crate) fn entries(&self, first: u32, slots: u32) -> LineRange {
        let [first, slots] = [first, slots].map(|it| u64::from(it) / ENTRIES_A_LINE);
        self.lines(self.plan.directory_first() + first, slots).range()
    }

    /// An entry of its directory as this host's caches hold it; `None` when it is blank.
    pub(crate) fn entry(&self, fabric: &impl Fabric, slot: u32) -> Option<DriveEntry> {
        let first = self.plan.entry_word(slot);
        let mut words = [0; 4];
        for (index, word) in (first..).zip(&mut words) {
            *word = self.word(index).cached(fabric);
        }
        DriveEntry::decode(words, self.part.range().start().bytes() + first * WORD_BYTES)
    }

    /// The words of an entry of its directory.
    pub(crate) fn entry_words(&self, slot: u32) -> impl Iterator<Item = PeerWord> + use<> {
        let (peer, first) = (*self, self.plan.entry_word(slot));
        (first..first + ENTRY_WORDS).map(move |index| peer.word(index))
    }

    /// Whether its node ever had an agent, as this host's caches hold it.
    pub(crate) fn has_lived(&self, fabric: &impl Fabric) -> bool {
        self.life().cached(fabric) != 0
    }

    /// How many requests to `answering` its node ever had.
    pub(crate) fn requests(&self, answering: NodeId) -> PeerWord {
        self.word(self.plan.count_word(answering))
    }

    /// Its node's request `number` to `answering`.
    pub(crate) fn request(&self, answering: NodeId, number: u64) -> PeerLine<RequestLine> {
        let line = self.part.line(self.plan.request_line(answering, number));
        line.expect("an area has room for its requests")
    }

    /// The answer to request `number` of `asking`.
    pub(crate) fn answer(&self, asking: NodeId, number: u64) -> PeerWord {
        self.word(self.plan.answer_word(asking, number))
    }

    /// The last directive of `asking` of which its drives have nothing any more (CLEAR-D8).
    pub(crate) fn cleared(&self, asking: NodeId) -> PeerWord {
        self.word(self.plan.clear_word(asking))
    }

    /// What its agent says of itself, freshly read; `None` when no agent ever did, or the lines
    /// cannot be read.
    pub(crate) fn agent(&self, fabric: &impl Fabric) -> Option<AgentSeen> {
        fabric.refresh(self.states());
        self.agent_cached(fabric)
    }

    /// The lines of its words and of what its agent says of itself.
    pub(crate) fn states(&self) -> LineRange {
        self.lines(0, LOG_FIRST).range()
    }

    pub(crate) fn agent_cached(&self, fabric: &impl Fabric) -> Option<AgentSeen> {
        let part = self.lines(AGENT_FIRST, AGENT_LINES);
        let state = part.line::<StateLine>(0)?.cached(fabric).ok()?;
        let work = part.line::<WorkLine>(1)?.cached(fabric).ok()?;
        let outcomes = part.line::<OutcomesLine>(2)?.cached(fabric).ok()?;
        let schedule = part.line::<ScheduleLine>(3)?.cached(fabric).ok()?;
        let drives = part.line::<DrivesLine>(4)?.cached(fabric).ok()?;
        let line = AgentLine::decode(&AgentRecords { state, work, outcomes, schedule, drives })?;
        let life = u32::try_from(self.life().cached(fabric)).unwrap_or(0);
        Some(AgentSeen { life, beat: self.beat().cached(fabric), line })
    }

    /// Whether its drives may have blocks, as this host's caches hold it: it had an agent, which has
    /// not stopped with empty drives.
    pub(crate) fn has_agent(&self, fabric: &impl Fabric) -> bool {
        let seen = self.agent_cached(fabric);
        // An agent that has not read all tables does not know what its drives have.
        let is_empty = |it: &AgentSeen| {
            !it.line.is_unread && it.line.blocks.max(it.line.announced_blocks) == 0
        };
        self.life().cached(fabric) != 0
            && !seen.is_some_and(|seen| !seen.line.runs && is_empty(&seen))
    }

    fn word(&self, index: u64) -> PeerWord {
        self.part.word(index).expect("an area has room for what it says of drives")
    }

    fn lines(&self, first: u64, lines: u64) -> PeerArea {
        self.part.part(first, lines).expect("an area has room for what it says of drives")
    }
}

/// What this node says of drives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnDrives {
    pub(super) part: OwnedArea,
    pub(super) plan: DrivePlan,
}

impl OwnDrives {
    pub(crate) fn life(&self) -> OwnedWord {
        self.word(LIFE_WORD)
    }

    pub(crate) fn beat(&self) -> OwnedWord {
        self.word(BEAT_WORD)
    }

    pub(crate) fn log(&self) -> OwnLog {
        let part = self.part.part(LOG_FIRST, self.plan.log_lines());
        OwnLog::new(self.word(HEAD_WORD), part.expect("an area has room for its drive log"))
    }

    /// The words of entry `slot` of the directory.
    pub(crate) fn entry_words(&self, slot: u32) -> impl Iterator<Item = OwnedWord> + use<> {
        let (own, first) = (*self, self.plan.entry_word(slot));
        (first..first + ENTRY_WORDS).map(move |index| own.word(index))
    }

    /// The words that say `entry` in slot `slot`.
    pub(crate) fn encode(&self, slot: u32, entry: &DriveEntry) -> [u64; 4] {
        entry.encode(self.word(self.plan.entry_word(slot)).at().bytes())
    }

    /// How many requests to `answering` this node ever had.
    pub(crate) fn requests(&self, answering: NodeId) -> OwnedWord {
        self.word(self.plan.count_word(answering))
    }

    pub(crate) fn request(&self, answering: NodeId, number: u64) -> OwnedLine<RequestLine> {
        let line = self.part.line(self.plan.request_line(answering, number));
        line.expect("an area has room for its requests")
    }

    pub(crate) fn answer(&self, asking: NodeId, number: u64) -> OwnedWord {
        self.word(self.plan.answer_word(asking, number))
    }

    /// The last directive of `asking` of which the drives have nothing any more.
    pub(crate) fn cleared(&self, asking: NodeId) -> OwnedWord {
        self.word(self.plan.clear_word(asking))
    }

    /// The lines of all answers.
    pub(crate) fn answers(&self) -> LineRange {
        let first = self.plan.answers_first();
        let part = self.part.part(first, self.plan.clears_first() - first);
        part.expect("an area has room for its answers").range()
    }

    /// Adds the lines of what the agent says of itself to `batch`.
    pub(crate) fn say_agent<F: Fabric>(
        &self,
        batch: &mut PublishBatch<'_, F>,
        records: &AgentRecords,
    ) {
        let AgentRecords { state, work, outcomes, schedule, drives } = records;
        batch.line(self.line(AGENT_FIRST), state);
        batch.line(self.line(AGENT_FIRST + 1), work);
        batch.line(self.line(AGENT_FIRST + 2), outcomes);
        batch.line(self.line(AGENT_FIRST + 3), schedule);
        batch.line(self.line(AGENT_FIRST + 4), drives);
    }

    fn line<T: cxl_shm::fabric::Record>(&self, index: u64) -> OwnedLine<T> {
        self.part.line(index).expect("an area has room for what its agent says")
    }

    fn word(&self, index: u64) -> OwnedWord {
        self.part.word(index).expect("an area has room for what it says of drives")
    }
}
