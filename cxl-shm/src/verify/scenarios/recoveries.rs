//! Recovery of a dead host by the production state machine, beside its next life, beside a thread
//! that waits for its lock, and beside other recoverers (DEATH-R1 to DEATH-R5).
//!
//! A directed start: the members joined by the production join, each on a host that is not numbered
//! like its node; node 0 died within an update of two lines under the chunk lock, and the decision
//! stands. It has no chunks of a heap, so nothing is adopted.

use std::rc::Rc;

use super::client::INSIDE;
use super::ground::{ExploredHandle, word};
use super::lock_task::{LockTask, Pace};
use super::recovery::{CHUNKS, Updater, update_both};
use crate::clock::Clock;
use crate::fabric::{HostMemory, LineWords};
use crate::host::{HostIdentity, HostTier, Liveness, ProcessIdentity};
use crate::layout::{
    Appointment, Arrival, CHUNK_LOCK, Case, ChunkEntry, ChunkState, Geometry, Layout, LockProtocol,
    NodeLine, NodeState, Superblock, format_superblock,
};
use crate::lifecycle::resign;
use crate::lifecycle::{
    Admitted, AttemptOutcome, Fence, FenceOrder, FenceState, JoinAttempt, Need, Progress, Proposal,
    Recovery, Remembered, attempt_join, move_in, need_of,
};
use crate::lock::arbitrated::{Manager, obey_newest_term};
use crate::lock::{Competitor, Held, SharedTier};
use crate::node::{Member, NodeHandle};
use crate::units::{Incarnation, LINE_WORDS, LineRange, NodeId};
use crate::verify::explored::{
    Constant, ExploredFabric, ExploredHostMemory, LineStores, Model, Step, Task, World,
};
use crate::verify::simulated::{Faults, Schedule, SimulatedHost, SimulatedRack};
use crate::verify::{ExploredBackend, SimulatedBackend};

const UUID: [u64; 2] = [1, 2];
const NODES: u16 = 3;
const DEAD: NodeId = NodeId(0);
const RECOVERER: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);
const LIFE: Incarnation = Incarnation(1);
const CASE: Case = Case { incarnation: LIFE, appointment: 1 };
/// Process ids of a host: the first process, and the one after it.
const FIRST: u32 = 2;

/// Bit of a view: it writes what the dead host left.
const WRITES: u64 = 1 << 8;
/// Bit of a view: it has come into a slot that nobody had left (DEATH-R3).
const ARRIVED: u64 = 1 << 10;
/// Bit of a view: it has come into a slot that was free.
const CAME: u64 = 1 << 11;
/// Bit of a view: it has nothing more to do.
const FINISHED: u64 = 1 << 12;

/// The host on which a node lives.
const fn host_of(node: NodeId) -> usize {
    (node.0 as usize + 1) % NODES as usize
}

/// Which processes live: all, or all but the first of each host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lives {
    Everybody,
    NotTheFirst,
}

impl Liveness for Lives {
    fn is_alive(&self, process: ProcessIdentity) -> bool {
        *self == Self::Everybody || process.pid() != FIRST
    }
}

type ModelMember = Member<ExploredBackend<Lives>>;

/// Time stands still.
#[derive(Debug)]
struct StillClock;

impl Clock for StillClock {
    fn now_ms(&self) -> u64 {
        0
    }

    fn pause(&self, _: u32) {}
}

/// A fence of a host that is off.
struct Off;

impl Fence for Off {
    fn poll(&mut self, _: &FenceOrder, _: u64) -> FenceState {
        FenceState::Fenced
    }
}

/// A fence that holds once the victim's task is dead.
struct ModelFence(World, Option<usize>);

impl Fence for ModelFence {
    fn poll(&mut self, _: &FenceOrder, _: u64) -> FenceState {
        match self.1 {
            Some(task) if !self.0.has_died(task) => FenceState::Running,
            _ => FenceState::Fenced,
        }
    }
}

