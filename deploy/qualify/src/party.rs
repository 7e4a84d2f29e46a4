//! One of the two that run a litmus program together, and how they keep step.
//!
//! Each has a run of lines of its own, which it alone writes (MEM-M1): a step word, words for what
//! it saw, and lines for the programs. Steps are words with one writing host, published and read
//! fresh: single-writer registers, which is all that is assumed of the memory under test.

use super::probe::Probe;
use cxl_shm::clock::Clock;
use cxl_shm::fabric::{LineWords, OwnedArea, OwnedWord, PeerArea, PeerWord};
use cxl_shm::units::{LINE_WORDS, LineOffset, LineRange, WordOffset};

/// Trials between two steps. Short enough that the two stay close to each other, long enough that
/// keeping step costs little.
pub(super) const TRIALS: u64 = TRIALS_LEN as u64;
/// The same, as the length of an array.
pub(super) const TRIALS_LEN: usize = 64;

const STEP_LINE: u64 = 0;
/// First of the lines for what a party saw: a word a trial.
const SEEN_LINE: u64 = 1;
const SEEN_LINES: u64 = TRIALS / LINE_WORDS as u64;
const FIRST_LINE: u64 = SEEN_LINE + SEEN_LINES;
/// Lines of programs: two a trial, apart from each other so that no prefetcher couples them.
pub(super) const PARTY_LINES: u64 = FIRST_LINE + 2 * TRIALS;

/// Which of the two: the pair's roles follow from the order of their node numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Writes first, and owns the line that both write in one program.
    First,
    /// Reads first.
    Second,
}

/// The other one did not keep step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the other side made no progress for {timeout_ms} ms: check that its command still runs")]
pub struct Silent {
    /// How long was waited.
    pub timeout_ms: u64,
}

/// One of two threads, processes or hosts that run litmus programs together.
#[derive(Debug)]
pub(super) struct Party<'c, P, C> {
    pub(super) fabric: P,
    pub(super) role: Role,
    mine: OwnedArea,
    theirs: PeerArea,
    clock: &'c C,
    timeout_ms: u64,
    step: u64,
}

impl<'c, P: Probe, C: Clock> Party<'c, P, C> {
    /// One that has taken no step. `mine` and `theirs` have [`PARTY_LINES`] lines each, and the
    /// step words in them are zero, published.
    pub(super) fn new(
        fabric: P,
        role: Role,
        mine: OwnedArea,
        theirs: PeerArea,
        clock: &'c C,
        timeout_ms: u64,
    ) -> Self {
        Self { fabric, role, mine, theirs, clock, timeout_ms, step: 0 }
    }

    /// Publishes a step word of zero: before the other one looks.
    pub(super) fn clear(fabric: &P, mine: OwnedArea) {
        own_word(mine, STEP_LINE * 8).publish(fabric, 0);
    }

    /// Waits until the other one has come as far. What it published before it came is visible to
    /// every fresh read after this.
    pub(super) fn meet(&mut self) -> Result<(), Silent> {
        self.step += 1;
        own_word(self.mine, STEP_LINE * 8).publish(&self.fabric, self.step);
        let theirs = word(self.theirs, STEP_LINE * 8);
        let mut tries = 0;
        let mut since_ms = None;
        while theirs.fresh(&self.fabric) < self.step {
            // The clock is asked only once it matters.
            if tries > 256 {
                let now_ms = self.clock.now_ms();
                if now_ms.saturating_sub(*since_ms.get_or_insert(now_ms)) >= self.timeout_ms {
                    return Err(Silent { timeout_ms: self.timeout_ms });
                }
            }
            self.clock.pause(tries);
            tries = tries.saturating_add(1);
        }
        Ok(())
    }

    /// Tells the other one what this one saw in each trial, and learns what it saw.
    pub(super) fn exchange(&mut self, seen: &[u64]) -> Result<Vec<u64>, Silent> {
        for (index, seen) in (0..).zip(seen) {
            self.fabric.store(own_word(self.mine, SEEN_LINE * 8 + index).at(), *seen);
        }
        self.fabric.publish(seen_lines(self.mine.peer()));
        self.meet()?;
        self.fabric.refresh(seen_lines(self.theirs));
        let count = seen.len() as u64;
        Ok((0..count)
            .map(|index| word(self.theirs, SEEN_LINE * 8 + index).cached(&self.fabric))
            .collect())
    }

    /// This one's line `index` of `trial`, 0 or 1.
    pub(super) fn mine(&self, trial: u64, index: u64) -> LineOffset {
        line(self.mine.range(), trial, index)
    }

    /// The other one's.
    pub(super) fn theirs(&self, trial: u64, index: u64) -> LineOffset {
        line(self.theirs.range(), trial, index)
    }

    /// Line `index` of `trial` of the one with the role `of`.
    pub(super) fn line_of(&self, of: Role, trial: u64, index: u64) -> LineOffset {
        if of == self.role { self.mine(trial, index) } else { self.theirs(trial, index) }
    }

    /// Zeroes this side's lines for the next program, whichever side wrote them last, and meets.
    pub(super) fn begin(&mut self) -> Result<(), Silent> {
        // Nobody writes any more, but both may hold copies.
        self.meet()?;
        let lines = program_lines(self.mine.range());
        self.fabric.refresh(lines);
        for line in lines.iter() {
            self.fabric.write_line(line, &LineWords::default());
        }
        self.fabric.publish(lines);
        self.meet()?;
        self.fabric.refresh(program_lines(self.theirs.range()));
        self.meet()
    }
}

/// Word `index` of a line.
pub(super) fn word_of(line: LineOffset, index: usize) -> WordOffset {
    line.word(index).expect("programs use words 0 to 7 of a line")
}

fn own_word(area: OwnedArea, index: u64) -> OwnedWord {
    area.word(index).expect("a party's area holds its words")
}

fn word(area: PeerArea, index: u64) -> PeerWord {
    area.word(index).expect("a party's area holds its words")
}

fn line(lines: LineRange, trial: u64, index: u64) -> LineOffset {
    debug_assert!(trial < TRIALS && index < 2);
    let offset = lines.start().bytes() + (FIRST_LINE + index * TRIALS + trial) * 64;
    LineOffset::new(offset).expect("whole lines from a line")
}

fn program_lines(lines: LineRange) -> LineRange {
    LineRange::new(line(lines, 0, 0), 2 * TRIALS).expect("inside a party's area")
}

fn seen_lines(area: PeerArea) -> LineRange {
    area.part(SEEN_LINE, SEEN_LINES).expect("inside a party's area").range()
}
