//! Two threads of one node that want different locks: both tell the lock manager in one line
//! (LOCK-S1 to LOCK-S3).

use super::arbitrated::managed;
use super::client::{Client, Counter, Plan};
use super::ground::Ground;
use super::lock_task::{LockTask, Pace, claim_counting_each};
use crate::layout::LockProtocol;
use crate::units::{LockId, NodeId};
use crate::verify::explored::Model;

/// What happens in such a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct TwoLocks {
    /// How often each thread takes its lock.
    pub(super) rounds: u64,
    /// How often the thread that wants the first lock may give up waiting.
    pub(super) withdrawals: u64,
    /// Whether a thread of another node wants the first lock, too.
    pub(super) other: bool,
}

impl TwoLocks {
    pub(super) const fn new() -> Self {
        Self { rounds: 1, withdrawals: 0, other: false }
    }
}

/// Node 0 has two threads, the last node has the manager.
pub(super) fn want_two_locks(plan: TwoLocks) -> Model<LockTask> {
    let manager_node = NodeId(1 + u16::from(plan.other));
    let ground = Ground::joined(manager_node.0 + 1, 2, LockProtocol::Arbitrated);
    let manager = managed(&ground, manager_node);
    let mut model = ground.model();
    let mut locks = Vec::new();
    for lock in [0, 1_u32] {
        let line = ground.payload(u64::from(lock));
        let counter = Counter { lines: [line, line], used: 1 };
        let mut client = |node: NodeId| {
            let withdrawals = if lock == 0 { plan.withdrawals } else { 0 };
            let plan = Plan { lock: LockId(lock), rounds: plan.rounds, withdrawals };
            let client = Client::new(ground.node_handle(node), plan, counter);
            model.run(format!("client {node} of {lock}"), node.index(), LockTask::Client(client))
        };
        let mut clients = vec![client(NodeId(0))];
        if plan.other && lock == 0 {
            clients.push(client(NodeId(1)));
        }
        locks.push((clients, counter));
    }
    claim_counting_each(&mut model, &locks);
    let serving = LockTask::Manager(ground.node_handle(manager_node), manager, Pace::Whole);
    model.run("manager", manager_node.index(), serving);
    model
}