/// A process that would recover the dead.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Recoverer {
    member: Constant<ModelMember>,
    /// The task whose death the fence waits for.
    victim: Option<usize>,
    /// How often it looks what is to be done, at most.
    looks: u32,
    /// The next life of the dead node lives: its heartbeat advances, and nobody declares it dead.
    next_lives: bool,
    /// It only gives its recoveries up.
    resigns: bool,
    stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Looking,
    Proposing(Proposal),
    Recovering(Remembered),
    Done,
}

impl Recoverer {
    fn step(&mut self, world: World) -> Step {
        let member = self.member.clone();
        if self.resigns {
            resign(&*member);
            self.stage = Stage::Done;
            self.resigns = false;
            return Step::Ends;
        }
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Done => return Step::Ends,
            Stage::Looking if self.looks == 0 => Stage::Done,
            Stage::Looking => {
                self.looks -= 1;
                let of_living = |need: &Need| match need {
                    Need::Propose(proposal) => proposal.case().incarnation > LIFE,
                    Need::Recover(_) => false,
                };
                let need = need_of(&member, &StillClock, DEAD);
                match need.filter(|need| !(self.next_lives && of_living(need))) {
                    Some(Need::Propose(proposal)) => Stage::Proposing(proposal),
                    Some(Need::Recover(remembered)) => Stage::Recovering(remembered),
                    None => Stage::Looking,
                }
            }
            Stage::Proposing(mut proposal) => {
                match proposal.poll(member.layout(), member.fabric()) {
                    Progress::Pending | Progress::Unreadable { .. } | Progress::Outbid => {
                        Stage::Proposing(proposal)
                    }
                    Progress::Decided(_) | Progress::Over { .. } => Stage::Looking,
                    Progress::Exhausted => world.refute("no ballots are left"),
                }
            }
            Stage::Recovering(remembered) => {
                let mut recovery = Recovery::of_remembered(remembered);
                recovery.poll(&member, &StillClock, &mut ModelFence(world, self.victim));
                if recovery.is_finished() && recovery.remembered().is_superseded() {
                    Stage::Looking
                } else if recovery.is_finished() {
                    Stage::Done
                } else {
                    Stage::Recovering(recovery.remembered())
                }
            }
        };
        Step::Goes
    }

    fn view(&self) -> u64 {
        match &self.stage {
            Stage::Recovering(remembered) if remembered.writes() => WRITES,
            Stage::Done => FINISHED,
            Stage::Looking | Stage::Proposing(_) | Stage::Recovering(_) => 0,
        }
    }
}

/// The next life of the dead node, on its own machine after another boot.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Returner {
    handle: ExploredHandle,
    identity: Constant<HostIdentity>,
    attempt: JoinAttempt,
    visits: u32,
    stage: Returns,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Returns {
    Outside,
    Admitted(Admitted),
    Home(bool, Incarnation),
    GaveUp,
}

impl Returner {
    fn step(&mut self, world: World) -> Step {
        let (handle, fabric) = (self.handle.clone(), world.fabric());
        self.stage = match self.stage.clone() {
            Returns::Outside if self.visits == 0 => Returns::GaveUp,
            Returns::Outside => {
                self.visits -= 1;
                // The heartbeat of the dead stands still.
                let heartbeat_advances = || false;
                match attempt_join(
                    &*handle,
                    &fabric,
                    UUID,
                    &self.identity,
                    self.attempt,
                    heartbeat_advances,
                ) {
                    Ok(AttemptOutcome::Admitted(admitted)) => Returns::Admitted(admitted),
                    Ok(AttemptOutcome::Again | AttemptOutcome::Refused) | Err(_) => {
                        Returns::Outside
                    }
                }
            }
            Returns::Admitted(admitted) => {
                match move_in(&*handle, &fabric, UUID, &self.identity, &admitted) {
                    Ok(life) => Returns::Home(admitted.has_arrived(), life),
                    Err(error) => world.refute(format!("the admission was in vain: {error}")),
                }
            }
            Returns::Home(..) | Returns::GaveUp => return Step::Ends,
        };
        Step::Goes
    }

