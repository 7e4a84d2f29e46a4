//! All participants of a lock between hosts.

use std::rc::Rc;

use super::asking::resume;
use super::client::{COUNTED_SHIFT, Client, Counter, DONE, INSIDE};
use super::ground::{ExploredHandle, word};
use super::newcomers::Newcomer;
use super::recovery::{Updater, recover_host, recover_process};
use crate::lock::arbitrated::{Manager, ManagerState, obey_newest_term};
use crate::units::NodeId;
use crate::verify::explored::{Claim, EndClaim, Model, Step, Task, Views, World};

/// A task of a model of locks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum LockTask {
    Client(Client),
    /// A manager that serves until it is deposed, and is its host's agent too.
    Manager(ExploredHandle, Manager, Pace),
    /// A manager that has yet to claim its term, whenever it likes.
    Standby(ExploredHandle, Pace),
    /// An agent, without its heartbeat.
    Agent(ExploredHandle),
    /// The next life of a node, from the moment that its tickets go on, and a client then.
    Comer(ExploredHandle, Client),
    /// A host that joins, and is a client then.
    Newcomer(Newcomer),
    /// A thread that updates several lines.
    Updater(Updater),
    /// Ends what a process of the same host left when it died.
    Recoverer(ExploredHandle),
    /// Does nothing while its host lives.
    Host,
    /// Ends what a host left when it died.
    HostRecoverer(ExploredHandle, NodeId),
}

/// How a manager makes its rounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Pace {
    /// Each looks at everything.
    Whole,
    /// So many, each of which looks at everything, and then no more.
    Rounds(u8),
    /// Any of them in haste, while somebody waits for a lock: more ways than there are to attend.
    Hurried,
}

impl Task for LockTask {
    fn step(&mut self, world: World) -> Step {
        match self {
            Self::Client(client) => return client.step(world),
            Self::Manager(_, _, Pace::Rounds(0)) => return Step::Ends,
            Self::Manager(handle, manager, pace) => {
                if let Pace::Rounds(left) = pace {
                    *left -= 1;
                }
                obey_newest_term(handle, &world.fabric());
                let may_hurry = *pace == Pace::Hurried && manager.is_waited_for();
                if may_hurry && world.choose(2) == 1 {
                    manager.hurry(handle, &world.fabric());
                } else if let ManagerState::Deposed { .. } = manager.poll(handle, &world.fabric()) {
                    *self = Self::Agent(handle.clone());
                }
            }
            Self::Standby(handle, pace) => match Manager::claim(handle, &world.fabric()) {
                Some(manager) => *self = Self::Manager(handle.clone(), manager, *pace),
                None => world.refute("there are no terms left"),
            },
            Self::Agent(handle) => obey_newest_term(handle, &world.fabric()),
            Self::Comer(handle, client) => {
                resume(handle, world);
                *self = Self::Client(client.clone());
            }
            Self::Newcomer(newcomer) => *self = Self::Client(newcomer.step(world)),
            Self::Updater(updater) => return updater.step(world),
            Self::Recoverer(handle) => {
                recover_process(handle, world);
                return Step::Ends;
            }
            Self::Host => world.pause(),
            Self::HostRecoverer(handle, dead) => {
                recover_host(handle, *dead, world);
                return Step::Ends;
            }
        }
        Step::Goes
    }

    fn view(&self) -> u64 {
        match self {
            Self::Client(client) => client.view(),
            Self::Updater(updater) => updater.view(),
            Self::Manager(..)
            | Self::Standby(..)
            | Self::Agent(_)
            | Self::Comer(..)
            | Self::Newcomer(_)
            | Self::Recoverer(_)
            | Self::Host
            | Self::HostRecoverer(..) => 0,
        }
    }
}

/// At most one of `clients` is inside.
pub(super) fn exclusion(clients: Vec<usize>) -> Claim {
    Rc::new(move |views| {
        let inside = clients.iter().filter(|client| views[**client] & INSIDE != 0);
        if inside.count() <= 1 { Ok(()) } else { Err("two clients are inside".to_owned()) }
    })
}

/// The claims of a model in which `clients` count: at most one is inside, all come to their end,
/// and no count is lost.
pub(super) fn claim_counting(model: &mut Model<LockTask>, clients: &[usize], counter: Counter) {
    claim_counting_each(model, &[(clients.to_vec(), counter)]);
}

/// As [`claim_counting`], of several locks: the clients of each, and what they count.
pub(super) fn claim_counting_each(model: &mut Model<LockTask>, locks: &[(Vec<usize>, Counter)]) {
    let claims: Vec<_> = locks.iter().map(|(clients, _)| exclusion(clients.clone())).collect();
    model.always = Rc::new(move |views| claims.iter().try_for_each(|claim| claim(views)));
    let all: Vec<_> = locks.iter().flat_map(|(clients, _)| clients.clone()).collect();
    model.ended = Rc::new(move |views: Views<'_>| all.iter().all(|c| views[*c] & DONE != 0));
    let all = locks.to_vec();
    let at_end: EndClaim = Rc::new(move |views, device| {
        all.iter().try_for_each(|(clients, counter)| {
            let counted: u64 = clients.iter().map(|client| views[*client] >> COUNTED_SHIFT).sum();
            let found = counter.lines[..counter.used].iter().map(|line| device(word(*line, 0)));
            match found.into_iter().find(|found| *found != counted) {
                Some(found) => Err(format!("{counted} counts were made, the device says {found}")),
                None => Ok(()),
            }
        })
    });
    model.at_end = at_end;
}
