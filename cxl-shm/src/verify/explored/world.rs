//! What a task acts on.

use std::panic::Location;

use super::model::LineStores;
use super::op::Op;
use super::replay::{ask, bytes, line_stores, pass, refute, translate, translate_line};
use crate::fabric::{Fabric, HostMemory, LineWords};
use crate::units::{LINE_WORDS, LineOffset, LineRange, WordOffset};
use crate::verify::simulated::SiteOp;

/// Everything that a step of a task can act on. Only during a step.
#[derive(Clone, Copy, Debug)]
pub struct World(());

/// [`Fabric`] of the host on which the present step runs.
#[derive(Clone, Copy, Debug)]
pub struct ExploredFabric(());

/// [`HostMemory`] of the host on which the present step runs.
#[derive(Clone, Copy, Debug)]
pub struct ExploredHostMemory {
    words: usize,
}

impl World {
    pub(super) fn new() -> Self {
        Self(())
    }

    /// The shared memory.
    #[must_use]
    pub fn fabric(self) -> ExploredFabric {
        ExploredFabric(())
    }

    /// Any number below `options`: each is explored.
    #[must_use]
    pub fn choose(self, options: u64) -> u64 {
        ask(Op::Choose(options), 0)
    }

    /// Others may act here, and what the task's view says is seen.
    pub fn pause(self) {
        ask(Op::Pause, 0);
    }

    /// Whether the task of this index has died.
    #[must_use]
    pub fn has_died(self, task: usize) -> bool {
        ask(Op::HasDied(task), 0) == 1
    }

    /// Says that something is wrong: the exploration ends with a trace to here.
    pub fn refute(self, message: impl Into<String>) -> ! {
        refute(message.into())
    }
}

impl ExploredFabric {
    /// The shared memory of whichever step runs when it is used.
    #[must_use]
    pub fn of_present_step() -> Self {
        Self(())
    }
}

impl ExploredHostMemory {
    /// The memory, of `words` words, of whichever host a step runs on.
    #[must_use]
    pub fn with_words(words: usize) -> Self {
        Self { words }
    }
}

impl Fabric for ExploredFabric {
    fn bytes(&self) -> u64 {
        bytes()
    }

    fn load(&self, at: WordOffset) -> u64 {
        translate(at).map_or(0, |at| ask(Op::Load(at), 0))
    }

    #[track_caller]
    fn store(&self, at: WordOffset, value: u64) {
        if let Some(at) = translate(at) {
            ask(Op::Store(at, value), 0);
        }
    }

    fn read_line(&self, at: LineOffset) -> LineWords {
        let mut words = [0; LINE_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = at.word(index).map_or(0, |at| self.load(at));
        }
        words
    }

    #[track_caller]
    fn write_line(&self, at: LineOffset, words: &LineWords) {
        let stores = line_stores();
        if stores != LineStores::Words {
            if let Some((line, _)) = translate_line(at) {
                if stores == LineStores::FirstWordApart
                    && let Some(first) = at.word(0)
                {
                    self.store(first, words[0]);
                }
                ask(Op::StoreLine(line, *words), 0);
            }
            return;
        }
        for (index, word) in words.iter().enumerate() {
            if let Some(at) = at.word(index) {
                self.store(at, *word);
            }
        }
    }

    #[track_caller]
    fn write_back(&self, lines: LineRange) {
        if pass(SiteOp::WriteBack, Location::caller()) {
            each(lines, Op::Flush);
        }
    }

    #[track_caller]
    fn invalidate(&self, lines: LineRange) {
        if pass(SiteOp::Invalidate, Location::caller()) {
            each(lines, Op::Flush);
        }
    }

    #[track_caller]
    fn fence(&self) {
        if pass(SiteOp::Fence, Location::caller()) {
            ask(Op::Fence, 0);
        }
    }

    #[track_caller]
    fn read_back(&self, lines: LineRange) {
        if pass(SiteOp::ReadBack, Location::caller()) {
            each(lines, Op::ReadBack);
        }
    }
}

/// Asks for `op` on what is in play of `lines`: as one where nothing is left out or moved.
fn each(lines: LineRange, op: fn(LineRange) -> Op) {
    let as_they_are = lines.iter().all(|line| translate_line(line) == Some((line, 0)));
    if as_they_are {
        ask(op(lines), 0);
        return;
    }
    for (line, _) in lines.iter().filter_map(translate_line) {
        ask(op(LineRange::one(line)), 0);
    }
}

impl HostMemory for ExploredHostMemory {
    fn words(&self) -> usize {
        self.words
    }

    fn load(&self, index: usize) -> u64 {
        ask(Op::MemoryLoad(index), 0)
    }

    fn store(&self, index: usize, value: u64) {
        ask(Op::MemoryStore(index, value), 0);
    }

    fn clear(&self) {
        ask(Op::MemoryClear, 0);
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        // What destructors ask for succeeds at doing nothing, so that none tries for ever.
        let found = ask(Op::MemoryExchange { index, current, new }, current);
        if found == current { Ok(found) } else { Err(found) }
    }

    /// Figures are no part of a state.
    fn count(&self, _: usize, _: u64) {}

    fn counted(&self, _: usize) -> u64 {
        0
    }
}