    fn view(&self) -> u64 {
        let came = |arrived| if arrived { ARRIVED } else { CAME };
        match &self.stage {
            Returns::Outside => 0,
            Returns::Admitted(admitted) => came(admitted.has_arrived()),
            Returns::Home(arrived, life) => FINISHED | came(*arrived) | u64::from(life.0) << 32,
            Returns::GaveUp => FINISHED,
        }
    }
}

/// A task of a model of recoveries.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum RecoveryTask {
    Recoverer(Recoverer),
    Returner(Returner),
    Updater(Updater),
    Lock(LockTask),
}

impl Task for RecoveryTask {
    fn step(&mut self, world: World) -> Step {
        match self {
            Self::Recoverer(recoverer) => recoverer.step(world),
            Self::Returner(returner) => returner.step(world),
            Self::Updater(updater) => updater.step(world),
            Self::Lock(task) => task.step(world),
        }
    }

    fn view(&self) -> u64 {
        match self {
            Self::Recoverer(recoverer) => recoverer.view(),
            Self::Returner(returner) => returner.view(),
            Self::Updater(updater) => updater.view(),
            Self::Lock(task) => task.view(),
        }
    }
}

/// Three members on a rack: the first process of each host, and one that continues after it.
struct Bed {
    rack: SimulatedRack,
    layout: Layout,
    protocol: LockProtocol,
    words: usize,
    members: Vec<[Member<SimulatedBackend<Lives>>; 2]>,
}

impl Bed {
    fn joined(protocol: LockProtocol) -> Self {
        let geometry = Geometry {
            region_bytes: 1 << 20,
            nodes: NODES,
            locks: 8,
            chunk_bytes: 64 << 10,
            area_lines: 1,
            host_words: 0,
        };
        let rack = SimulatedRack::sticky(usize::from(NODES), geometry.region_bytes);
        let superblock =
            Superblock { lock_protocol: protocol, ..Superblock::new(UUID, geometry, [0; 6]) };
        format_superblock(&rack.host(0), &superblock, |_, _| ()).expect("the region fits");
        let layout = Layout::new(geometry).expect("1 MiB holds three nodes");
        let words = HostTier::words_of(&geometry);
        let join = |node: NodeId, process: u32| {
            let host = host_of(node);
            Member::join(
                rack.host(host),
                rack.host_memory(host, words),
                node.0,
                &HostIdentity::simulated(host as u64),
                ProcessIdentity::new(process, 1),
                Lives::Everybody,
                &rack.clock(host),
            )
            .unwrap_or_else(|error| panic!("{error}"))
        };
        let nodes = (0..NODES).map(NodeId);
        let members = nodes.map(|node| [0, 1].map(|next| join(node, FIRST + next))).collect();
        let bed = Self { rack, layout, protocol, words, members };
        for chunk in CHUNKS {
            let line = bed.layout.chunk_entry(chunk).claim();
            line.publish(&bed.fabric(DEAD), &ChunkEntry::new(ChunkState::Free));
        }
        bed
    }

    fn fabric(&self, node: NodeId) -> SimulatedHost {
        self.rack.host(host_of(node))
    }

    fn simulated_handle(&self, node: NodeId) -> NodeHandle<SimulatedBackend> {
        let memory = self.rack.host_memory(host_of(node), self.words);
        let tier = HostTier::new(memory, self.layout.locks());
        NodeHandle::new(self.layout, self.protocol, node, tier)
    }

    fn node_handle(&self, node: NodeId) -> ExploredHandle {
        let memory = ExploredHostMemory::with_words(self.words);
        let tier = HostTier::new(memory, self.layout.locks());
        Constant::new(NodeHandle::new(self.layout, self.protocol, node, tier))
    }

    /// Node 0 holds the chunk lock.
    fn take_lock(&self) -> Held {
        let (handle, fabric) = (self.simulated_handle(DEAD), self.fabric(DEAD));
        let mut taking = Competitor::begin(&handle, &fabric, CHUNK_LOCK);
        let (serves, serving) = (self.simulated_handle(RECOVERER), self.fabric(RECOVERER));
        let mut manager = (self.protocol == LockProtocol::Arbitrated)
            .then(|| Manager::claim(&serves, &serving).expect("a new region has terms"));
        for node in self.layout.nodes() {
            obey_newest_term(&self.simulated_handle(node), &self.fabric(node));
        }
        loop {
            if let Some(manager) = &mut manager {
                manager.poll(&serves, &serving);
            }
            if let Some(held) = taking.poll(&handle, &fabric).expect("no request is damaged") {
                return held;
            }
        }
    }

