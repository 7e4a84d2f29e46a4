//! The scenes in which processes die at crash points: which processes there are, which dies after
//! what, and which continues.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use cxl_shm::crash::{Armed, CrashPoint};
use cxl_shm::layout::LockProtocol;

use super::child::Part;
use super::ground::Memory;
use super::rack::{Plan, Rack};

/// Rounds of everything in a scene.
const ROUNDS: u32 = 3;

/// Locks that a process which is to rescue what a dead one left takes before it ends.
const LOCKS: u64 = 30;

/// Blocks of a host that dies for others to make room of them.
const ORPHAN_BLOCKS: u64 = 24;

/// How long a dead host may stay unrecovered: far more than it takes on a busy machine.
const RECOVERED_MS: u64 = 90_000;

/// Who dies in a scene, after what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scene {
    /// A worker, in its first life.
    Worker(LockProtocol),
    /// The lock manager.
    Manager,
    /// A worker whose life before ended with a half-written update under a lock between hosts.
    Returning(LockProtocol),
    /// A worker whose life before ended with its host, and left named objects.
    Heir,
    /// Another process of a host on which a worker died with a half-written update.
    Rescuer,
    /// A worker where chunks run out.
    Dry,
    /// The lock manager that declares the host of such a worker dead, and recovers it.
    Recoverer(LockProtocol),
    /// A worker whose host stood still, and was declared dead meanwhile.
    Paused,
    /// A worker where chunks have run out, and a dead host has some that nobody came back to.
    Reclaimer,
}

impl Scene {
    /// All of them: the first that reaches a point is where it is died at.
    pub(super) const ALL: [Self; 12] = [
        Self::Worker(LockProtocol::Arbitrated),
        Self::Manager,
        Self::Returning(LockProtocol::Arbitrated),
        Self::Worker(LockProtocol::Bakery),
        Self::Returning(LockProtocol::Bakery),
        Self::Heir,
        Self::Rescuer,
        Self::Dry,
        Self::Recoverer(LockProtocol::Arbitrated),
        Self::Recoverer(LockProtocol::Bakery),
        Self::Paused,
        Self::Reclaimer,
    ];

    /// Whether it can be played on that memory.
    pub(super) fn is_for(self, memory: Memory) -> bool {
        match self {
            // Where every process is a host there is no other one on it.
            Self::Rescuer => !memory.is_private(),
            // A mapped host that was declared dead is fenced by killing: it never finds out.
            Self::Paused => memory.is_private(),
            _ => true,
        }
    }

    /// Points that it is played for. Whether its process comes there may be up to the kernel.
    pub(super) fn aims_at(self) -> &'static [CrashPoint] {
        match self {
            Self::Heir => &[CrashPoint::HeapMarked],
            // Who recovers may also be the agent of another process.
            Self::Rescuer => &[CrashPoint::LockRecovering],
            Self::Dry => &[CrashPoint::ChunkAsked, CrashPoint::ChunkVacated],
            Self::Recoverer(_) => &[CrashPoint::RecoveryFinalized],
            Self::Paused => &[CrashPoint::SelfFenced],
            Self::Reclaimer => &[CrashPoint::OrphanTaken],
            Self::Worker(_) | Self::Manager | Self::Returning(_) => &[],
        }
    }

    fn locks(self) -> LockProtocol {
        match self {
            Self::Worker(locks) | Self::Returning(locks) | Self::Recoverer(locks) => locks,
            Self::Manager
            | Self::Heir
            | Self::Rescuer
            | Self::Dry
            | Self::Paused
            | Self::Reclaimer => LockProtocol::Arbitrated,
        }
    }

    fn declares(self) -> bool {
        matches!(self, Self::Recoverer(_) | Self::Paused | Self::Reclaimer)
    }
}

/// One play of a scene.
#[derive(Clone, Copy)]
pub(super) struct Play<'p> {
    pub(super) scene: Scene,
    pub(super) memory: Memory,
    /// Where its process is to die.
    pub(super) point: Option<CrashPoint>,
    /// Tells the plays of this process apart.
    pub(super) number: u64,
    pub(super) program: &'p Path,
    pub(super) interrupted: &'p Arc<AtomicBool>,
}

