//! What a worker said, over all its lives, and what therefore must be.

use std::collections::BTreeSet;

use super::event::Event;

/// The account of one worker.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Chunks that are certainly its own.
    chunks: BTreeSet<u32>,
    /// Chunks that it found in this life so far.
    found: BTreeSet<u32>,
    taking: bool,
    giving: Option<u32>,
    counting: Option<u32>,
    publishing: Option<u64>,
    /// Blocks that are there unless they were evicted.
    pub(super) blocks: BTreeSet<u64>,
    /// Blocks that may be there.
    pub(super) doubtful_blocks: BTreeSet<u64>,
    /// Number of its next block.
    pub(super) next_block: u64,
    /// Chunks it took or gave, blocks and roots it read.
    pub(super) chunks_moved: u64,
    pub(super) verified: u64,
    pub(super) blocks_published: u64,
    pub(super) locks_taken: u64,
    up: bool,
}

impl Ledger {
    /// Whether it has looked after what its earlier lives left.
    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// Counts that were begun and not acknowledged when its life ended: the counter.
    pub(super) fn end_of_life(&mut self) -> Option<u32> {
        self.up = false;
        self.found.clear();
        self.counting.take()
    }

    /// How many blocks it published when its life ended: what it evicted for them nobody knows.
    pub(super) fn died_publishing(&mut self) -> Option<u64> {
        self.publishing.take()
    }

    /// Takes note of what the worker said.
    ///
    /// # Errors
    /// What cannot be.
    pub(super) fn note(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Found(chunk) => {
                self.found.insert(*chunk);
            }
            Event::Up => {
                self.doubtful_blocks.clear();
                self.up = true;
                return self.compare_chunks();
            }
            Event::Counting(counter) => self.counting = Some(*counter),
            Event::Counted(..) => {
                self.counting = None;
                self.locks_taken += 1;
            }
            Event::Locked => self.locks_taken += 1,
            Event::Taking => self.taking = true,
            Event::Took(chunk) => {
                self.taking = false;
                self.moved();
                if !self.chunks.insert(*chunk) {
                    return Err(format!("chunk {chunk} was taken by its owner"));
                }
            }
            Event::Busy => self.taking = false,
            Event::Giving(chunk) => self.giving = Some(*chunk),
            Event::Kept(_) => self.giving = None,
            Event::Gave(chunk) => {
                self.giving = None;
                self.moved();
                self.chunks.remove(chunk);
            }
            Event::Publishing(first, count) => {
                self.publishing = Some(*count);
                self.next_block = first + count;
                self.doubtful_blocks.extend(*first..first + count);
            }
            Event::Missing(number) => {
                self.blocks.remove(number);
            }
            Event::Adopted(number) => {
                self.doubtful_blocks.remove(number);
                self.blocks.insert(*number);
            }
            Event::Published(numbers) => {
                self.publishing = None;
                self.blocks_published += numbers.len() as u64;
                // Those that are missing were refused, and are not there.
                self.doubtful_blocks.clear();
                self.blocks.extend(numbers);
            }
            Event::Retiring(number) => {
                self.blocks.remove(number);
                self.doubtful_blocks.insert(*number);
            }
            Event::Retired(number) => {
                self.doubtful_blocks.remove(number);
            }
            Event::Verified => self.verified += 1,
            // Said of others, of roots, or of nothing that lasts.
            Event::Evicted(_)
            | Event::Held
            | Event::Rests
            | Event::Looked
            | Event::Repaired(..)
            | Event::Naming(_)
            | Event::Named(_)
            | Event::NotNamed(_)
            | Event::Destroying(..)
            | Event::Destroyed(..)
            | Event::Allocated
            | Event::Freed { .. }
            | Event::Tended
            | Event::Serving(_)
            | Event::DeclaredDead(_)
            | Event::Recovered(_)
            | Event::Fenced
            | Event::Visited(..)
            | Event::Fault(_)
            | Event::Stopped => {}
        }
        Ok(())
    }

    fn moved(&mut self) {
        self.chunks_moved += 1;
        self.locks_taken += 1;
    }

    /// After a restart: what was acknowledged is there, and at most one that was being taken, and
    /// perhaps not the one that was being given back.
    fn compare_chunks(&mut self) -> Result<(), String> {
        let found = std::mem::take(&mut self.found);
        let giving = self.giving.take();
        let lost = self.chunks.difference(&found).find(|chunk| Some(**chunk) != giving);
        if let Some(chunk) = lost {
            return Err(format!("chunk {chunk}, which was acknowledged, is not its own any more"));
        }
        let new: Vec<_> = found.difference(&self.chunks).copied().collect();
        if new.len() > usize::from(std::mem::take(&mut self.taking)) {
            return Err(format!("chunks {new:?} are its own, and it never took them"));
        }
        self.chunks = found;
        Ok(())
    }

    /// Whether it has nothing left but its blocks.
    pub(super) fn has_chunks(&self) -> bool {
        !self.chunks.is_empty()
    }
}