    /// Node 0 has lost power within an update under the chunk lock: one of its two lines is
    /// written.
    fn died_in_update(protocol: LockProtocol) -> Self {
        let entry =
            |bed: &Self, chunk| bed.rack.device_word(word(bed.layout.chunk_entry(chunk).at(), 0));
        for step in 1.. {
            let bed = Self::joined(protocol);
            let _held = bed.take_lock();
            let free = entry(&bed, CHUNKS[0]);
            let (handle, fabric) = (bed.simulated_handle(DEAD), bed.fabric(DEAD));
            Schedule::builder(&bed.rack, 1)
                .faults(Faults::NONE)
                .task(host_of(DEAD), "dies", move || update_both(&handle, &fabric))
                .crash_host_at(host_of(DEAD), step)
                .run();
            if entry(&bed, CHUNKS[0]) != free && entry(&bed, CHUNKS[1]) == free {
                return bed;
            }
            assert!(step < 10_000, "an update writes one line after the other");
        }
        unreachable!("the loop has no end")
    }

    /// `proposer` declares node 0 dead in `case`, and is appointed.
    fn decide(&self, proposer: NodeId, case: Case) -> Appointment {
        let mut proposal = Proposal::begin(proposer, LIFE, DEAD, case);
        loop {
            if let Progress::Decided(value) = proposal.poll(&self.layout, &self.fabric(proposer)) {
                return value;
            }
        }
    }

    fn member(&self, node: NodeId, next: bool) -> Constant<ModelMember> {
        let member = &self.members[node.index()][usize::from(next)];
        let lives = if next { Lives::NotTheFirst } else { Lives::Everybody };
        let memory = ExploredHostMemory::with_words(self.words);
        Constant::new(member.carried_to(ExploredFabric::of_present_step(), memory, lives))
    }

    fn recoverer(&self, node: NodeId, next: bool, looks: u32) -> Recoverer {
        let member = self.member(node, next);
        let (victim, next_lives, stage) = (None, true, Stage::Looking);
        Recoverer { member, victim, looks, next_lives, resigns: false, stage }
    }

    fn returner(&self, visits: u32) -> RecoveryTask {
        // Its machine has booted since.
        let before = HostIdentity::simulated(host_of(DEAD) as u64);
        let identity = HostIdentity { boot_id: [99, 0], ..before };
        RecoveryTask::Returner(Returner {
            handle: self.node_handle(DEAD),
            attempt: JoinAttempt::new(DEAD, &identity, ProcessIdentity::new(9, 1)),
            identity: Constant::new(identity),
            visits,
            stage: Returns::Outside,
        })
    }

    fn updater(&self, node: NodeId) -> RecoveryTask {
        RecoveryTask::Updater(Updater::snapshot(self.node_handle(node)))
    }

    /// A model that starts from what the rack holds now, with cold caches.
    fn model(&self, stores: LineStores) -> Model<RecoveryTask> {
        let mut model = Model::new(usize::from(NODES), self.rack.bytes());
        for at in LineRange::covering(self.layout.metadata()).iter() {
            let words: LineWords =
                std::array::from_fn(|index| self.rack.device_word(word(at, index)));
            if words != [0; LINE_WORDS] {
                model.lines.push((at, words));
            }
        }
        for host in 0..usize::from(NODES) {
            let memory = self.rack.host_memory(host, self.words);
            for index in 0..self.words {
                let value = memory.load(index);
                if value != 0 {
                    model.own_words.push((host, index, value));
                }
            }
        }
        let layout = &self.layout;
        let mut name = |lines: LineRange, name: String| model.names.push((lines, name));
        for node in layout.nodes() {
            name(layout.node_line(node).range(), format!("node line {node}"));
            name(layout.arrival(node).range(), format!("arrival {node}"));
            name(layout.claim_word(node).range(), format!("claim word {node}"));
            name(layout.join_marks(node), format!("join marks {node}"));
            name(layout.requests(node).range(), format!("requests {node}"));
            name(layout.intents(node).range(), format!("intents {node}"));
            name(layout.ballots(node).range(), format!("ballots {node}"));
            name(layout.recoveries(node).range(), format!("recoveries {node}"));
        }
        name(layout.chunk_table(), "chunk table".to_owned());
        for node in layout.nodes() {
            model.left_out.push(layout.heartbeat(node).range());
            model.left_out.push(layout.manager_heartbeat(node).range());
        }
        model.line_stores = stores;
        model
    }
}

