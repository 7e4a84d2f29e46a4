//! A host asks the agent of another to restore blocks: requests, answers, and the deaths of either
//! side (TIER-Q1, TIER-Q2).

use std::rc::Rc;

use cxl_shm::units::NodeId;
use cxl_shm::verify::explored::{LineStores, Model, Step, Task, World};

use super::ground::{Ground, OWNER, Process, READER, StillClock, key};
use crate::format::{RestoreOutcome, RestoreRequest};
use crate::tier::{AskedRestore, RestoreDesk, RestoreState, RestoreTicket};

/// Bit of a view: the process has nothing more to ask.
const DONE: u64 = 1;
/// Requests of an asking process, one after the other: more than the ring has lines.
const REQUESTS: u8 = 2;

/// Who dies, anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dies {
    Nobody,
    /// The agent; another of its host comes after it.
    Agent,
    /// The process that asks; another of its host comes after it.
    Asker,
    /// The host of the agent; nobody comes after it.
    AgentHost,
}

/// One of either side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Party {
    Asker(Asker),
    Agent(Agent),
}

/// A process that asks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Asker {
    process: Process,
    /// Whether it waits however long an answer takes.
    is_patient: bool,
    /// A request that it has not waited for.
    left: Option<RestoreTicket>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// It asks for this block.
    Asks(u8),
    Waits(u8, RestoreTicket),
    /// It has an answer, and looks again.
    Looks(u8, RestoreTicket, RestoreOutcome),
    Done,
}

/// An agent that answers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Agent {
    process: Process,
    /// It comes after another agent, and restores nothing.
    is_second: bool,
    desk: Option<RestoreDesk>,
    open: Vec<AskedRestore>,
}

/// What the first agent answers to a request for block `number`.
fn outcome_of(number: u8) -> RestoreOutcome {
    RestoreOutcome::ALL[usize::from(number)]
}

fn request(number: u8) -> RestoreRequest {
    RestoreRequest { key: key(number), wait_ms: 1, recompute_ms: None, ahead: false }
}

impl Asker {
    fn step(&mut self, world: World) -> Step {
        let (cache, clock) = (self.process.cache(), StillClock::of(world));
        let state = |ticket: RestoreTicket| match cache.restore_states(&[ticket]) {
            Ok(states) => states[0],
            Err(error) => world.refute(format!("no state is known: {error}")),
        };
        self.stage = match self.stage {
            Stage::Asks(number) => {
                let asked = cache.ask_restore(&clock, NodeId(OWNER), &[request(number)]);
                let asked = asked.unwrap_or_else(|error| world.refute(error.to_string()));
                let left = self.left.map(state);
                match asked.tickets[..] {
                    [_] if left == Some(RestoreState::Pending) => {
                        world.refute("a request that was not answered is overwritten")
                    }
                    [ticket] => Stage::Waits(number, ticket),
                    // The ring is full.
                    _ if self.is_patient || world.choose(2) == 0 => self.stage,
                    _ => Stage::Done,
                }
            }
            Stage::Waits(number, ticket) => match state(ticket) {
                RestoreState::Answered(outcome) => Stage::Looks(number, ticket, outcome),
                RestoreState::Overtaken => {
                    world.refute("another request has the place of the last")
                }
                RestoreState::Pending => match world.choose(3) {
                    1 if number < REQUESTS => {
                        self.left = Some(ticket);
                        Stage::Asks(number + 1)
                    }
                    2 if !self.is_patient => Stage::Done,
                    _ => self.stage,
                },
            },
            Stage::Looks(number, ticket, outcome) => {
                if state(ticket) != RestoreState::Answered(outcome) {
                    world.refute("a request is answered twice");
                }
                if ![outcome_of(number), RestoreOutcome::Stopped].contains(&outcome) {
                    world.refute(format!("the answer of another request: {outcome:?}"));
                }
                if number < REQUESTS { Stage::Asks(number + 1) } else { Stage::Done }
            }
            Stage::Done => return Step::Ends,
        };
        Step::Goes
    }
}

impl Agent {
    fn step(&mut self, world: World) -> Step {
        let cache = self.process.cache();
        let Some(desk) = &mut self.desk else {
            let claim = cache.claim_drives();
            let claim = claim.unwrap_or_else(|error| world.refute(error.to_string()));
            self.desk = Some(RestoreDesk::begin(&claim));
            return Step::Goes;
        };
        if let Some(asked) = self.open.pop() {
            let wanted = |number: &u8| asked.request == Some(request(*number));
            let outcome = match (1..=REQUESTS).find(wanted) {
                _ if self.is_second => RestoreOutcome::Stopped,
                Some(number) => outcome_of(number),
                None => RestoreOutcome::Damaged,
            };
            let answered = desk.answer(&cache, &[(asked, outcome)]);
            answered.unwrap_or_else(|error| world.refute(error.to_string()));
            return Step::Goes;
        }
        let open = desk.next(&cache);
        self.open = open.unwrap_or_else(|error| world.refute(error.to_string()));
        Step::Goes
    }
}

impl Task for Party {
    fn step(&mut self, world: World) -> Step {
        match self {
            Self::Asker(asker) => asker.step(world),
            Self::Agent(agent) => agent.step(world),
        }
    }

    fn view(&self) -> u64 {
        match self {
            Self::Asker(asker) => u64::from(asker.stage == Stage::Done) * DONE,
            Self::Agent(_) => 0,
        }
    }
}

/// A process asks for two blocks through a ring of one line, with or without waiting for the first
/// answer.
pub(super) fn restores_asked(dies: Dies) -> Model<Party> {
    let ground = Ground::with_drives();
    let mut model = ground.model();
    let is_patient = dies != Dies::AgentHost;
    let asker = |comes_after| {
        let process = ground.process(READER, comes_after);
        Party::Asker(Asker { process, is_patient, left: None, stage: Stage::Asks(1) })
    };
    let agent = |is_second| {
        let process = ground.process(OWNER, is_second);
        Party::Agent(Agent { process, is_second, desk: None, open: Vec::new() })
    };
    let asks = model.run("asker", usize::from(READER), asker(false));
    let answers = model.run("agent", usize::from(OWNER), agent(false));
    let next = match dies {
        Dies::Nobody => None,
        Dies::Agent => Some((answers, model.run("next agent", usize::from(OWNER), agent(true)))),
        Dies::Asker => Some((asks, model.run("next asker", usize::from(READER), asker(true)))),
        Dies::AgentHost => {
            model.mortal_hosts = vec![usize::from(OWNER)];
            model.deaths = 1;
            None
        }
    };
    if let Some((mortal, next)) = next {
        model.tasks[mortal].mortal = true;
        model.tasks[next].after_death_of = Some(mortal);
        model.deaths = 1;
    }
    model.line_stores = LineStores::Whole;
    model.ended = Rc::new(|views| views.iter().any(|view| view & DONE != 0));
    model
}
