//! The arbitrated lock: a manager that serves from the start, and clients.

use super::client::{Client, Counter, Plan};
use super::ground::Ground;
use super::lock_task::{LockTask, claim_counting};
use crate::fabric::explored::Model;
use crate::layout::LockProtocol;
use crate::lock::arbitrated::Manager;
use crate::units::{LockId, NodeId};

/// The one lock of these models.
pub(super) const LOCK: LockId = LockId(0);

/// What the clients of a model do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clients {
    pub(super) nodes: u16,
    pub(super) rounds: u64,
    pub(super) withdrawals: u64,
    pub(super) lines: usize,
    pub(super) releases_early: bool,
}

impl Clients {
    pub(super) const fn new(nodes: u16, rounds: u64) -> Self {
        Self { nodes, rounds, withdrawals: 0, lines: 1, releases_early: false }
    }
}

/// A region with a manager on node 0 that everybody obeys; the manager.
pub(super) fn managed(nodes: u16) -> (Ground, Manager) {
    let ground = Ground::joined(nodes, 1, LockProtocol::Arbitrated);
    let seat = ground.simulated_seat(NodeId(0));
    let fabric = ground.fabric(NodeId(0));
    let mut manager = Manager::claim(&seat, &fabric).expect("a new region has terms");
    ground.obey();
    let state = manager.poll(&seat, &fabric);
    debug_assert!(
        matches!(state, crate::lock::arbitrated::ManagerState::Serving { .. }),
        "{state:?}"
    );
    (ground, manager)
}

/// Adds the clients, one a node, and what is claimed of them.
pub(super) fn add_clients(model: &mut Model<LockTask>, ground: &Ground, clients: Clients) {
    let counter = Counter { lines: [0, 1].map(|i| ground.payload(i)), used: clients.lines };
    let mut tasks = Vec::new();
    for node in (0..clients.nodes).map(NodeId) {
        let plan = Plan {
            lock: LOCK,
            rounds: clients.rounds,
            withdrawals: clients.withdrawals,
            releases_early: clients.releases_early,
        };
        let client = Client::new(ground.seat(node), plan, counter);
        let name = format!("client {node}");
        tasks.push(model.run(name, node.index(), LockTask::Client(client)));
    }
    claim_counting(model, &tasks, counter);
}

/// A manager on node 0 serves clients on all nodes.
pub(super) fn serve(clients: Clients) -> Model<LockTask> {
    let (ground, manager) = managed(clients.nodes);
    let mut model = ground.model();
    add_clients(&mut model, &ground, clients);
    model.run("manager", 0, LockTask::Manager(ground.seat(NodeId(0)), manager));
    model
}
