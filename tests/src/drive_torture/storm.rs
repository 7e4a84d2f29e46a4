//! Kills and faults at random.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use cxl_shm::crash::{Armed, CrashPoint};
use cxl_shm::verify::simulated::Random;

use super::event::{Order, Trouble};
use super::ground::{A, B};
pub use super::rack::Figures;
use super::rack::Rack;

/// Most milliseconds between two kills, and between a death and the next life.
const KILL_GAP_MS_MAX: u64 = 400;
const AWAY_MS_MAX: u64 = 300;
/// Most milliseconds between two faults of drives, and how long they last at most.
const TROUBLE_GAP_MS_MAX: u64 = 400;
const TROUBLE_MS_MAX: u64 = 800;
/// Most calls that succeed before a fault, and that fail.
const SKIP_MAX: u64 = 50;
const COUNT_MAX: u64 = 40;
/// Least and most milliseconds between two roll calls.
const ROLL_GAP_MS: u64 = 1500;
const ROLL_GAP_MS_MAX: u64 = 1500;
/// One kill in this many is that of an agent.
const AGENT_ONE_IN: u32 = 2;
/// Most visits of a crash point before a death there.
const NTH_MAX: u64 = 30;

/// Where agents die: in every step of a backup and of a restore. No clear is asked for in a storm.
const AGENTS_DIE_AT: [CrashPoint; 9] = [
    CrashPoint::BackupWritten,
    CrashPoint::BackupCommitted,
    CrashPoint::BackupAnnounced,
    CrashPoint::RestorePublished,
    CrashPoint::PublishReserved,
    CrashPoint::PublishCopied,
    CrashPoint::PublishReady,
    CrashPoint::PublishLogged,
    CrashPoint::PublishAnnounced,
];
/// Where engines die.
const ENGINES_DIE_AT: [CrashPoint; 10] = [
    CrashPoint::PublishReserved,
    CrashPoint::PublishCopied,
    CrashPoint::PublishReady,
    CrashPoint::PublishLogged,
    CrashPoint::PublishAnnounced,
    CrashPoint::HoldCounted,
    CrashPoint::HoldWritten,
    CrashPoint::HoldReleased,
    CrashPoint::EvictAnnounced,
    CrashPoint::EvictDecided,
];

/// What a storm is made of.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Engines on both hosts.
    pub engines: u32,
    /// Who is killed when, which drive fails when, and what engines want follow from it.
    pub seed: u64,
    /// The drives of the first host lose writes without a word, to show that it is noticed.
    pub lying: bool,
}

/// Kills and restarts agents and engines for `seconds` while drives fail, then ends them in order and
/// audits what is left.
///
/// # Errors
/// What must never be; that it was `interrupted`; or that the processes cannot be run.
pub fn run(
    plan: Plan,
    seconds: u64,
    program: &Path,
    interrupted: &Arc<AtomicBool>,
) -> Result<Figures> {
    let rack = Rack::new((plan.engines, plan.seed, plan.lying), program, interrupted)?;
    let random = Random::new(plan.seed);
    let mut storm = Storm { rack, random, restarts: Vec::new(), mends_at_ms: None };
    storm.rage(seconds * 1000)?;
    storm.rack.audit()?;
    Ok(storm.rack.figures)
}

struct Storm {
    rack: Rack,
    random: Random,
    /// When who is to live again.
    restarts: Vec<(u64, usize)>,
    /// When the drives are mended.
    mends_at_ms: Option<u64>,
}

impl Storm {
    fn rage(&mut self, ms: u64) -> Result<()> {
        for place in 0..self.rack.players.len() {
            self.rack.start(place, None)?;
        }
        let end_ms = self.rack.now_ms() + ms;
        let mut kill_at_ms = self.rack.now_ms() + KILL_GAP_MS_MAX;
        let mut trouble_at_ms = self.rack.now_ms() + TROUBLE_GAP_MS_MAX;
        let mut rolls_at_ms = self.rack.now_ms() + ROLL_GAP_MS;
        loop {
            let now_ms = self.rack.now_ms();
            if now_ms >= end_ms {
                return Ok(());
            }
            if now_ms >= kill_at_ms {
                self.kill();
                kill_at_ms = now_ms + 5 + self.random.magnitude(KILL_GAP_MS_MAX);
            }
            if self.mends_at_ms.is_some_and(|at_ms| now_ms >= at_ms) {
                self.mends_at_ms = None;
                self.rack.order(Rack::agent_of(A), Order::Mend)?;
                self.rack.order(Rack::agent_of(B), Order::Mend)?;
            }
            if now_ms >= trouble_at_ms {
                self.make_trouble(now_ms)?;
                trouble_at_ms = now_ms + 20 + self.random.magnitude(TROUBLE_GAP_MS_MAX);
            }
            if now_ms >= rolls_at_ms {
                self.restarts.clear();
                for place in 0..self.rack.players.len() {
                    self.rack.start(place, None)?;
                }
                self.rack.call_roll()?;
                rolls_at_ms = self.rack.now_ms() + ROLL_GAP_MS + self.random.below(ROLL_GAP_MS_MAX);
            }
            for place in self.rack.listen(5)? {
                let away_ms = self.random.magnitude(AWAY_MS_MAX);
                self.restarts.push((self.rack.now_ms() + away_ms, place));
            }
            let due: Vec<_> = self.restarts.extract_if(.., |(at_ms, _)| *at_ms <= now_ms).collect();
            for (_, place) in due {
                let armed = self.draw_armed(place);
                self.rack.start(place, armed)?;
            }
        }
    }

    fn kill(&mut self) {
        let agents = [Rack::agent_of(A), Rack::agent_of(B)];
        let mut places: Vec<usize> = match self.random.one_in(AGENT_ONE_IN) {
            true => agents.to_vec(),
            false => self.rack.engines().collect(),
        };
        places.retain(|place| self.rack.players[*place].lives());
        if let Some(index) = self.random.index(places.len()) {
            self.rack.kill(places[index]);
        }
    }

    /// Lets a drive fail.
    fn make_trouble(&mut self, now_ms: u64) -> Result<()> {
        let host = if self.random.one_in(2) { A } else { B };
        let loses = host == B && self.random.one_in(3);
        let troubles: &[Trouble] = if loses { &Trouble::LOSSY } else { &Trouble::HONEST };
        let Some(index) = self.random.index(troubles.len()) else { return Ok(()) };
        let order = Order::Trouble {
            folder: self.random.index(2).unwrap_or(0),
            trouble: troubles[index],
            skip: self.random.magnitude(SKIP_MAX),
            count: 1 + self.random.magnitude(COUNT_MAX),
        };
        self.rack.order(Rack::agent_of(host), order)?;
        self.rack.figures.troubles += 1;
        let lasts_ms = 20 + self.random.magnitude(TROUBLE_MS_MAX);
        self.mends_at_ms = self.mends_at_ms.or(Some(now_ms + lasts_ms));
        Ok(())
    }

    /// Where the next life of a place ends, if at a point at all.
    fn draw_armed(&mut self, place: usize) -> Option<Armed> {
        let is_engine = self.rack.engines().contains(&place);
        if self.random.one_in(2) {
            return None;
        }
        let points: &[CrashPoint] = if is_engine { &ENGINES_DIE_AT } else { &AGENTS_DIE_AT };
        let point = points[self.random.index(points.len())?];
        Some(Armed { point, nth: 1 + self.random.magnitude(NTH_MAX) })
    }
}
