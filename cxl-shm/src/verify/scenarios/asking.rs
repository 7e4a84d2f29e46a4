//! Death of a host while it asks for a lock: the copy of its request may have arrived, and the
//! request's word be lost (LOCK-S3, LOCK-A2).

use std::rc::Rc;

use super::arbitrated::{LOCK, managed};
use super::client::{Client, Counter, DONE, Plan};
use super::ground::{ExploredHandle, Ground};
use super::lock_task::{LockTask, Pace, exclusion};
use crate::layout::LockProtocol;
use crate::lock::arbitrated::obey_newest_term;
use crate::lock::{Competitor, SharedTier};
use crate::units::NodeId;
use crate::verify::explored::{Model, World};

const ASKS: NodeId = NodeId(0);
const WAITS: NodeId = NodeId(1);
const MANAGES: NodeId = NodeId(2);

/// What becomes of the node whose host died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    /// Another host clears its requests.
    Recovered,
    /// Another machine comes as the same node, and asks for the lock again.
    ComesAgain,
}

/// The steps of a join that have to do with locks, after the admission.
pub(super) fn resume(handle: &ExploredHandle, world: World) {
    let fabric = world.fabric();
    Competitor::resume(&**handle, &fabric, LOCK);
    obey_newest_term(&**handle, &fabric);
}

/// Node 0 asks for the lock, and its host may lose power at any moment from then on. Node 1 asks
/// for the same lock, and has it in the end.
pub(super) fn die_asking(after: After) -> Model<LockTask> {
    let ground = Ground::joined(3, 1, LockProtocol::Arbitrated);
    let manager = managed(&ground, MANAGES);
    let mut model = ground.model();
    let counter = Counter { lines: [0, 1].map(|index| ground.payload(index)), used: 1 };
    let plan = Plan { lock: LOCK, rounds: 1, withdrawals: 0 };
    let client = |node| Client::new(ground.node_handle(node), plan, counter);
    let asks = model.run("client 0", ASKS.index(), LockTask::Client(client(ASKS)));
    let waits = model.run("client 1", WAITS.index(), LockTask::Client(client(WAITS)));
    let serving = LockTask::Manager(ground.node_handle(MANAGES), manager, Pace::Whole);
    model.run("manager 2", MANAGES.index(), serving);
    // Lives as long as its host.
    let host = model.run("host 0", ASKS.index(), LockTask::Host);
    let next = match after {
        After::Recovered => {
            let recoverer = LockTask::HostRecoverer(ground.node_handle(WAITS), ASKS);
            model.run("recoverer 1", WAITS.index(), recoverer)
        }
        After::ComesAgain => {
            let machine = model.hosts;
            model.hosts += 1;
            let comer = LockTask::Comer(ground.node_handle(ASKS), client(ASKS));
            model.run("client 0 again", machine, comer)
        }
    };
    model.tasks[next].after_death_of = Some(host);
    model.mortal_hosts.push(ASKS.index());
    model.deaths = 1;
    model.always = exclusion(match after {
        After::Recovered => vec![asks, waits],
        After::ComesAgain => vec![asks, waits, next],
    });
    model.ended = Rc::new(move |views| views[waits] & DONE != 0);
    model
}
