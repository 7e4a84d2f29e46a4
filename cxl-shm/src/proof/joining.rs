//! Hosts come for one node slot in the same moment.

use std::rc::Rc;

use super::ground::Ground;
use crate::fabric::explored::{Constant, Model, Step, Task, World};
use crate::layout::{Layout, LockProtocol, NodeLine, NodeState};
use crate::member::{HostIdentity, ProcessIdentity, Slot, Visitor};
use crate::units::{Incarnation, NodeId};

const SLOT: NodeId = NodeId(0);
/// Bit of a visitor's view: it has passed the door, and has not left the slot.
const INSIDE: u64 = 1;
/// Bit of a visitor's view: it has nothing more to do.
const DONE: u64 = 2;

/// A host that comes for the slot, lives there, and leaves it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Guest {
    layout: Constant<Layout>,
    visitor: Visitor,
    id: [u64; 2],
    /// How often it comes at most.
    visits: u32,
    /// Whether it leaves what it has joined.
    leaves: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Outside,
    /// Its line does not say so yet.
    Passed(Incarnation),
    Joined(Incarnation),
    Leaving(Incarnation),
    Done,
}

impl Guest {
    fn come(&mut self, world: World) -> Stage {
        let (layout, fabric) = (&*self.layout, world.fabric());
        self.visits -= 1;
        let slot = Slot::inside(layout, &fabric, SLOT);
        let said = slot.map_or(Incarnation(0), |slot| slot.said);
        if slot.is_some_and(|slot| !slot.vacant) {
            return Stage::Outside;
        }
        let outside = self.visitor.look(layout, &fabric, said);
        let (last, _) = outside.last();
        let next = Incarnation(last.0 + 1);
        if outside.is_closed() || self.visitor.pass(layout, &fabric, &outside, next).is_err() {
            return Stage::Outside;
        }
        Stage::Passed(next)
    }

    fn publish(&self, world: World, state: NodeState, incarnation: Incarnation) {
        let line = NodeLine::new(state, incarnation, self.id, self.id);
        self.layout.node_line(SLOT).claim().publish(&world.fabric(), &line);
    }
}

impl Task for Guest {
    fn step(&mut self, world: World) -> Step {
        self.stage = match self.stage {
            Stage::Outside if self.visits == 0 => Stage::Done,
            Stage::Outside => self.come(world),
            Stage::Passed(incarnation) => {
                // Whoever lived or lives there, perhaps until a death that nobody here sees.
                match Slot::inside(&self.layout, &world.fabric(), SLOT) {
                    Some(slot) if !slot.vacant || slot.incarnation >= incarnation => {
                        world.refute(format!("{incarnation:?} comes into {slot:?}"))
                    }
                    _ => {}
                }
                self.publish(world, NodeState::Joined, incarnation);
                Stage::Joined(incarnation)
            }
            Stage::Joined(incarnation) if self.leaves => Stage::Leaving(incarnation),
            Stage::Joined(_) | Stage::Done => return Step::Ends,
            Stage::Leaving(incarnation) => {
                self.publish(world, NodeState::Left, incarnation);
                Stage::Done
            }
        };
        Step::Goes
    }

    fn view(&self) -> u64 {
        match self.stage {
            Stage::Outside | Stage::Leaving(_) => 0,
            Stage::Passed(_) => INSIDE,
            Stage::Joined(_) => INSIDE | DONE,
            Stage::Done => DONE,
        }
    }
}

/// What dies in a model of guests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dies {
    Nobody,
    /// The host of the first guest, at any point.
    Host,
    /// The process of the first guest, at any point; another of its host comes after it.
    Process,
}

/// `guests` hosts come for a slot that somebody left, each `visits` times at most; with `leaves` they
/// leave it again.
pub(super) fn come_together(guests: u16, visits: u32, leaves: bool, dies: Dies) -> Model<Guest> {
    come_as(guests, visits, leaves, dies, HostIdentity::simulated)
}

/// As [`come_together`], of two hosts that are images of one installation.
pub(super) fn clones_come_together(visits: u32) -> Model<Guest> {
    let image = |host| HostIdentity { machine_id: [7, 7], ..HostIdentity::simulated(host) };
    come_as(2, visits, false, Dies::Nobody, image)
}

fn come_as(
    guests: u16,
    visits: u32,
    leaves: bool,
    dies: Dies,
    identity: fn(u64) -> HostIdentity,
) -> Model<Guest> {
    let ground = Ground::joined(1, 1, LockProtocol::Bakery);
    let layout = *ground.layout();
    let left = NodeLine::new(NodeState::Left, Incarnation(1), [9, 9], [9, 9]);
    layout.node_line(SLOT).claim().publish(&ground.fabric(SLOT), &left);
    let guest = |host: u16, process: u32| {
        let identity = identity(u64::from(host));
        Guest {
            layout: Constant::new(layout),
            visitor: Visitor::new(SLOT, &identity, ProcessIdentity::new(process, 1)),
            id: identity.boot_id,
            visits,
            leaves,
            stage: Stage::Outside,
        }
    };
    for host in 0..guests {
        // Of many, each has been there before, as long ago as the slot's last life: what they are stands
        // beside the marks that they will make. Of two, the first writing of that is explored.
        if guests > 2 {
            let (visitor, fabric) = (guest(host, 1).visitor, ground.fabric(SLOT));
            let outside = visitor.look(&layout, &fabric, Incarnation(1));
            visitor.sign(&layout, &fabric, &outside);
        }
    }
    let mut model = ground.model();
    model.hosts = usize::from(guests);
    for host in 0..guests {
        model.run(format!("guest {host}"), usize::from(host), guest(host, 1));
    }
    match dies {
        Dies::Nobody => {}
        Dies::Host => {
            model.mortal_hosts.push(0);
            model.deaths = 1;
        }
        Dies::Process => {
            model.tasks[0].mortal = true;
            let next = model.run("next guest 0", 0, guest(0, 2));
            model.tasks[next].after_death_of = Some(0);
            model.deaths = 1;
        }
    }
    model.whole_line_stores = true;
    model.always =
        Rc::new(|views| match views.iter().filter(|view| **view & INSIDE != 0).count() {
            0 | 1 => Ok(()),
            inside => Err(format!("{inside} hosts are in one slot")),
        });
    // Of the dead, and of who comes after nobody, the view is 0.
    let absent = usize::from(dies != Dies::Nobody);
    model.ended =
        Rc::new(move |views| views.iter().filter(|view| **view & DONE == 0).count() <= absent);
    model
}
