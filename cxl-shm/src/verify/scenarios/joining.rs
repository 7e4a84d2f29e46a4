//! Hosts come for one node slot in the same moment, by the production join.

use std::rc::Rc;

use super::ground::{ExploredHandle, Ground, UUID};
use crate::host::{HostIdentity, ProcessIdentity};
use crate::layout::{LockProtocol, NodeLine, NodeState};
use crate::lifecycle::{Admitted, AttemptOutcome, JoinAttempt, attempt_join, move_in};
use crate::lock::SharedTier;
use crate::node::Slot;
use crate::units::{Incarnation, LockId, NodeId};
use crate::verify::explored::{Constant, LineStores, Model, Step, Task, World};

const SLOT: NodeId = NodeId(0);
/// The lock whose tickets a host uses up while it lives in the slot.
const LOCK: LockId = LockId(0);
/// Bit of a joiner's view: it was admitted, and has not left the slot.
const INSIDE: u64 = 1;
/// Bit of a joiner's view: it has nothing more to do.
const DONE: u64 = 2;

/// A host that comes for the slot, lives there, and leaves it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Joiner {
    handle: ExploredHandle,
    attempt: JoinAttempt,
    identity: Constant<HostIdentity>,
    /// The tasks of other hosts: the heartbeat of the slot beats while one of them lives.
    others: Constant<Vec<usize>>,
    /// A heartbeat may also stand still for long while its host lives. Not where machines have one
    /// id: there such a host is taken for dead.
    heartbeats_pause: bool,
    /// How often it comes at most.
    visits: u32,
    stays: Stays,
    stage: Stage,
}

/// What a joiner does with a slot that it has joined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Stays {
    /// It stays.
    ForEver,
    /// It leaves it at once.
    NotAtAll,
    /// It uses a ticket of a lock, leaves, and comes again.
    ForOneTicket,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Outside,
    /// Its line does not say so yet.
    Admitted(Admitted),
    Joined(Incarnation),
    Leaving(Incarnation),
    Done,
}

impl Joiner {
    fn come(&mut self, world: World) -> Stage {
        self.visits -= 1;
        let lives = || self.others.iter().any(|task| !world.has_died(*task));
        let heartbeat_advances = || lives() && !(self.heartbeats_pause && world.choose(2) == 1);
        let fabric = world.fabric();
        let come = attempt_join(
            &*self.handle,
            &fabric,
            UUID,
            &self.identity,
            self.attempt,
            heartbeat_advances,
        );
        match come {
            Ok(AttemptOutcome::Admitted(admitted)) => Stage::Admitted(admitted),
            // It gives up, or comes again.
            Ok(AttemptOutcome::Again | AttemptOutcome::Refused) | Err(_) => Stage::Outside,
        }
    }

    fn move_in(&self, admitted: &Admitted, world: World) -> Stage {
        let (handle, fabric, life) = (&*self.handle, world.fabric(), admitted.life());
        // The hosts that lived or live there, perhaps until a death that no host here sees.
        match Slot::inside(handle.layout(), &fabric, SLOT) {
            Some(slot) if !slot.vacant && !admitted.has_arrived() || slot.said >= life => {
                world.refute(format!("{life:?} comes into {slot:?}"))
            }
            _ => {}
        }
        if let Err(error) = move_in(handle, &fabric, UUID, &self.identity, admitted) {
            world.refute(format!("the host was admitted and cannot join: {error}"));
        }
        if self.stays == Stays::ForOneTicket {
            // LOCK-A2: each life continues two beyond. Each before this one but the first of all
            // has used one.
            let ticket = handle.request(LOCK).own(&fabric);
            let next = u64::from(life.0.saturating_sub(2)) * 4 + 2;
            if ticket != next {
                world.refute(format!("tickets go on from {ticket}, and not from {next} (LOCK-A2)"));
            }
        }
        Stage::Joined(life)
    }

    fn leave(&self, life: Incarnation, world: World) {
        let line =
            NodeLine::new(NodeState::Left, life, self.identity.boot_id, self.identity.machine_id);
        self.handle.node_line().publish(&world.fabric(), &line);
    }
}

impl Task for Joiner {
    fn step(&mut self, world: World) -> Step {
        self.stage = match self.stage.clone() {
            Stage::Outside if self.visits == 0 => Stage::Done,
            Stage::Outside => self.come(world),
            Stage::Admitted(admitted) => self.move_in(&admitted, world),
            Stage::Joined(life) => match self.stays {
                Stays::ForEver => return Step::Ends,
                Stays::NotAtAll => Stage::Leaving(life),
                Stays::ForOneTicket => {
                    let (handle, fabric) = (&*self.handle, world.fabric());
                    let asked = crate::lock::Competitor::begin(handle, &fabric, LOCK);
                    asked.withdraw(handle, &fabric);
                    Stage::Leaving(life)
                }
            },
            Stage::Done => return Step::Ends,
            Stage::Leaving(life) => {
                self.leave(life, world);
                match self.stays {
                    Stays::ForOneTicket => Stage::Outside,
                    Stays::ForEver | Stays::NotAtAll => Stage::Done,
                }
            }
        };
        Step::Goes
    }