/// The values of one counter that were acknowledged, and what may be besides.
#[derive(Debug, Default)]
pub(super) struct Count {
    acknowledged: BTreeSet<u64>,
    doubtful: u64,
}

impl Count {
    /// A worker has counted to `value`.
    ///
    /// # Errors
    /// When another did before.
    pub(super) fn counted(&mut self, value: u64) -> Result<(), String> {
        if self.acknowledged.insert(value) {
            return Ok(());
        }
        Err(format!("two workers counted to {value}: they held the lock together"))
    }

    /// A worker died after it began to count.
    pub(super) fn died_counting(&mut self) {
        self.doubtful += 1;
    }

    /// How many counts were acknowledged.
    pub(super) fn counts(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    /// Compares with what the counter says.
    ///
    /// # Errors
    /// When a count is lost, or one too many.
    pub(super) fn compare(&self, [first, second]: [u64; 2]) -> Result<(), String> {
        if first != second {
            return Err(format!("it says {first} and {second}"));
        }
        let last = self.acknowledged.last().copied().unwrap_or(0);
        if last > first {
            return Err(format!("it says {first}, and {last} was acknowledged"));
        }
        let unknown = first - self.counts();
        if unknown > self.doubtful {
            return Err(format!(
                "it says {first}: {} counts were acknowledged and {} died unacknowledged",
                self.counts(),
                self.doubtful
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_a_doubled_and_an_excess_count_are_found() {
        let mut count = Count::default();
        count.counted(1).unwrap();
        count.counted(3).unwrap();
        count.counted(3).unwrap_err();
        count.compare([2, 2]).unwrap_err();
        count.compare([3, 2]).unwrap_err();
        count.compare([3, 3]).unwrap_err();
        count.died_counting();
        count.compare([3, 3]).unwrap();
        count.compare([4, 4]).unwrap_err();
    }

    #[test]
    fn a_lost_and_a_foreign_chunk_are_found() {
        let life = |events: &[Event]| {
            let mut ledger = Ledger::default();
            let outcome = events.iter().try_for_each(|event| ledger.note(event));
            (ledger, outcome)
        };
        let (mut ledger, outcome) =
            life(&[Event::Up, Event::Taking, Event::Took(7), Event::Taking]);
        outcome.unwrap();
        ledger.end_of_life();
        ledger.note(&Event::Found(7)).unwrap();
        ledger.note(&Event::Found(8)).unwrap();
        ledger.note(&Event::Up).unwrap();
        ledger.end_of_life();
        ledger.note(&Event::Found(8)).unwrap();
        ledger.note(&Event::Up).unwrap_err();
        let (_, outcome) = life(&[Event::Up, Event::Found(1), Event::Up]);
        outcome.unwrap_err();
    }

    #[test]
    fn blocks_are_certain_only_between_their_acknowledgements() {
        let mut ledger = Ledger::default();
        ledger.note(&Event::Publishing(0, 2)).unwrap();
        assert_eq!((ledger.blocks.len(), ledger.doubtful_blocks.len()), (0, 2));
        ledger.note(&Event::Published(vec![0, 1])).unwrap();
        assert_eq!((ledger.blocks.len(), ledger.doubtful_blocks.len()), (2, 0));
        ledger.note(&Event::Retiring(0)).unwrap();
        assert_eq!((ledger.blocks.len(), ledger.doubtful_blocks.len()), (1, 1));
    }
}
