//! Clients that count under a lock: with a manager that serves, with several that follow one
//! another, and without any (bakery).

use super::client::{Client, Counter, Plan};
use super::ground::Ground;
use super::lock_task::{LockTask, Pace, claim_counting};
use crate::layout::LockProtocol;
use crate::lock::arbitrated::{Manager, ManagerState};
use crate::mutant::{self, Mutant};
use crate::units::{LockId, NodeId};
use crate::verify::explored::Model;

/// The one lock of these models.
pub(super) const LOCK: LockId = LockId(0);

/// What the clients of a model do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clients {
    pub(super) nodes: u16,
    pub(super) rounds: u64,
    pub(super) withdrawals: u64,
    /// How many of the nodes, the first ones, may give up.
    pub(super) withdrawing: u16,
    pub(super) lines: usize,
    pub(super) managers: Pace,
}

impl Clients {
    pub(super) const fn new(nodes: u16, rounds: u64) -> Self {
        Self { nodes, rounds, withdrawals: 0, withdrawing: nodes, lines: 1, managers: Pace::Whole }
    }
}

/// Everybody on `ground` obeys a manager on `node`; the manager.
pub(super) fn managed(ground: &Ground, node: NodeId) -> Manager {
    let (handle, fabric) = (ground.simulated_handle(node), ground.fabric(node));
    let mut manager = Manager::claim(&handle, &fabric).expect("a new region has terms");
    ground.obey();
    let state = manager.poll(&handle, &fabric);
    assert!(matches!(state, ManagerState::Serving { .. }), "all have acknowledged: {state:?}");
    manager
}

/// Adds the clients, one a node, and what is claimed of them.
pub(super) fn add_clients(model: &mut Model<LockTask>, ground: &Ground, clients: Clients) {
    let counter = Counter { lines: [0, 1].map(|i| ground.payload(i)), used: clients.lines };
    let mut tasks = Vec::new();
    for node in (0..clients.nodes).map(NodeId) {
        let withdrawals = if node.0 < clients.withdrawing { clients.withdrawals } else { 0 };
        let plan = Plan { lock: LOCK, rounds: clients.rounds, withdrawals };
        let client = Client::new(ground.node_handle(node), plan, counter);
        let name = format!("client {node}");
        tasks.push(model.run(name, node.index(), LockTask::Client(client)));
    }
    claim_counting(model, &tasks, counter);
}

/// A manager on node `manager` serves clients on the first nodes, all without an agent: there is
/// no other term to follow.
pub(super) fn serve(clients: Clients, manager: u16) -> Model<LockTask> {
    let ground = Ground::joined(clients.nodes.max(manager + 1), 1, LockProtocol::Arbitrated);
    let node = NodeId(manager);
    let serving =
        LockTask::Manager(ground.node_handle(node), managed(&ground, node), clients.managers);
    let mut model = ground.model();
    share_line(&mut model, &ground);
    add_clients(&mut model, &ground, clients);
    model.run("manager", node.index(), serving);
    model
}

/// Clients on all nodes, and nobody else.
pub(super) fn bakery(clients: Clients) -> Model<LockTask> {
    let ground = Ground::joined(clients.nodes, 1, LockProtocol::Bakery);
    let mut model = ground.model();
    share_line(&mut model, &ground);
    add_clients(&mut model, &ground, clients);
    model
}

/// How a manager is followed by others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Succession {
    /// So many on other nodes claim terms of their own, in any order; the old ones sleep and wake
    /// at any time.
    TakeOver(u16),
    /// It dies, and another starts on its node.
    Restart,
}

/// Clients and agents on the first nodes; each manager has a node of its own, where it is the
/// agent too.
pub(super) fn follow(clients: Clients, succession: Succession) -> Model<LockTask> {
    let first = clients.nodes;
    let others = match succession {
        Succession::TakeOver(others) => others,
        Succession::Restart => 0,
    };
    let ground = Ground::joined(first + 1 + others, 1, LockProtocol::Arbitrated);
    let manager = managed(&ground, NodeId(first));
    let mut model = ground.model();
    add_clients(&mut model, &ground, clients);
    for node in (0..clients.nodes).map(NodeId) {
        let agent = LockTask::Agent(ground.node_handle(node));
        model.run(format!("agent {node}"), node.index(), agent);
    }
    let old = LockTask::Manager(ground.node_handle(NodeId(first)), manager, clients.managers);
    let old = model.run(format!("manager {first}"), usize::from(first), old);
    let mut standby = |node: u16| {
        let task = LockTask::Standby(ground.node_handle(NodeId(node)), clients.managers);
        model.run(format!("standby {node}"), usize::from(node), task)
    };
    match succession {
        Succession::TakeOver(others) => (1..=others).for_each(|other| {
            standby(first + other);
        }),
        Succession::Restart => {
            let standby = standby(first);
            model.tasks[standby].after_death_of = Some(old);
            model.tasks[old].mortal = true;
            model.deaths = 1;
        }
    }
    model
}

/// Without MEM-M1: the requests of nodes 0 and 1 are in one line.
fn share_line(model: &mut Model<LockTask>, ground: &Ground) {
    if mutant::is(Mutant::SharesLine) {
        let line = |node| ground.layout().request(NodeId(node), LOCK).range().start();
        model.moved.push((line(1), line(0), 1));
    }
}
