//! A death at every crash point.
//!
//! Scenes first run unarmed, and say which points each of their processes visits. Then each point
//! is armed in one scene that reaches it: a real process dies there, others continue, it lives
//! again, and the region is audited. A point that no scene reaches is a point that nothing shows to
//! be survived: the run fails and names it.
//!
//! Several are played at once: most of a play is waiting until a heartbeat counts as stopped.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use cxl_shm::crash::CrashPoint;

use super::ground::Memory;
use super::scene::{Play, Scene};
use crate::parallel::in_parallel;

/// Times that a scene is played until its process comes to a point: whether a lock is passed on, or
/// finds somebody waiting, is up to the kernel.
const TRIES: usize = 40;
/// Plays at once.
const STAGES: usize = 4;

/// Points to which no process here comes, and what shows instead that a death there is survived.
/// One that processes do come to leaves the list.
pub const ELSEWHERE: &[(CrashPoint, &str)] = &[
    (CrashPoint::BackupWritten, AGENTS),
    (CrashPoint::BackupCommitted, AGENTS),
    (CrashPoint::BackupAnnounced, AGENTS),
    (CrashPoint::RestorePublished, AGENTS),
    (CrashPoint::ClearSwept, AGENTS),
    (CrashPoint::ClearWithdrawn, AGENTS),
    (CrashPoint::ClearRemoved, AGENTS),
    (CrashPoint::ClearCommitted, AGENTS),
];

/// What lets agents die.
const AGENTS: &str = "cargo test -p rackline-agent --test deaths";

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Covered {
    /// Deaths that were recovered from: a point on two kinds of memory counts twice.
    pub deaths: usize,
    /// Points at which no process of any scene was.
    pub unreached: Vec<CrashPoint>,
}

impl Covered {
    /// Points at which nobody was, and that are not [`ELSEWHERE`].
    #[must_use]
    pub fn missing(&self) -> Vec<CrashPoint> {
        let listed = |point: &CrashPoint| ELSEWHERE.iter().any(|(listed, _)| listed == point);
        self.unreached.iter().copied().filter(|point| !listed(point)).collect()
    }

    /// Points at which somebody was, although they are listed as [`ELSEWHERE`].
    #[must_use]
    pub fn stale(&self) -> Vec<CrashPoint> {
        let listed = ELSEWHERE.iter().map(|(point, _)| *point);
        listed.filter(|point| !self.unreached.contains(point)).collect()
    }
}

/// Has a process die at every crash point that the scenes reach, on mapped and on shadowed memory.
/// `program` is `prove`.
///
/// # Errors
/// What must never be, with the point at which the process died; or that it was `interrupted`.
pub fn run(program: &Path, interrupted: &Arc<AtomicBool>) -> Result<Covered> {
    let theatre = Theatre { program, interrupted, plays: Mutex::new(0) };
    let memories = [Memory::Mapped, Memory::Shadowed];
    let scenes: Vec<(Memory, Scene)> = memories
        .into_iter()
        .flat_map(|memory| Scene::ALL.map(|scene| (memory, scene)))
        .filter(|(memory, scene)| scene.is_for(*memory))
        .collect();
    let visited = theatre.all(&scenes, |(memory, scene)| {
        let visited = theatre.rehearse(*memory, *scene);
        visited.with_context(|| format!("{scene:?} on {memory:?} memory, with nobody armed"))
    })?;

    let mut reached: BTreeMap<(Memory, CrashPoint), Vec<Scene>> = BTreeMap::new();
    for ((memory, scene), points) in scenes.iter().zip(visited) {
        for point in points {
            let scenes = reached.entry((*memory, point)).or_default();
            if !scenes.contains(scene) {
                scenes.push(*scene);
            }
        }
    }
    let deaths: Vec<_> = reached.into_iter().collect();
    theatre.all(&deaths, |((memory, point), scenes)| {
        let survived = theatre.die_at(*memory, scenes, *point);
        let name = point.name();
        survived.with_context(|| format!("with a death at {name} ({scenes:?}, {memory:?} memory)"))
    })?;
    let survived = |point: &CrashPoint| deaths.iter().any(|((_, died_at), _)| died_at == point);
    let unreached = CrashPoint::ALL.iter().copied().filter(|point| !survived(point)).collect();
    Ok(Covered { deaths: deaths.len(), unreached })
}

struct Theatre<'p> {
    program: &'p Path,
    interrupted: &'p Arc<AtomicBool>,
    plays: Mutex<u64>,
}

impl Theatre<'_> {
    /// Does `act` to each of `items`, several at once; what came of each, or a failure.
    fn all<I: Sync, T: Send>(
        &self,
        items: &[I],
        act: impl Fn(&I) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let failed = AtomicBool::new(false);
        let outcomes = in_parallel(items, STAGES, |item| {
            // After a failure nothing more is of interest.
            let outcome = (!failed.load(Ordering::Relaxed)).then(|| act(item));
            failed.fetch_or(matches!(outcome, Some(Err(_))), Ordering::Relaxed);
            outcome
        });
        outcomes.into_iter().flatten().collect()
    }

    fn play(
        &self,
        memory: Memory,
        scene: Scene,
        point: Option<CrashPoint>,
    ) -> Result<Vec<CrashPoint>> {
        let number = {
            let mut plays = self.plays.lock().unwrap_or_else(PoisonError::into_inner);
            *plays += 1;
            *plays
        };
        let (program, interrupted) = (self.program, self.interrupted);
        Play { scene, memory, point, number, program, interrupted }.run()
    }

    /// What the process of a scene that may die visits.
    fn rehearse(&self, memory: Memory, scene: Scene) -> Result<Vec<CrashPoint>> {
        let mut visited = self.play(memory, scene, None)?;
        for _ in 1..TRIES {
            if scene.aims_at().iter().all(|point| visited.contains(point)) {
                break;
            }
            visited.extend(self.play(memory, scene, None)?);
        }
        Ok(visited)
    }

    /// Plays the scenes in which a process came to `point` in turn, until one dies there. Which
    /// process of a host is the first, for one, differs from play to play.
    fn die_at(&self, memory: Memory, scenes: &[Scene], point: CrashPoint) -> Result<()> {
        for scene in scenes.iter().cycle().take(TRIES) {
            // Empty when the process died.
            if self.play(memory, *scene, Some(point))?.is_empty() {
                return Ok(());
            }
        }
        bail!("in {TRIES} tries it did not come there again")
    }
}
