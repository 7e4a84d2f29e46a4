//! A change of managers from a directed start: the real code ran along one fixed way to a moment at
//! which the rules of the change matter, and from there in all ways.
//!
//! The start leaves out whatever else could have happened before it: the caches are cold, one
//! client has asked before the other, and the old manager has died and grants nothing more.
//! Scenarios that begin with nothing (`restart-2x1`, `take-over-2x1`) have all of that, and need a
//! hundred times the states before they come to the same moments.

use super::arbitrated::{LOCK, managed};
use super::client::{Client, Counter, Plan};
use super::ground::Ground;
use super::lock_task::{LockTask, Pace, claim_counting};
use crate::layout::LockProtocol;
use crate::lock::{Competitor, SharedTier};
use crate::units::NodeId;
use crate::verify::explored::Model;

/// The client that waits for the lock. It comes first where a manager looks at the nodes in turn.
const WAITS: NodeId = NodeId(0);
/// The client to which the old manager granted the lock.
const GRANTED: NodeId = NodeId(1);
/// Where the managers run, one after the other.
const MANAGES: NodeId = NodeId(2);

/// How far the client is to which the old manager granted the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// It has not looked since.
    Granted,
    /// It is inside.
    Holds,
}

/// Who follows the next manager on the host of the client to which the old one granted the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Agents {
    /// One agent, and one manager comes.
    One,
    /// A deposed agent, which may be stopped anywhere, and the one that has the office since
    /// (BEAT-G2).
    Two,
}

/// A client has been granted the lock and another has asked for it; the manager has died. Another
/// manager starts on its node, and the agents follow it.
pub(super) fn succeed(progress: Progress, agents: Agents) -> Model<LockTask> {
    let ground = Ground::joined(3, 1, LockProtocol::Arbitrated);
    let mut old = managed(&ground, MANAGES);
    let (handle, fabric) = (ground.simulated_handle(GRANTED), ground.fabric(GRANTED));
    let mut granted = Competitor::begin(&handle, &fabric, LOCK);
    old.poll(&ground.simulated_handle(MANAGES), &ground.fabric(MANAGES));
    let held = match progress {
        Progress::Granted => None,
        Progress::Holds => granted.poll(&handle, &fabric).expect("no request is damaged"),
    };
    assert_eq!(held.is_some(), progress == Progress::Holds, "nobody else has asked");
    let asked = Competitor::begin(&ground.simulated_handle(WAITS), &ground.fabric(WAITS), LOCK);

    let mut model = ground.model();
    let counter = Counter { lines: [0, 1].map(|index| ground.payload(index)), used: 1 };
    let plan = Plan { lock: LOCK, rounds: 1, withdrawals: 0 };
    let first = Client::waiting(ground.node_handle(WAITS), plan, counter, asked);
    let second = match held {
        None => Client::waiting(ground.node_handle(GRANTED), plan, counter, granted),
        Some(held) => Client::inside(ground.node_handle(GRANTED), plan, counter, held),
    };
    let mut run = |name: String, node: NodeId, task| model.run(name, node.index(), task);
    let clients = [(WAITS, first), (GRANTED, second)]
        .map(|(node, client)| run(format!("client {node}"), node, LockTask::Client(client)));
    for node in [WAITS, GRANTED] {
        run(format!("agent {node}"), node, LockTask::Agent(ground.node_handle(node)));
    }
    if agents == Agents::Two {
        let deposed = LockTask::Agent(ground.node_handle(GRANTED));
        run(format!("deposed agent {GRANTED}"), GRANTED, deposed);
    }
    let standby = LockTask::Standby(ground.node_handle(MANAGES), Pace::Whole);
    run(format!("standby {MANAGES}"), MANAGES, standby);
    claim_counting(&mut model, &clients, counter);
    model
}
