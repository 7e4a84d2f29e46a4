//! A host holds a block whose owner is over (EVICT-H7): beside the owner that leaves, and beside a
//! reclaimer.

use std::rc::Rc;

use cxl_shm::units::NodeId;
use cxl_shm::verify::explored::{LineStores, Model, Step, Task, World};

use super::ground::{Ground, OWNER, Process, READER, RECLAIMER, StillClock};
use super::holder::Holder;
use super::holds::{DONE, GONE, HOLDING};
use super::owner::Owner;
use crate::reclaim::Orphan;
use crate::{BlockState, Descriptor, Handle, SlotContent};

/// One of the sides.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Heir {
    Holder(Holder),
    Owner(Owner),
    Reclaimer(Reclaimer),
}

impl Task for Heir {
    fn step(&mut self, world: World) -> Step {
        match self {
            Self::Holder(holder) => holder.step(world),
            Self::Owner(owner) => owner.step(world),
            Self::Reclaimer(reclaimer) => reclaimer.step(world),
        }
    }

    fn view(&self) -> u64 {
        let bit = |bit: u64, is: bool| if is { bit } else { 0 };
        match self {
            Self::Holder(it) => bit(HOLDING, it.is_holding()) | bit(DONE, it.is_done()),
            Self::Owner(it) => bit(GONE, it.is_gone()) | bit(DONE, it.is_done()),
            Self::Reclaimer(it) => bit(GONE, it.gone) | bit(DONE, it.stage == Stage::Done),
        }
    }
}

/// A host that evicts the block in the place of its owner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Reclaimer {
    process: Process,
    handle: Handle,
    gone: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Comes,
    /// It undoes what the owner, or an earlier reclaimer, had begun.
    Resolves,
    Guards,
    Leaves,
    Done,
}

impl Reclaimer {
    fn step(&mut self, world: World) -> Step {
        let (cache, clock) = (self.process.cache(), StillClock::of(world));
        let owner = NodeId(OWNER);
        self.stage = match self.stage {
            Stage::Comes if cache.take_orphan(&clock, owner) => Stage::Resolves,
            // The owner has not left yet.
            Stage::Comes => Stage::Done,
            Stage::Resolves => {
                let orphan = Orphan::of(&cache, owner);
                let is_undecided = |block: &Descriptor| block.state == BlockState::Evicting;
                if let Some(block) = self.block(world).filter(is_undecided) {
                    orphan.resolve(&[block]);
                }
                if self.block(world).is_some_and(|block| is_undecided(&block)) {
                    world.refute("a block that its owner left undecided is never decided on");
                }
                Stage::Guards
            }
            Stage::Guards => {
                let orphan = Orphan::of(&cache, owner);
                if let Some(block) = self.block(world) {
                    let decision = orphan.decide(orphan.announce(&[block]), &clock);
                    orphan.commit(&decision);
                    self.gone = decision.stay.is_empty();
                }
                Stage::Leaves
            }
            Stage::Leaves => {
                cache.leave_orphan(&clock);
                Stage::Done
            }
            Stage::Done => return Step::Ends,
        };
        Step::Goes
    }

    fn block(&self, world: World) -> Option<Descriptor> {
        let segment = self.process.cache().areas().segment(self.handle.owner());
        match segment.cached(&world.fabric(), self.handle.slot()) {
            Ok(SlotContent::Block(block)) if block.handle == self.handle => Some(block),
            Ok(_) | Err(_) => None,
        }
    }
}

/// A block is held by one host while its owner tries once to evict it, and leaves.
pub(super) fn hold_while_the_owner_leaves() -> Model<Heir> {
    let ground = Ground::with_a_block();
    let mut model = ground.model();
    let owner = Owner::leaving(ground.process(OWNER, false), ground.wanted().handle);
    let owner = model.run("owner", usize::from(OWNER), Heir::Owner(owner));
    let holder = Holder::new(ground.process(READER, false), ground.wanted(), owner);
    model.run("holder", usize::from(READER), Heir::Holder(holder));
    checked(model, 2)
}

/// A block that its owner left EVICTING is held by one host while another evicts it as the
/// reclaimer of the owner, whose host loses power at any point with `dies`.
pub(super) fn hold_beside_a_reclaimer(dies: bool) -> Model<Heir> {
    let ground = Ground::of_hosts(3);
    ground.leave_over_the_block();
    let mut model = ground.model();
    let (process, handle) = (ground.process(RECLAIMER, false), ground.wanted().handle);
    let reclaimer = Reclaimer { process, handle, gone: false, stage: Stage::Comes };
    let reclaimer = model.run("reclaimer", usize::from(RECLAIMER), Heir::Reclaimer(reclaimer));
    let holder = Holder::new(ground.process(READER, false), ground.wanted(), reclaimer);
    model.run("holder", usize::from(READER), Heir::Holder(holder));
    if dies {
        model.mortal_hosts = vec![usize::from(RECLAIMER)];
        model.deaths = 1;
    }
    checked(model, if dies { 1 } else { 2 })
}

fn checked(mut model: Model<Heir>, ends: usize) -> Model<Heir> {
    model.line_stores = LineStores::Whole;
    model.always = Rc::new(|views| {
        let any = |bit| views.iter().any(|view| view & bit != 0);
        if any(HOLDING) && any(GONE) {
            Err("a block that is held is gone".to_owned())
        } else {
            Ok(())
        }
    });
    model.ended =
        Rc::new(move |views| views.iter().filter(|view| **view & DONE != 0).count() >= ends);
    model
}