/// What every model here claims: one at a time writes what the dead left, and a host that has come
/// to the slot is in it at the end.
fn claim(model: &mut Model<RecoveryTask>, layout: &Layout) {
    model.always = Rc::new(|views| {
        let count = |bits: u64| views.iter().filter(|view| **view & bits != 0).count();
        if count(INSIDE) > 1 {
            return Err("two hosts are inside of one lock".to_owned());
        }
        if count(WRITES | ARRIVED) > 1 || count(WRITES) + count(CAME) > 1 {
            return Err("two write what the dead left".to_owned());
        }
        Ok(())
    });
    let line = word(layout.node_line(DEAD).at(), 0);
    model.at_end = Rc::new(move |views, device| {
        let home = views.iter().find(|view| **view & (ARRIVED | CAME) != 0 && **view >> 32 != 0);
        let Some(life) = home.map(|view| view >> 32) else { return Ok(()) };
        let life = Incarnation(u32::try_from(life).unwrap_or(u32::MAX));
        let joined = NodeLine::new(NodeState::Joined, life, [0; 2], [0; 2]).first_word();
        match device(line) == joined {
            true => Ok(()),
            false => Err(format!("life {life:?} of the dead node was ended by its recovery")),
        }
    });
}

/// The participants beside an appointed recoverer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beside {
    /// A host that waits for the lock of the dead.
    Waits,
    /// The next life of the dead.
    Returns,
    /// The next life of the dead; the recoverer's process dies at any point and another continues.
    ReturnsAndDies,
    /// Another host, which would recover, too; the recoverer's process dies, and its host resigns.
    Succeeds,
    /// The next lock manager, on the host of a client that waits for the lock of the dead.
    NextTerm,
    /// Another host, which recovers a later life of the slot: that has died in admission.
    Later,
}

/// The dead is fenced. A recoverer was appointed.
pub(super) fn recover_beside(beside: Beside, stores: LineStores) -> Model<RecoveryTask> {
    let protocol = match beside {
        Beside::NextTerm => LockProtocol::Arbitrated,
        _ => LockProtocol::Bakery,
    };
    let bed = Bed::died_in_update(protocol);
    bed.decide(RECOVERER, CASE);
    let mut first = bed.recoverer(RECOVERER, false, 2);
    if matches!(beside, Beside::Later | Beside::NextTerm) {
        first.stage = Stage::Recovering(bed.begin());
    }
    if beside == Beside::Later {
        bed.begin_admission();
    }
    let mut model = bed.model(stores);
    let recovers = host_of(RECOVERER);
    let first = model.run("recoverer 1", recovers, RecoveryTask::Recoverer(first));
    let mut all = vec![first];
    let dies = |model: &mut Model<RecoveryTask>, next: Recoverer, name: &str| {
        model.tasks[first].mortal = true;
        model.deaths = 1;
        let next = model.run(name, recovers, RecoveryTask::Recoverer(next));
        model.tasks[next].after_death_of = Some(first);
    };
    match beside {
        Beside::Waits => {
            all.push(model.run("updater 2", host_of(OTHER), bed.updater(OTHER)));
        }
        Beside::Returns => {
            all.push(model.run("next life of 0", host_of(DEAD), bed.returner(2)));
        }
        Beside::ReturnsAndDies => {
            all.push(model.run("next life of 0", host_of(DEAD), bed.returner(1)));
            dies(&mut model, bed.recoverer(RECOVERER, true, 1), "next recoverer 1");
        }
        Beside::Succeeds => {
            let other = RecoveryTask::Recoverer(bed.recoverer(OTHER, false, 3));
            all.push(model.run("recoverer 2", host_of(OTHER), other));
            let resigns = Recoverer { resigns: true, ..bed.recoverer(RECOVERER, true, 1) };
            dies(&mut model, resigns, "agent 1");
        }
        Beside::NextTerm => {
            all.push(model.run("updater 2", host_of(OTHER), bed.updater(OTHER)));
            let standby = LockTask::Standby(bed.node_handle(OTHER), Pace::Whole);
            model.run("standby 2", host_of(OTHER), RecoveryTask::Lock(standby));
            let agent = LockTask::Agent(bed.node_handle(RECOVERER));
            model.run("agent 1", recovers, RecoveryTask::Lock(agent));
        }
        Beside::Later => {
            let other = Recoverer { next_lives: false, ..bed.recoverer(OTHER, false, 3) };
            let other = RecoveryTask::Recoverer(other);
            all.push(model.run("recoverer 2", host_of(OTHER), other));
        }
    }
    claim(&mut model, &bed.layout);
    let mortal = model.tasks[first].mortal;
    model.ended = Rc::new(move |views| {
        let open = all.iter().filter(|task| views[**task] & (FINISHED | super::client::DONE) == 0);
        // The dead have the view 0.
        open.count() <= usize::from(mortal)
    });
    model
}