/// The players of a scene.
struct Cast {
    rack: Rack,
    manager: Option<usize>,
    /// On mapped memory `dies` and `beside` share a host.
    dies: usize,
    witness: usize,
    beside: usize,
}

impl Play<'_> {
    /// Plays it. Returns what the process that may die visited, nothing when it died.
    pub(super) fn run(self) -> Result<Vec<CrashPoint>> {
        let scene = self.scene;
        let manages = scene.locks() == LockProtocol::Arbitrated || scene.declares();
        let plan = Plan {
            // On mapped memory workers 0 and 2 share a node.
            workers: 3,
            managers: u32::from(manages),
            memory: self.memory,
            locks: scene.locks(),
            seed: self.number,
            declare: scene.declares(),
            scarce: matches!(scene, Scene::Dry | Scene::Reclaimer),
            stops: false,
            mutant: None,
        };
        let rack = Rack::new(plan, self.program, self.number, self.interrupted)?;
        let manager = rack.of(Part::Manager).next();
        let workers: Vec<_> = rack.of(Part::Worker).collect();
        let [dies, witness, beside] =
            workers.try_into().map_err(|_| anyhow::anyhow!("a scene has three workers"))?;
        let cast = Cast { rack, manager, dies, witness, beside };
        let armed = self.point.map(|point| Armed { point, nth: 1 });
        match scene {
            Scene::Recoverer(_) => recoverer(cast, armed),
            Scene::Paused => paused(cast, armed),
            Scene::Reclaimer => reclaimer(cast, armed),
            _ => alone(cast, scene, armed),
        }
    }
}

/// The scenes in which everybody who died lives again at once.
fn alone(cast: Cast, scene: Scene, armed: Option<Armed>) -> Result<Vec<CrashPoint>> {
    let Cast { mut rack, manager, mut dies, mut witness, beside } = cast;
    if scene == Scene::Heir {
        // Alone on its host, on either memory.
        std::mem::swap(&mut dies, &mut witness);
    }
    if let Some(manager) = manager {
        let armed = armed.filter(|_| scene == Scene::Manager);
        rack.start(manager, armed, None)?;
    }
    rack.start(witness, None, None)?;
    let lead = match scene {
        Scene::Returning(_) => {
            leave_half_done(&mut rack, dies)?;
            rack.start(dies, armed, Some(ROUNDS))?;
            dies
        }
        Scene::Heir => {
            die_first_at(&mut rack, dies, CrashPoint::RootCollected)?;
            rack.start(dies, armed, Some(ROUNDS))?;
            dies
        }
        Scene::Rescuer => {
            rack.start(beside, armed, None)?;
            wait_until_up(&mut rack, beside)?;
            leave_half_done(&mut rack, dies)?;
            beside
        }
        Scene::Manager => {
            rack.start(dies, None, Some(ROUNDS))?;
            manager.context("a scene of the manager has one")?
        }
        _ => {
            rack.start(dies, armed, Some(ROUNDS))?;
            dies
        }
    };
    if scene != Scene::Rescuer {
        rack.start(beside, None, None)?;
    }
    let locks_before = rack.players[lead].ledger.locks_taken;
    while rack.players[lead].lives() {
        rack.listen(1)?;
        let had_every_chance = match scene {
            Scene::Manager => rack.players[dies].has_stopped(),
            Scene::Rescuer => rack.players[lead].ledger.locks_taken >= locks_before + LOCKS,
            _ => false,
        };
        if had_every_chance {
            rack.tell_to_stop(lead);
        }
    }
    let visited = rack.visited_by(lead);
    rack.rest()?;
    rack.stop()?;
    rack.audit()?;
    Ok(visited)
}

