//! The death of a holder in the middle of an update of several lines, of its recoverer, and of its
//! host.

use std::rc::Rc;

use super::arbitrated::{LOCK, managed};
use super::client::{Client, Counter, DONE, INSIDE, Plan};
use super::ground::{ExploredHandle, Ground};
use super::lock_task::{LockTask, Pace, claim_counting, exclusion};
use crate::fabric::refresh_all;
use crate::intent::{Update, redo_of_dead};
use crate::layout::{CHUNK_LOCK, ChunkEntry, ChunkState, LockProtocol};
use crate::lock::{Competitor, Held, SharedTier, clear_requests_of, recover_dead_holder};
use crate::mutant::{self, Mutant};
use crate::node::{Backend, NodeHandle};
use crate::units::{ChunkId, Incarnation, NodeId};
use crate::verify::explored::{LineStores, Model, Step, World};

/// The two entries of the chunk table that are always updated together.
pub(super) const CHUNKS: [ChunkId; 2] = [ChunkId(0), ChunkId(1)];

/// A thread that takes the chunk table's lock and updates two entries at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Updater {
    handle: ExploredHandle,
    stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Outside,
    Waiting(Competitor),
    Inside(Held),
    Leaving(Held),
    Done,
}

impl Updater {
    /// One that has yet to ask for the lock.
    pub(super) fn snapshot(handle: ExploredHandle) -> Self {
        Self { handle, stage: Stage::Outside }
    }

    /// One that holds the lock, and has yet to begin its update.
    pub(super) fn inside(handle: ExploredHandle, held: Held) -> Self {
        Self { handle, stage: Stage::Inside(held) }
    }

    pub(super) fn step(&mut self, world: World) -> Step {
        let (handle, fabric) = (self.handle.clone(), world.fabric());
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Outside => Stage::Waiting(Competitor::begin(&*handle, &fabric, CHUNK_LOCK)),
            Stage::Waiting(mut waiting) => match waiting.poll(&*handle, &fabric) {
                Ok(Some(held)) => Stage::Inside(held),
                Ok(None) => Stage::Waiting(waiting),
                Err(damaged) => world.refute(damaged.to_string()),
            },
            Stage::Inside(held) => {
                self.update(world);
                Stage::Leaving(held)
            }
            Stage::Leaving(held) => {
                Competitor::release(held, &*handle, &fabric);
                Stage::Done
            }
            Stage::Done => return Step::Ends,
        };
        Step::Goes
    }

    pub(super) fn view(&self) -> u64 {
        match self.stage {
            Stage::Outside | Stage::Waiting(_) | Stage::Leaving(_) => 0,
            Stage::Inside(_) => INSIDE,
            Stage::Done => DONE,
        }
    }

    fn update(&self, world: World) {
        let (layout, fabric) = (self.handle.layout(), world.fabric());
        let lines = CHUNKS.map(|chunk| layout.chunk_entry(chunk));
        // LOCK-L1.
        refresh_all(&fabric, lines.iter().map(|line| line.range()));
        match lines.map(|line| line.cached(&fabric)) {
            [Ok(first), Ok(second)] if first == second => {}
            found => world.refute(format!("an update was seen half done: {found:?}")),
        }
        update_both(&self.handle, &fabric);
    }
}

/// Gives both chunks to the node of `handle`, which holds the chunk lock.
pub(super) fn update_both<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) {
    let layout = handle.layout();
    let (owner, incarnation) = (handle.node(), Incarnation(1));
    let entry = ChunkEntry::new(ChunkState::Owned { owner, incarnation, purpose: 5 });
    let lines = CHUNKS.map(|chunk| layout.chunk_entry(chunk));
    let update = Update::new(layout, CHUNK_LOCK);
    let update = lines.iter().fold(update, |update, line| update.line(fabric, *line, &entry));
    update.commit(handle, fabric);
}

/// A process of the same host, once it has the host's turn.
pub(super) fn recover_process(handle: &ExploredHandle, world: World) {
    if mutant::is(Mutant::ReleasesBeforeRedo) {
        Competitor::release_after_death(&**handle, &world.fabric(), CHUNK_LOCK);
        crate::intent::redo_own(&**handle, &world.fabric(), CHUNK_LOCK);
        return;
    }
    recover_dead_holder(&**handle, &world.fabric(), CHUNK_LOCK);
}

