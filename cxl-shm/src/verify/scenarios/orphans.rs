//! Hosts that would look after what another left, and its next life.

use std::rc::Rc;

use super::ground::{ExploredHandle, Ground};
use crate::fabric::{Fabric, OwnedWord};
use crate::host::ProcessSlot;
use crate::layout::{Layout, LockProtocol, NodeLine, NodeState};
use crate::lifecycle::Reclaimer;
use crate::lifecycle::{end_reclaim, may_write, still_guarded};
use crate::units::{Incarnation, NodeId};
use crate::verify::explored::{Constant, LineStores, Model, Step, Task, World};

const ORPHAN: NodeId = NodeId(2);
/// Bit of a view: it may write what the orphan left.
const INSIDE: u64 = 1;
/// Bit of a view: it has nothing more to do.
const DONE: u64 = 2;
/// Bit of a view: it has written what the orphan left.
const WROTE: u64 = 4;

/// A reclaimer, the orphan's next life, or the next life of a reclaimer whose process died.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Heir {
    layout: Constant<Layout>,
    handle: ExploredHandle,
    node: NodeId,
    stage: Stage,
    wrote: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// A reclaimer that has not said so.
    Comes,
    /// A reclaimer that may write.
    Guards,
    /// A reclaimer that ends.
    Leaves,
    /// The next life of the orphan, whose line does not say so.
    Joins,
    /// The next life, which waits for reclaimers.
    Waits,
    /// The next life, which may write, and has yet to.
    IsHome,
    /// The next life of a reclaimer's node.
    Follows,
    Done,
    /// The orphan lives again.
    Lives,
}

impl Heir {
    /// Says in its word of the line that all share that it was there.
    fn write(&mut self, world: World) {
        let fabric = world.fabric();
        let area = self.layout.area(ORPHAN);
        // MEM-M8: what others wrote before.
        fabric.refresh(area.range());
        self.own(area.claim().word(u64::from(self.node.0))).publish(&fabric, 7);
        self.wrote = true;
    }

    fn own(&self, word: Option<OwnedWord>) -> OwnedWord {
        word.expect("an area has a line")
    }

    fn join(&self, world: World, incarnation: u32) {
        let id = [u64::from(self.node.0) + 1, 0];
        let line = NodeLine::new(NodeState::Joined, Incarnation(incarnation), id, id);
        self.handle.node_line().publish(&world.fabric(), &line);
    }
}

impl Task for Heir {
    fn step(&mut self, world: World) -> Step {
        let (layout, fabric) = (self.layout.clone(), world.fabric());
        self.stage = match self.stage {
            Stage::Comes => {
                let (process, incarnation) = (ProcessSlot(0), Incarnation(1));
                let word = Reclaimer { orphan: ORPHAN, process, incarnation }.word();
                self.handle.reclaimer().publish(&fabric, word);
                let ours = may_write(&layout, &fabric, self.node, ORPHAN);
                if ours { Stage::Guards } else { Stage::Leaves }
            }
            Stage::Guards => {
                self.write(world);
                Stage::Leaves
            }
            Stage::Leaves => {
                self.handle.reclaimer().publish(&fabric, 0);
                Stage::Done
            }
            Stage::Joins => {
                self.join(world, 2);
                Stage::Waits
            }
            Stage::Waits if still_guarded(&layout, &fabric, ORPHAN).is_some() => {
                world.pause();
                Stage::Waits
            }
            Stage::Waits => Stage::IsHome,
            Stage::IsHome => {
                self.write(world);
                Stage::Lives
            }
            Stage::Follows => {
                fabric.refresh(layout.reclaimer(self.node).range());
                end_reclaim(&self.handle, &fabric);
                self.join(world, 2);
                Stage::Done
            }
            Stage::Done | Stage::Lives => return Step::Ends,
        };
        Step::Goes
    }

    fn view(&self) -> u64 {
        let wrote = if self.wrote { WROTE } else { 0 };
        wrote
            | match self.stage {
                Stage::Guards | Stage::IsHome => INSIDE,
                Stage::Lives => INSIDE | DONE,
                Stage::Done => DONE,
                Stage::Comes | Stage::Leaves | Stage::Joins | Stage::Waits | Stage::Follows => 0,
            }
    }
}

/// Two hosts would be the reclaimer of a third, which comes back. With `dies` the process of the
/// first dies at any point, and another of its host joins after it.
pub(super) fn look_after(dies: bool) -> Model<Heir> {
    let ground = Ground::joined(3, 1, LockProtocol::Bakery);
    let layout = *ground.layout();
    let left = NodeLine::new(NodeState::Left, Incarnation(1), [3, 0], [3, 0]);
    layout.node_line(ORPHAN).claim().publish(&ground.fabric(ORPHAN), &left);
    let mut model = ground.model();
    let heir = |node: u16, stage| Heir {
        layout: Constant::new(layout),
        handle: ground.node_handle(NodeId(node)),
        node: NodeId(node),
        stage,
        wrote: false,
    };
    model.run("reclaimer 0", 0, heir(0, Stage::Comes));
    if dies {
        model.tasks[0].mortal = true;
        let next = model.run("next life of 0", 0, heir(0, Stage::Follows));
        model.tasks[next].after_death_of = Some(0);
        model.deaths = 1;
    } else {
        model.run("reclaimer 1", 1, heir(1, Stage::Comes));
    }
    model.run("next life", ORPHAN.index(), heir(ORPHAN.0, Stage::Joins));
    model.line_stores = LineStores::FirstWordApart;
    let nodes: Vec<u64> = model.tasks.iter().map(|task| u64::from(task.task.node.0)).collect();
    model.always =
        Rc::new(|views| match views.iter().filter(|view| **view & INSIDE != 0).count() {
            0 | 1 => Ok(()),
            inside => Err(format!("{inside} hosts write what one left")),
        });
    model.ended = Rc::new(|views| views.last().is_some_and(|view| view & DONE != 0));
    model.at_end = Rc::new(move |views, device| {
        let area = layout.area(ORPHAN).claim();
        for (view, node) in views.iter().zip(&nodes) {
            let word = area.word(*node).expect("an area has a line").at();
            if view & WROTE != 0 && device(word) != 7 {
                return Err(format!("what node {node} wrote is gone"));
            }
        }
        Ok(())
    });
    model
}