/// The host of a worker dies with a half-written update under a lock between hosts, and stays away
/// until the others have recovered it. The recoverer may die on the way: its next life continues.
fn recoverer(cast: Cast, armed: Option<Armed>) -> Result<Vec<CrashPoint>> {
    let Cast { mut rack, manager, dies, witness, beside } = cast;
    let manager = manager.context("a scene of deaths has a lock manager")?;
    // Alone on its host, on either memory; the manager is on another.
    let (dies, witness) = (witness, dies);
    rack.start(manager, armed, None)?;
    rack.start(witness, None, None)?;
    rack.start(beside, None, None)?;
    let node = rack.players[dies].node;
    leave_half_done(&mut rack, dies)?;
    let until_ms = rack.now_ms() + RECOVERED_MS;
    while rack.death_of(node).is_none_or(|death| !death.over) {
        for dead in rack.listen(5)? {
            rack.start(dead, None, None)?;
        }
        if rack.now_ms() > until_ms {
            bail!("node {node} was not recovered: {:?}", rack.death_of(node));
        }
    }
    rack.stop()?;
    let visited = if rack.has_died(manager) { Vec::new() } else { rack.visited_by(manager) };
    rack.audit()?;
    Ok(visited)
}

/// The host of a worker stands still until the others have declared it dead, and then continues.
fn paused(cast: Cast, armed: Option<Armed>) -> Result<Vec<CrashPoint>> {
    let Cast { mut rack, manager, dies, witness, beside } = cast;
    rack.start(manager.context("a scene of deaths has a lock manager")?, None, None)?;
    rack.start(witness, None, None)?;
    rack.start(beside, None, None)?;
    rack.start(dies, armed, None)?;
    wait_until_up(&mut rack, dies)?;
    rack.pause(dies, true)?;
    let node = rack.players[dies].node;
    let until_ms = rack.now_ms() + RECOVERED_MS;
    while rack.death_of(node).is_none() {
        for dead in rack.listen(5)? {
            rack.start(dead, None, None)?;
        }
        if rack.now_ms() > until_ms {
            bail!("node {node} stands still, and was not declared dead");
        }
    }
    rack.pause(dies, false)?;
    let mut visited = Vec::new();
    while rack.players[dies].lives() {
        for dead in rack.listen(5)? {
            if dead == dies {
                visited = rack.visited_by(dies);
            } else {
                rack.start(dead, None, None)?;
            }
        }
    }
    rack.stop()?;
    rack.audit()?;
    Ok(visited)
}

/// The host of a worker dies, and stays away after it was recovered. Another runs short of chunks.
fn reclaimer(cast: Cast, armed: Option<Armed>) -> Result<Vec<CrashPoint>> {
    let Cast { mut rack, manager, dies, witness, beside } = cast;
    // Alone on its host, on either memory; the manager is on another.
    let orphan = witness;
    rack.start(manager.context("a scene of deaths has a lock manager")?, None, None)?;
    rack.start(orphan, None, None)?;
    wait_until_up(&mut rack, orphan)?;
    while rack.players[orphan].ledger.blocks_published < ORPHAN_BLOCKS {
        rack.listen(1)?;
    }
    let node = rack.players[orphan].node;
    rack.kill_host(node);
    let until_ms = rack.now_ms() + RECOVERED_MS;
    while rack.death_of(node).is_none_or(|death| !death.over) {
        rack.listen(5)?;
        if rack.now_ms() > until_ms {
            bail!("node {node} was not recovered: {:?}", rack.death_of(node));
        }
    }
    rack.start(dies, armed, Some(ROUNDS))?;
    while rack.players[dies].lives() {
        rack.listen(1)?;
    }
    let visited = rack.visited_by(dies);
    rack.start(beside, None, None)?;
    rack.rest()?;
    rack.stop()?;
    rack.audit()?;
    Ok(visited)
}

/// A worker dies with an update half written, under the lock of the chunk table.
fn leave_half_done(rack: &mut Rack, place: usize) -> Result<()> {
    die_first_at(rack, place, CrashPoint::IntentWritten)
}

/// A life of a worker ends at `point`.
fn die_first_at(rack: &mut Rack, place: usize, point: CrashPoint) -> Result<()> {
    rack.start(place, Some(Armed { point, nth: 1 }), Some(ROUNDS))?;
    while rack.players[place].lives() {
        rack.listen(1)?;
    }
    if rack.players[place].has_stopped() {
        bail!("a worker that was to die at {} did not", point.name());
    }
    Ok(())
}

fn wait_until_up(rack: &mut Rack, place: usize) -> Result<()> {
    while !rack.players[place].ledger.is_up() {
        if rack.listen(1)?.contains(&place) {
            // It was armed for a point on its way.
            return Ok(());
        }
    }
    Ok(())
}
