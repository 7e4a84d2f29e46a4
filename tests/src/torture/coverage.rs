//! A death at every crash point.
//!
//! Scenes first run unarmed, and say which points each of their processes visits. Then each point is
//! armed in one scene that reaches it: a real process dies there, others go on, it lives again, and
//! the region is audited. A point that no scene reaches is a point that nothing shows to be
//! survived: the run fails and names it.

use std::collections::BTreeMap;
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

/// Who dies in a scene, after what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scene {
    /// A worker, in its first life.
    Worker(LockProtocol),
    /// The lock manager.
    Manager,
    /// A worker whose life before ended with a half-written update under a lock between hosts.
    Returning(LockProtocol),
    /// Another process of a host on which a worker died so.
    Rescuer,
}

const SCENES: [Scene; 6] = [
    Scene::Worker(LockProtocol::Arbitrated),
    Scene::Manager,
    Scene::Returning(LockProtocol::Arbitrated),
    Scene::Worker(LockProtocol::Bakery),
    Scene::Returning(LockProtocol::Bakery),
    Scene::Rescuer,
];

/// Times that a scene is played until its process comes to a point: whether a lock is passed on, or
/// finds somebody waiting, is up to the kernel.
const TRIES: u32 = 40;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Covered {
    /// Deaths that were recovered from: a point on two kinds of memory counts twice.
    pub deaths: usize,
    /// Points at which no process of any scene was.
    pub unreached: Vec<CrashPoint>,
}

/// Has a process die at every crash point that the scenes reach, on mapped and on shadowed memory.
/// `program` is `prove`.
///
/// # Errors
/// What must never be, with the point at which the process died; or that it was `interrupted`.
pub fn run(program: &Path, interrupted: &Arc<AtomicBool>) -> Result<Covered> {
    let mut covered = Covered { deaths: 0, unreached: CrashPoint::ALL.to_vec() };
    let mut racks = 0;
    for memory in [Memory::Mapped, Memory::Shadowed] {
        let mut stage = Stage { memory, program, racks, interrupted };
        let survived = stage.run().with_context(|| format!("on {memory:?} memory"))?;
        covered.deaths += survived.len();
        covered.unreached.retain(|point| !survived.contains(point));
        racks = stage.racks;
    }
    Ok(covered)
}

struct Stage<'p> {
    memory: Memory,
    program: &'p Path,
    racks: u64,
    interrupted: &'p Arc<AtomicBool>,
}