/// The recoverer of a host that lost power: the fence is that it has.
pub(super) fn recover_host(handle: &ExploredHandle, dead: NodeId, world: World) {
    let (layout, fabric) = (handle.layout(), world.fabric());
    redo_of_dead(layout, &fabric, dead);
    clear_requests_of(handle.lock_protocol(), layout, &fabric, dead);
}

/// Node 0 updates two entries and may die on the way: its process, then its recoverer, up to
/// `deaths` of them, or also the host, with any subset of what it had not yet written back. Node 1
/// updates the same entries, and finds them never half done.
pub(super) fn update_through_deaths(deaths: u32, host_dies: bool) -> Model<LockTask> {
    // The chunk table has lock 1.
    let ground = Ground::joined(3, 2, LockProtocol::Arbitrated);
    let manager = managed(&ground, NodeId(2));
    for chunk in CHUNKS {
        let line = ground.layout().chunk_entry(chunk).claim();
        line.publish(&ground.fabric(NodeId(0)), &ChunkEntry::new(ChunkState::Free));
    }
    let mut model = ground.model();
    let updater = |node| LockTask::Updater(Updater::snapshot(ground.node_handle(NodeId(node))));
    let mortal = model.run("updater 0", 0, updater(0));
    model.tasks[mortal].mortal = true;
    let other = model.run("updater 1", 1, updater(1));
    model.run(
        "manager 2",
        2,
        LockTask::Manager(ground.node_handle(NodeId(2)), manager, Pace::Whole),
    );
    let mut last = mortal;
    let recoverers = deaths - u32::from(host_dies);
    for number in 0..recoverers {
        let recoverer = LockTask::Recoverer(ground.node_handle(NodeId(0)));
        let recoverer = model.run(format!("recoverer {number}"), 0, recoverer);
        model.tasks[recoverer].after_death_of = Some(last);
        model.tasks[recoverer].mortal = number + 1 < recoverers;
        last = recoverer;
    }
    if host_dies {
        // Lives as long as its host.
        let host = model.run("host 0", 0, LockTask::Host);
        let recoverer = LockTask::HostRecoverer(ground.node_handle(NodeId(1)), NodeId(0));
        let recoverer = model.run("host recoverer", 1, recoverer);
        model.tasks[recoverer].after_death_of = Some(host);
        model.mortal_hosts.push(0);
    }
    model.deaths = deaths;
    model.line_stores = LineStores::FirstWordApart;
    model.always = exclusion(vec![mortal, other]);
    model.ended = Rc::new(move |views| views[other] == DONE);
    model
}

/// Node 0 has lost power while it held the lock. Node 1 frees what it held, and has a client that
/// waits for it; the manager, which granted it, serves on node 2 and has to see that it is free.
pub(super) fn free_what_the_dead_held() -> Model<LockTask> {
    let ground = Ground::joined(3, 1, LockProtocol::Arbitrated);
    let (dead, rescuer, serving) = (NodeId(0), NodeId(1), NodeId(2));
    let mut manager = managed(&ground, serving);
    let (handle, fabric) = (ground.simulated_handle(dead), ground.fabric(dead));
    let mut holder = Competitor::begin(&handle, &fabric, LOCK);
    manager.poll(&ground.simulated_handle(serving), &ground.fabric(serving));
    let held = holder.poll(&handle, &fabric);
    assert!(matches!(held, Ok(Some(_))), "no other process asks: {held:?}");
    let mut model = ground.model();
    let plan = Plan { lock: LOCK, rounds: 1, withdrawals: 0 };
    let counter = Counter { lines: [0, 1].map(|i| ground.payload(i)), used: 1 };
    let client = LockTask::Client(Client::new(ground.node_handle(rescuer), plan, counter));
    let client = model.run("client 1", rescuer.index(), client);
    let recoverer = LockTask::HostRecoverer(ground.node_handle(rescuer), dead);
    model.run("recoverer 1", rescuer.index(), recoverer);
    model.run(
        "manager 2",
        serving.index(),
        LockTask::Manager(ground.node_handle(serving), manager, Pace::Whole),
    );
    claim_counting(&mut model, &[client], counter);
    model
}