    fn view(&self) -> u64 {
        match self.stage {
            Stage::Outside | Stage::Leaving(_) => 0,
            Stage::Admitted(_) => INSIDE,
            Stage::Joined(_) if self.stays == Stays::ForEver => INSIDE | DONE,
            Stage::Joined(_) => INSIDE,
            Stage::Done => DONE,
        }
    }
}

/// What dies in a model of joiners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dies {
    Nobody,
    /// The host of the first joiner, at any point.
    Host,
    /// The process of the first joiner, at any point; another of its host comes after it.
    Process,
}

/// `joiners` hosts come for a slot that somebody left, each `visits` times at most.
pub(super) fn come_together(joiners: u16, visits: u32, stays: Stays, dies: Dies) -> Model<Joiner> {
    come_as(joiners, visits, stays, dies, HostIdentity::simulated)
}

/// As [`come_together`], with lines that are written back half stored.
pub(super) fn come_together_torn(joiners: u16, visits: u32) -> Model<Joiner> {
    let mut model = come_together(joiners, visits, Stays::ForEver, Dies::Nobody);
    model.line_stores = LineStores::FirstWordApart;
    model
}

/// As [`come_together`], of two hosts that are images of one installation.
pub(super) fn clones_come_together(visits: u32) -> Model<Joiner> {
    let image = |host| HostIdentity { machine_id: [7, 7], ..HostIdentity::simulated(host) };
    come_as(2, visits, Stays::ForEver, Dies::Nobody, image)
}

fn come_as(
    joiners: u16,
    visits: u32,
    stays: Stays,
    dies: Dies,
    identity: fn(u64) -> HostIdentity,
) -> Model<Joiner> {
    let protocol = match stays {
        Stays::ForOneTicket => LockProtocol::Arbitrated,
        Stays::ForEver | Stays::NotAtAll => LockProtocol::Bakery,
    };
    let ground = Ground::joined(1, 1, protocol);
    let layout = *ground.layout();
    let left = NodeLine::new(NodeState::Left, Incarnation(1), [9, 9], [9, 9]);
    layout.node_line(SLOT).claim().publish(&ground.fabric(SLOT), &left);
    let heartbeats_pause = identity(0).machine_id != identity(1).machine_id;
    let joiner = |host: u16, process: u32| {
        let identity = identity(u64::from(host));
        // The second task of host 0 comes last.
        let others = (0..joiners).filter(|other| *other != host).map(usize::from).collect();
        Joiner {
            handle: ground.node_handle(SLOT),
            attempt: JoinAttempt::new(SLOT, &identity, ProcessIdentity::new(process, 1)),
            identity: Constant::new(identity),
            others: Constant::new(others),
            heartbeats_pause,
            // The first comes back after the second, and no more is needed for what a slot that
            // moved leaves in the caches of a host.
            visits: if stays == Stays::ForOneTicket && host == 1 { 1 } else { visits },
            stays,
            stage: Stage::Outside,
        }
    };
    for host in 0..joiners {
        // Of many, each has been there before, as long ago as the slot's last life: what they are
        // stands beside the marks that they will make. Of two, the first writing of that is
        // explored.
        if joiners > 2 || stays == Stays::ForOneTicket {
            let (attempt, fabric) = (joiner(host, 1).attempt, ground.fabric(SLOT));
            let snapshot = attempt.look(&layout, &fabric, Incarnation(1));
            attempt.record_identity(&layout, &fabric, &snapshot);
        }
    }
    let mut model = ground.model();
    model.hosts = usize::from(joiners);
    for host in 0..joiners {
        model.run(format!("joiner {host}"), usize::from(host), joiner(host, 1));
    }
    match dies {
        Dies::Nobody => {}
        Dies::Host => {
            model.mortal_hosts.push(0);
            model.deaths = 1;
        }
        Dies::Process => {
            model.tasks[0].mortal = true;
            let next = model.run("next joiner 0", 0, joiner(0, 2));
            model.tasks[next].after_death_of = Some(0);
            model.deaths = 1;
        }
    }
    model.line_stores = LineStores::Whole;
    model.always =
        Rc::new(|views| match views.iter().filter(|view| **view & INSIDE != 0).count() {
            0 | 1 => Ok(()),
            inside => Err(format!("{inside} hosts are in one slot")),
        });
    // The view is 0 for the dead, and for a process that comes after no other.
    let absent = usize::from(dies != Dies::Nobody);
    model.ended =
        Rc::new(move |views| views.iter().filter(|view| **view & DONE == 0).count() <= absent);
    model
}
