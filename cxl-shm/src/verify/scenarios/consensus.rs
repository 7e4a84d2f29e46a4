//! Hosts agree on the recoverer of a dead host.

use std::rc::Rc;

use crate::layout::{Appointment, Case, Layout, LockProtocol};
use crate::lifecycle::{Progress, Proposal, decided_about};
use crate::units::{Incarnation, NodeId};
use crate::verify::explored::{Constant, LineStores, Model, Step, Task, World};

use super::ground::Ground;

const VICTIM: NodeId = NodeId(0);
const CASE: Case = Case { incarnation: Incarnation(1), appointment: 1 };
/// The case of the life after that, which died during admission.
const LATER_CASE: Case = Case { incarnation: Incarnation(2), appointment: 1 };
/// Bit of a view: the task is done and decided nothing.
const GAVE_UP: u64 = 1;
/// Bit of a view: the task is done and has seen a decision.
const DECIDED: u64 = 2;
/// Bit of a view: the task takes part in the later case.
const LATER: u64 = 4;

/// A node that proposes, and then reads what was decided.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Proposer {
    layout: Constant<Layout>,
    proposal: Proposal,
    /// Takes part in the later case once it sees that this is open.
    follows: bool,
    /// How often it continues after it was outbid: proposers could continue outbidding each other
    /// for ever, with ballots that nobody has used before.
    tries: u32,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Outcome {
    Open,
    Decided(Appointment),
    /// Was outbid once too often.
    GaveUp,
}

impl Task for Proposer {
    fn step(&mut self, world: World) -> Step {
        match self.outcome {
            Outcome::Open => match self.proposal.poll(&self.layout, &world.fabric()) {
                Progress::Pending => {}
                // A line that is being written; the next look finds it whole.
                Progress::Unreadable { .. } => {}
                Progress::Outbid if self.tries == 0 => self.outcome = Outcome::GaveUp,
                Progress::Outbid => self.tries -= 1,
                Progress::Decided(value) => self.outcome = Outcome::Decided(value),
                Progress::Over { by: LATER_CASE } if self.follows => {
                    self.proposal = self.proposal.in_case(LATER_CASE);
                }
                end => world.refute(format!("a proposal ends with {end:?}")),
            },
            Outcome::GaveUp => return Step::Ends,
            Outcome::Decided(value) => {
                // A proposer that decided, or saw a decision, finds the value in the region.
                let case = self.proposal.case();
                let read = decided_about(&self.layout, &world.fabric(), VICTIM, case.incarnation);
                // DEATH-C2: once a later case is open, an earlier one is superseded.
                let read = read.filter(|decision| decision.case == case);
                let is_superseded = self.follows && case != LATER_CASE && read.is_none();
                if read.map(|decision| decision.appointment) != Some(value) && !is_superseded {
                    world.refute(format!("{value:?} was decided, the region says {read:?}"));
                }
                return Step::Ends;
            }
        }
        Step::Goes
    }

    fn view(&self) -> u64 {
        let later = if self.proposal.case() == LATER_CASE { LATER } else { 0 };
        later
            | match self.outcome {
                Outcome::Open => 0,
                Outcome::GaveUp => GAVE_UP,
                Outcome::Decided(value) => {
                    let Appointment { recoverer, incarnation, epoch } = value;
                    DECIDED
                        | u64::from(recoverer.0) << 8
                        | u64::from(incarnation.0) << 24
                        | epoch << 40
                }
            }
    }
}

/// One proposer on each of nodes 1 to `proposers`, of which up to `deaths` processes die at any
/// point and are followed by another process of their host, and those hosts may lose power.
pub(super) fn agree(proposers: u16, tries: u32, deaths: u32, host_dies: bool) -> Model<Proposer> {
    let ground = Ground::joined(proposers + 1, 1, LockProtocol::Arbitrated);
    let mut model = ground.model();
    let proposer = |node| Proposer {
        layout: Constant::new(*ground.layout()),
        proposal: Proposal::begin(node, Incarnation(1), VICTIM, CASE),
        follows: false,
        tries,
        outcome: Outcome::Open,
    };
    for node in (1..=proposers).map(NodeId) {
        model.run(format!("proposer {node}"), node.index(), proposer(node));
    }
    if deaths > 0 && !host_dies {
        model.tasks[0].mortal = true;
        let next = model.run("next proposer 1", 1, proposer(NodeId(1)));
        model.tasks[next].after_death_of = Some(0);
    }
    if host_dies {
        model.mortal_hosts.push(1);
    }
    model.deaths = deaths;
    model.line_stores = LineStores::FirstWordApart;
    let tasks = model.tasks.len();
    model.always = Rc::new(|views| {
        let decided: Vec<u64> = views.iter().copied().filter(|view| *view & DECIDED != 0).collect();
        match decided.iter().find(|view| **view != decided[0]) {
            Some(other) => Err(format!("decided are {:#x} and {other:#x}", decided[0])),
            None => Ok(()),
        }
    });
    // The dead have the view 0 too, and so has a process that comes after no other.
    let mortal = if deaths > 0 { 1 } else { 0 };
    model.ended = Rc::new(move |views| {
        let open = views[..tasks].iter().filter(|view| **view & (GAVE_UP | DECIDED) == 0).count();
        open <= mortal
    });
    model
}

/// Node 1 proposes about a life, node 2 about the one after it, which died in admission; node 1
/// continues in that case once it sees it (DEATH-C2).
pub(super) fn agree_over_cases() -> Model<Proposer> {
    let mut model = agree(2, 0, 0, false);
    let [earlier, later] = [0, 1];
    model.tasks[earlier].task.follows = true;
    let proposal = &mut model.tasks[later].task.proposal;
    *proposal = proposal.in_case(LATER_CASE);
    model.always = Rc::new(move |views| {
        let recoverer = |view: u64| (view >> 8) & 0xffff;
        let of_later = |view: &&u64| **view & DECIDED != 0 && **view & LATER != 0;
        let decided: Vec<u64> = views.iter().filter(of_later).copied().collect();
        if let Some(other) = decided.iter().find(|view| **view != decided[0]) {
            return Err(format!("decided are {:#x} and {other:#x}", decided[0]));
        }
        // Nobody is appointed in a case in which it has not proposed.
        let is_stranger = |view: &u64| recoverer(*view) == 1 && views[earlier] & LATER == 0;
        match decided.iter().any(is_stranger) {
            true => {
                Err("what was accepted in an earlier case is decided in a later one".to_owned())
            }
            false => Ok(()),
        }
    });
    model
}
