//! A simulated host's own DRAM.

use std::fmt;

use super::SimulatedRack;
use super::trace::EventKind;
use crate::fabric::HostMemory;

/// Words that [`HostMemory::clear`] clears in an operation each.
const CLEARED_ONE_BY_ONE: usize = 16;

/// [`HostMemory`] of one simulated host. Every handle of a host means the same words: they
/// survive the crash of a process and are cleared by the crash of the host.
#[derive(Clone)]
pub struct SimulatedHostMemory {
    pub(super) rack: SimulatedRack,
    pub(super) host: usize,
    pub(super) words: usize,
}

impl SimulatedHostMemory {
    /// Carries out `act` on word `index`; `None` for a task that has crashed, and for a process that is
    /// cut off from its host (FAULT-F4).
    fn on_word<T>(
        &self,
        index: usize,
        kind: EventKind,
        act: impl FnOnce(&mut u64) -> T,
    ) -> Option<T> {
        assert!(index < self.words, "word {index} is outside the {} words of the host", self.words);
        let mut machine =
            self.rack.enter(self.host, None).filter(|machine| !machine.is_cut_off())?;
        let word = &mut machine.hosts[self.host].memory[index];
        let result = act(word);
        let value = *word;
        machine.note(self.host, kind, index as u64, value);
        Some(result)
    }
}

impl HostMemory for SimulatedHostMemory {
    fn words(&self) -> usize {
        self.words
    }

    fn load(&self, index: usize) -> u64 {
        self.on_word(index, EventKind::MemoryLoad, |word| *word).unwrap_or(0)
    }

    fn store(&self, index: usize, value: u64) {
        self.on_word(index, EventKind::MemoryStore, |word| *word = value);
    }

    /// In a few operations, so that a run spends its steps on what matters: the first words one by
    /// one, which say whether the others mean anything, then the rest.
    fn clear(&self) {
        let (head, rest) = (self.words.min(CLEARED_ONE_BY_ONE), self.words);
        (0..head).for_each(|index| self.store(index, 0));
        if let Some(mut machine) = self.rack.enter(self.host, None)
            && !machine.is_cut_off()
        {
            machine.hosts[self.host].memory[head..rest].fill(0);
            machine.note(self.host, EventKind::MemoryStore, head as u64, 0);
        }
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        let exchange = |word: &mut u64| {
            if *word == current { Ok(std::mem::replace(word, new)) } else { Err(*word) }
        };
        // The dead succeed at doing nothing, so that no destructor tries for ever. So do those that are
        // cut off, as on real memory.
        self.on_word(index, EventKind::MemoryExchange, exchange).unwrap_or(Ok(current))
    }

    fn count(&self, index: usize, value: u64) {
        let mut machine = self.rack.lock();
        if !machine.is_cut_off() {
            let word = &mut machine.hosts[self.host].memory[index];
            *word = word.wrapping_add(value);
        }
    }

    fn counted(&self, index: usize) -> u64 {
        let machine = self.rack.lock();
        if machine.is_cut_off() { 0 } else { machine.hosts[self.host].memory[index] }
    }
}

impl fmt::Debug for SimulatedHostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedHostMemory({}, {} words)", self.host, self.words)
    }
}
