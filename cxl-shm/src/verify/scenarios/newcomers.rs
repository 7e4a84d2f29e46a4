//! A host joins beside a change of managers (LOCK-T4).
//!
//! A directed start: the host was admitted to a slot that was left, one manager serves, and
//! a client on the node of the next manager has asked for the lock. From there in all ways: the
//! host moves in and asks for the lock, the next manager claims a term, and each manager makes one
//! round. So exclusion is claimed, and not that everybody is granted the lock in the end.

use std::rc::Rc;

use super::arbitrated::{LOCK, managed};
use super::client::{Client, Counter, Plan};
use super::ground::{ExploredHandle, Ground, UUID};
use super::lock_task::{LockTask, Pace, claim_counting};
use crate::host::{HostIdentity, ProcessIdentity};
use crate::layout::{LockProtocol, NodeLine, NodeState};
use crate::lifecycle::{Admitted, AttemptOutcome, JoinAttempt, attempt_join, move_in};
use crate::lock::arbitrated::ManagerState;
use crate::lock::{Competitor, SharedTier};
use crate::units::{Incarnation, NodeId};
use crate::verify::explored::{Constant, Model, World};

/// The slot that a host joins.
const NEW: NodeId = NodeId(0);
/// Where the old manager serves.
const OLD: NodeId = NodeId(1);
/// Where the next one does, beside a client.
const NEXT: NodeId = NodeId(2);

/// A host that was admitted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Newcomer {
    handle: ExploredHandle,
    identity: Constant<HostIdentity>,
    admitted: Admitted,
    /// What it does in the slot.
    then: Client,
}

impl Newcomer {
    /// Moves in; the client that it is then.
    pub(super) fn step(&self, world: World) -> Client {
        let moved = move_in(&*self.handle, &world.fabric(), UUID, &self.identity, &self.admitted);
        match moved {
            Ok(_) => self.then.clone(),
            Err(error) => world.refute(format!("the admission was in vain: {error}")),
        }
    }
}

/// See the module.
pub(super) fn join_beside_a_change() -> Model<LockTask> {
    let ground = Ground::joined(3, 1, LockProtocol::Arbitrated);
    let [new, old] = [NEW, OLD].map(|node| ground.fabric(node));
    let left = NodeLine::new(NodeState::Left, Incarnation(1), [1, 0], [1, 0]);
    ground.simulated_handle(NEW).node_line().publish(&new, &left);
    let mut manager = managed(&ground, OLD);
    let state = manager.poll(&ground.simulated_handle(OLD), &old);
    assert!(matches!(state, ManagerState::Serving { .. }), "{state:?}");
    let identity = HostIdentity::simulated(0);
    let attempt = JoinAttempt::new(NEW, &identity, ProcessIdentity::new(9, 1));
    let handle = ground.simulated_handle(NEW);
    handle.tier().set_member(false);
    let admitted = match attempt_join(&handle, &new, UUID, &identity, attempt, || false) {
        Ok(AttemptOutcome::Admitted(admitted)) => admitted,
        other => panic!("nobody else comes for the slot: {other:?}"),
    };
    let asked = Competitor::begin(&ground.simulated_handle(NEXT), &ground.fabric(NEXT), LOCK);

    let mut model = ground.model();
    let counter = Counter { lines: [0, 1].map(|index| ground.payload(index)), used: 1 };
    let plan = Plan { lock: LOCK, rounds: 1, withdrawals: 0 };
    let newcomer = LockTask::Newcomer(Newcomer {
        handle: ground.node_handle(NEW),
        identity: Constant::new(identity),
        admitted,
        then: Client::new(ground.node_handle(NEW), plan, counter),
    });
    let newcomer = model.run("newcomer 0", NEW.index(), newcomer);
    let client = LockTask::Client(Client::waiting(ground.node_handle(NEXT), plan, counter, asked));
    let client = model.run("client 2", NEXT.index(), client);
    model.run("agent 1", OLD.index(), LockTask::Agent(ground.node_handle(OLD)));
    let manager = LockTask::Manager(ground.node_handle(OLD), manager, Pace::Rounds(1));
    model.run("manager 1", OLD.index(), manager);
    let standby = LockTask::Standby(ground.node_handle(NEXT), Pace::Rounds(1));
    model.run("standby 2", NEXT.index(), standby);
    claim_counting(&mut model, &[newcomer, client], counter);
    // The managers make one round each: enough to grant beside each other, not for everybody.
    model.ended = Rc::new(|_| true);
    model.at_end = Rc::new(|_, _| Ok(()));
    model
}
