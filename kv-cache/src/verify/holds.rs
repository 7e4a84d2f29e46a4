//! A host holds a block while its owner evicts it.

use std::rc::Rc;

use cxl_shm::verify::explored::{LineStores, Model, Step, Task, World};

use super::ground::{Ground, OWNER, READER};
use super::holder::Holder;
use super::owner::Owner;

/// Bit of a view: it holds the block.
pub(super) const HOLDING: u64 = 1;
/// Bit of a view: the block is gone.
pub(super) const GONE: u64 = 2;
/// Bit of a view: it has nothing more to do.
pub(super) const DONE: u64 = 4;

/// Who dies, anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dies {
    Nobody,
    /// The process that holds; another of its host comes after it.
    Holder,
    /// The process that evicts; another of its host comes after it.
    Owner,
    /// The host of either; nobody comes after it.
    Host,
}

/// One of either side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Side {
    Holder(Holder),
    Owner(Owner),
}

impl Task for Side {
    fn step(&mut self, world: World) -> Step {
        match self {
            Self::Holder(holder) => holder.step(world),
            Self::Owner(owner) => owner.step(world),
        }
    }

    fn view(&self) -> u64 {
        let bit = |bit: u64, is: bool| if is { bit } else { 0 };
        match self {
            Self::Holder(it) => bit(HOLDING, it.is_holding()) | bit(DONE, it.is_done()),
            Self::Owner(it) => bit(GONE, it.is_gone()) | bit(DONE, it.is_done()),
        }
    }
}

/// A block is held, read and let go by one host, while its owner tries `attempts` times to evict
/// it, and publishes another block where it has gone. A line that its writer died within may be
/// torn until somebody has mended it.
pub(super) fn hold_while_evicted(attempts: u32, dies: Dies) -> Model<Side> {
    let ground = Ground::with_a_block();
    let wanted = ground.wanted();
    let mut model = ground.model();
    // What a death within a publish leaves is not what this is about, and has many states.
    let successor = (dies != Dies::Owner).then_some(2);
    let owner = Owner::new(ground.process(OWNER, false), wanted.handle, attempts, successor);
    let owner = model.run("owner", usize::from(OWNER), Side::Owner(owner));
    let holder = Side::Holder(Holder::new(ground.process(READER, false), wanted, owner));
    let holder = model.run("holder", usize::from(READER), holder);
    let next = match dies {
        Dies::Nobody => None,
        Dies::Host => {
            model.mortal_hosts = vec![usize::from(READER), usize::from(OWNER)];
            model.deaths = 1;
            None
        }
        Dies::Holder => {
            let next = Side::Holder(Holder::after(ground.process(READER, true), wanted, owner));
            Some((holder, model.run("next of the holder", usize::from(READER), next)))
        }
        Dies::Owner => {
            let process = ground.process(OWNER, true);
            let next = Side::Owner(Owner::after(process, wanted.handle, attempts, Some(2)));
            Some((owner, model.run("next of the owner", usize::from(OWNER), next)))
        }
    };
    if let Some((mortal, next)) = next {
        model.tasks[mortal].mortal = true;
        model.tasks[next].after_death_of = Some(mortal);
        model.deaths = 1;
    }
    model.line_stores = LineStores::Whole;
    model.always = Rc::new(|views| {
        let any = |bit| views.iter().any(|view| view & bit != 0);
        if any(HOLDING) && any(GONE) {
            Err("a block that is held is gone".to_owned())
        } else {
            Ok(())
        }
    });
    // The view is 0 for the dead, and for a process that comes after no other.
    let ends = if dies == Dies::Host { 1 } else { 2 };
    model.ended =
        Rc::new(move |views| views.iter().filter(|view| **view & DONE != 0).count() >= ends);
    model
}