/// The victim is no longer heard of, and lives: it is within the lock, and its host loses power at
/// any time. Nobody recovers it before (DEATH-R1).
pub(super) fn recover_the_living(stores: LineStores) -> Model<RecoveryTask> {
    let bed = Bed::joined(LockProtocol::Bakery);
    let held = bed.take_lock();
    bed.decide(RECOVERER, CASE);
    let mut model = bed.model(stores);
    let victim = RecoveryTask::Updater(Updater::inside(bed.node_handle(DEAD), held));
    let victim = model.run("victim", host_of(DEAD), victim);
    let recoverer = Recoverer { victim: Some(victim), ..bed.recoverer(RECOVERER, false, 1) };
    let recoverer =
        model.run("recoverer 1", host_of(RECOVERER), RecoveryTask::Recoverer(recoverer));
    let other = model.run("updater 2", host_of(OTHER), bed.updater(OTHER));
    model.mortal_hosts.push(host_of(DEAD));
    model.deaths = 1;
    claim(&mut model, &bed.layout);
    let always = Rc::clone(&model.always);
    model.always = Rc::new(move |views| {
        if views[victim] & INSIDE != 0 && views[recoverer] & WRITES != 0 {
            return Err("what a living host writes is recovered (DEATH-R1)".to_owned());
        }
        always(views)
    });
    model.ended = Rc::new(move |views| {
        // It is waited for while it lives.
        views[other] & super::client::DONE != 0
            && (views[recoverer] & FINISHED != 0 || views[victim] & super::client::DONE != 0)
    });
    model
}

impl Bed {
    /// The recoverer has begun, and is about to write.
    fn begin(&self) -> Remembered {
        let member = &self.members[RECOVERER.index()][0];
        let mut recovery = Recovery::begin(member, DEAD, CASE);
        while !recovery.remembered().writes() {
            recovery.poll(member, &StillClock, &mut Off);
        }
        recovery.remembered()
    }

    /// The next life of node 0 came, said so, and died before it looked for a recoverer (DEATH-R3).
    fn begin_admission(&self) {
        let fabric = self.fabric(DEAD);
        let before = HostIdentity::simulated(host_of(DEAD) as u64);
        let identity = HostIdentity { boot_id: [99, 0], ..before };
        let attempt = JoinAttempt::new(DEAD, &identity, ProcessIdentity::new(9, 1));
        let snapshot = attempt.look(&self.layout, &fabric, LIFE);
        let next = Incarnation(LIFE.0 + 1);
        attempt.try_claim(&self.layout, &fabric, &snapshot, next).expect("nobody else comes");
        self.simulated_handle(DEAD).arrival().publish(&fabric, Arrival::Life(next).word());
    }
}
