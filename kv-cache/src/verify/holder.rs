//! The side of the reader: it holds a block, reads it, and lets it go.

use cxl_shm::fabric::Fabric;
use cxl_shm::units::LineRange;
use cxl_shm::verify::explored::{Step, World};

use super::ground::{Process, StillClock, content, first_word};
use crate::hold::Look;
use crate::read::MatchedBlock;
use crate::{DescriptorError, HOLD_MS, HeldBlock, Miss, Wanted};

/// A process that holds a block, or one that comes after it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Holder {
    process: Process,
    wanted: HashedWanted,
    /// The task that evicts first.
    owner: usize,
    stage: Stage,
}

/// What is wanted is the same in all states.
type HashedWanted = cxl_shm::verify::explored::Constant<Wanted>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// It has yet to look after the dead.
    After,
    Outside,
    /// Its reader word is published.
    Written,
    Holding,
    Leaving,
    Done,
}

impl Holder {
    /// One that holds what the task of index `owner` evicts.
    pub(super) fn new(process: Process, wanted: Wanted, owner: usize) -> Self {
        let wanted = HashedWanted::new(wanted);
        Self { process, wanted, owner, stage: Stage::Outside }
    }

    /// One that looks after what another process of its host left.
    pub(super) fn after(process: Process, wanted: Wanted, owner: usize) -> Self {
        Self { stage: Stage::After, ..Self::new(process, wanted, owner) }
    }

    pub(super) fn step(&mut self, world: World) -> Step {
        let (cache, clock) = (self.process.cache(), StillClock::of(world));
        let handle = self.wanted.handle;
        self.stage = match self.stage {
            Stage::After => {
                cache.reap(&clock);
                if cache.locked(&clock, |heap| heap.reader_word_of(handle)).held {
                    world.refute("what a dead process held is held for ever");
                }
                Stage::Done
            }
            Stage::Outside => {
                let written = cache.locked(&clock, |heap| heap.write_holds(&[handle], HOLD_MS));
                match written[..] {
                    [Ok(())] => Stage::Written,
                    _ => world.refute(format!("a hold is refused: {written:?}")),
                }
            }
            // One look a step, of any number: who has had enough of them lets go.
            Stage::Written => match cache.look_at_open(&[*self.wanted], &[0], false)[..] {
                [(_, Look::Held)] => Stage::Holding,
                [(_, Look::Open)] if world.choose(2) == 0 => Stage::Written,
                _ => Stage::Leaving,
            },
            Stage::Holding => match self.read(world) {
                Err(why) if !self.is_torn(&why, world) => {
                    world.refute(format!("a block that is held cannot be read: {why:?}"))
                }
                // Until somebody mends the line.
                Err(_) if world.choose(2) == 0 => Stage::Holding,
                Ok(()) | Err(_) => Stage::Leaving,
            },
            Stage::Leaving => {
                let block = MatchedBlock { key: self.wanted.key, handle };
                let process_state = std::sync::Arc::clone(cache.process_state());
                let held = HeldBlock::new(block, cache.member().token(), process_state);
                cache.release(&clock, vec![held]);
                Stage::Done
            }
            Stage::Done => return Step::Ends,
        };
        Step::Goes
    }

    /// What is held is found, and is what it was.
    fn read(&self, world: World) -> Result<(), Miss> {
        let (cache, fabric) = (self.process.cache(), world.fabric());
        let ticket = cache.open(&[*self.wanted]).remove(0)?;
        let lines = LineRange::covering(ticket.payload());
        fabric.refresh(lines);
        let found: Vec<u64> = lines.iter().map(|line| first_word(&fabric, line)).collect();
        if found.iter().any(|word| *word != content(1)[0]) {
            world.refute(format!("a block that is held has the bytes of others: {found:?}"));
        }
        cache.close(&[(ticket, None)]).remove(0)
    }

    /// Whether a block may be missed because its owner died within a write to its descriptor.
    fn is_torn(&self, why: &Miss, world: World) -> bool {
        if !world.has_died(self.owner) {
            return false;
        }
        let segment = self.process.cache().areas().segment(self.wanted.handle.owner());
        let is_torn = || {
            let said = segment.cached(&world.fabric(), self.wanted.handle.slot());
            matches!(said, Err(DescriptorError::Torn(_)))
        };
        // A second look says no more than that it found something else.
        *why == Miss::Torn || *why == Miss::Changed && is_torn()
    }

    pub(super) fn is_holding(&self) -> bool {
        self.stage == Stage::Holding
    }

    pub(super) fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }
}
