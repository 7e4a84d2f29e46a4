//! A host holds a block whose owner is over (H7): beside the owner that leaves, and beside a guardian.

use std::rc::Rc;

use cxl_shm::fabric::explored::{LineStores, Model, Step, Task, World};
use cxl_shm::units::NodeId;

use super::ground::{GUARDIAN, Ground, OWNER, Process, READER, StillClock};
use super::holder::Holder;
use super::holds::{DONE, GONE, HOLDING};
use super::owner::Owner;
use crate::ward::Ward;
use crate::{Descriptor, Handle, SlotContent};

/// One of the sides.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Heir {
    Holder(Holder),
    Owner(Owner),
    Guardian(Guardian),
}

impl Task for Heir {
    fn step(&mut self, world: World) -> Step {
        match self {
            Self::Holder(holder) => holder.step(world),
            Self::Owner(owner) => owner.step(world),
            Self::Guardian(guardian) => guardian.step(world),
        }
    }

    fn view(&self) -> u64 {
        let bit = |bit: u64, is: bool| if is { bit } else { 0 };
        match self {
            Self::Holder(it) => bit(HOLDING, it.is_holding()) | bit(DONE, it.is_done()),
            Self::Owner(it) => bit(GONE, it.is_gone()) | bit(DONE, it.is_done()),
            Self::Guardian(it) => bit(GONE, it.gone) | bit(DONE, it.stage == Stage::Done),
        }
    }
}

/// A host that evicts the block in the place of its owner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Guardian {
    process: Process,
    handle: Handle,
    gone: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Comes,
    Guards,
    Leaves,
    Done,
}

impl Guardian {
    fn step(&mut self, world: World) -> Step {
        let (cache, clock) = (self.process.cache(), StillClock::of(world));
        let owner = NodeId(OWNER);
        self.stage = match self.stage {
            Stage::Comes if cache.take_ward(&clock, owner) => Stage::Guards,
            // The owner has not left yet.
            Stage::Comes => Stage::Done,
            Stage::Guards => {
                let ward = Ward::of(&cache, owner);
                if let Some(block) = self.block(world) {
                    ward.announce(&[block]);
                    let decision = ward.decide(&[block], &clock);
                    ward.carry_out(&decision);
                    self.gone = decision.stay.is_empty();
                }
                Stage::Leaves
            }
            Stage::Leaves => {
                cache.leave_ward(&clock);
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

/// A block that its owner left EVICTING is held by one host while another evicts it as the guardian of
/// the owner, whose host loses power at any point with `dies`.
pub(super) fn hold_beside_a_guardian(dies: bool) -> Model<Heir> {
    let ground = Ground::of_hosts(3);
    ground.leave_over_the_block();
    let mut model = ground.model();
    let (process, handle) = (ground.process(GUARDIAN, false), ground.wanted().handle);
    let guardian = Guardian { process, handle, gone: false, stage: Stage::Comes };
    let guardian = model.run("guardian", usize::from(GUARDIAN), Heir::Guardian(guardian));
    let holder = Holder::new(ground.process(READER, false), ground.wanted(), guardian);
    model.run("holder", usize::from(READER), Heir::Holder(holder));
    if dies {
        model.mortal_hosts = vec![usize::from(GUARDIAN)];
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