impl Stage<'_> {
    /// Returns the points at which a process died, and was recovered from.
    fn run(&mut self) -> Result<Vec<CrashPoint>> {
        let mut reached: BTreeMap<CrashPoint, Vec<Scene>> = BTreeMap::new();
        for scene in SCENES {
            if scene == Scene::Rescuer && self.memory.is_private() {
                // Every process is a host: there is no other one on it.
                continue;
            }
            // Who recovers is up to the kernel: the rescuer, or the agent of another process.
            let plays = if scene == Scene::Rescuer { TRIES } else { 1 };
            for _ in 0..plays {
                let played = self.play(scene, None);
                let visited = played.with_context(|| format!("{scene:?}, with nobody armed"))?;
                let rescued = visited.contains(&CrashPoint::LockRecovering);
                for point in visited {
                    let scenes = reached.entry(point).or_default();
                    if !scenes.contains(&scene) {
                        scenes.push(scene);
                    }
                }
                if rescued {
                    break;
                }
            }
        }
        for (point, scenes) in &reached {
            self.die_at(*point, scenes)
                .with_context(|| format!("with a death at {} ({scenes:?})", point.name()))?;
        }
        Ok(reached.into_keys().collect())
    }

    /// Plays the scenes in which a process came to `point` in turn, until one dies there. Which
    /// process of a host is the first, for one, differs from play to play.
    fn die_at(&mut self, point: CrashPoint, scenes: &[Scene]) -> Result<()> {
        for scene in scenes.iter().cycle().take(TRIES as usize) {
            // Empty when the process died.
            if self.play(*scene, Some(point))?.is_empty() {
                return Ok(());
            }
        }
        bail!("in {TRIES} tries it did not come there again")
    }

    /// Plays a scene in which one process dies at `point`, or none. Returns what that process
    /// visited, nothing when it died.
    fn play(&mut self, scene: Scene, point: Option<CrashPoint>) -> Result<Vec<CrashPoint>> {
        self.racks += 1;
        let locks = match scene {
            Scene::Worker(locks) | Scene::Returning(locks) => locks,
            Scene::Manager | Scene::Rescuer => LockProtocol::Arbitrated,
        };
        let plan = Plan {
            // On mapped memory workers 0 and 2 share a node.
            workers: 3,
            managers: u32::from(locks == LockProtocol::Arbitrated),
            memory: self.memory,
            locks,
            seed: self.racks,
        };
        let mut rack = Rack::new(plan, self.program, self.racks, self.interrupted)?;
        let armed = point.map(|point| Armed { point, nth: 1 });
        let manager = rack.of(Part::Manager).next();
        let [dies, witness, beside] = {
            let workers: Vec<_> = rack.of(Part::Worker).collect();
            workers.try_into().map_err(|_| anyhow::anyhow!("a scene has three workers"))?
        };
        if let Some(manager) = manager {
            let armed = armed.filter(|_| scene == Scene::Manager);
            rack.start(manager, armed, None)?;
        }
        rack.start(witness, None, None)?;
        let lead = match scene {
            Scene::Worker(_) => {
                rack.start(dies, armed, Some(ROUNDS))?;
                dies
            }
            Scene::Returning(_) => {
                self.leave_half_done(&mut rack, dies)?;
                rack.start(dies, armed, Some(ROUNDS))?;
                dies
            }
            Scene::Rescuer => {
                rack.start(beside, armed, None)?;
                wait_until_up(&mut rack, beside)?;
                self.leave_half_done(&mut rack, dies)?;
                beside
            }
            Scene::Manager => {
                rack.start(dies, None, Some(ROUNDS))?;
                manager.context("a scene of the manager has one")?
            }
        };
        if scene != Scene::Rescuer {
            rack.start(beside, None, None)?;
        }
        self.finish(&mut rack, scene, [lead, dies])
    }

    /// A worker dies with an update half written, under the lock of the chunk table.
    fn leave_half_done(&self, rack: &mut Rack, place: usize) -> Result<()> {
        let armed = Armed { point: CrashPoint::IntentWritten, nth: 1 };
        rack.start(place, Some(armed), Some(ROUNDS))?;
        while rack.players[place].lives() {
            rack.listen(1)?;
        }
        if rack.players[place].has_stopped() {
            bail!("a worker that was to die while it took a chunk did not");
        }
        Ok(())
    }

    /// Waits for the death of `lead` when it is armed, or until it had every chance, then ends the
    /// scene.
    fn finish(
        &self,
        rack: &mut Rack,
        scene: Scene,
        [lead, dies]: [usize; 2],
    ) -> Result<Vec<CrashPoint>> {
        let locks_before = rack.players[lead].ledger.locks_taken;
        while rack.players[lead].lives() {
            rack.listen(1)?;
            let had_every_chance = match scene {
                Scene::Worker(_) | Scene::Returning(_) => false,
                Scene::Manager => rack.players[dies].has_stopped(),
                Scene::Rescuer => rack.players[lead].ledger.locks_taken >= locks_before + LOCKS,
            };
            if had_every_chance {
                rack.tell_to_stop(lead);
            }
        }
        let visited = rack.players[lead].visits.iter();
        let visited = visited.filter_map(|(name, _)| CrashPoint::from_name(name)).collect();
        rack.stop()?;
        rack.audit()?;
        Ok(visited)
    }
}

fn wait_until_up(rack: &mut Rack, place: usize) -> Result<()> {
    while !rack.players[place].ledger.is_up() {
        if !rack.listen(1)?.is_empty() {
            // It was armed for a point on its way.
            return Ok(());
        }
    }
    Ok(())
}
