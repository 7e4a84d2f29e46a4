//! The side of the owner: it evicts a block, and puts another in its place.

use cxl_shm::clock::Clock;
use cxl_shm::layout::NodeState;
use cxl_shm::verify::explored::{Step, World};

use super::ground::{ModelCache, Process, StillClock, publish};
use crate::{BlockState, Handle, SlotContent};

/// A process that evicts a block, or one that comes after it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Owner {
    process: Process,
    handle: Handle,
    /// The block that it publishes where the other has gone, if any.
    successor: Option<u8>,
    /// Attempts that are left.
    attempts: u32,
    /// Whether its node leaves after the last one.
    leaves: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// It has yet to look after the dead.
    After,
    Evicting,
    /// The block is gone.
    Gone,
    Done {
        gone: bool,
    },
}

impl Owner {
    pub(super) fn new(
        process: Process,
        handle: Handle,
        attempts: u32,
        successor: Option<u8>,
    ) -> Self {
        Self { process, handle, successor, attempts, leaves: false, stage: Stage::Evicting }
    }

    /// One that tries once, and whose node leaves then.
    pub(super) fn leaving(process: Process, handle: Handle) -> Self {
        Self { leaves: true, ..Self::new(process, handle, 1, None) }
    }

    /// One that continues where another process of its host died.
    pub(super) fn after(
        process: Process,
        handle: Handle,
        attempts: u32,
        successor: Option<u8>,
    ) -> Self {
        Self { stage: Stage::After, ..Self::new(process, handle, attempts, successor) }
    }

    pub(super) fn step(&mut self, world: World) -> Step {
        let (cache, clock) = (self.process.cache(), StillClock::of(world));
        self.stage = match self.stage {
            Stage::After => {
                cache.reap(&clock);
                match self.state(&cache, &clock) {
                    Some(BlockState::Evicting) => {
                        world.refute("a block that its owner died over is never decided on")
                    }
                    Some(_) => Stage::Evicting,
                    None => Stage::Gone,
                }
            }
            Stage::Evicting if self.attempts == 0 => {
                self.leave(&cache);
                Stage::Done { gone: false }
            }
            Stage::Evicting => {
                self.attempts -= 1;
                let (slots, process_state) = ([self.handle.slot()], cache.process_state());
                match cache.locked(&clock, |heap| {
                    heap.evict_all(&mut process_state.order(), clock.now_ms(), &slots)
                }) {
                    0 => Stage::Evicting,
                    _ => Stage::Gone,
                }
            }
            Stage::Gone => {
                let published = self.successor.map(|number| publish(&cache, &clock, number));
                if published == Some(None) {
                    world.refute("there is no room where a block has gone");
                }
                self.leave(&cache);
                Stage::Done { gone: true }
            }
            Stage::Done { .. } => return Step::Ends,
        };
        Step::Goes
    }

    fn leave(&self, cache: &ModelCache<'_>) {
        if self.leaves {
            cache.member().say(NodeState::Left);
        }
    }

    /// What the owner's own host says of the block; `None` when it is gone.
    fn state(&self, cache: &ModelCache<'_>, clock: &StillClock) -> Option<BlockState> {
        let content = cache.locked(clock, |heap| heap.content_of(self.handle.slot()));
        match content {
            Ok(SlotContent::Block(block)) if block.handle == self.handle => Some(block.state),
            Ok(_) | Err(_) => None,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone | Stage::Done { gone: true })
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done { .. })
    }
}
