//! Kills at random.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use cxl_shm::crash::{Armed, CrashPoint};
use cxl_shm::fabric::simulated::Random;

use super::child::Part;
use super::rack::Rack;
pub use super::rack::{Figures, Plan};

/// Most milliseconds between two kills, and between a death and the next life of a worker.
const KILL_GAP_MS_MAX: u64 = 250;
const WORKER_AWAY_MS_MAX: u64 = 300;
/// Long enough for a standby to take over first.
const MANAGER_AWAY_MS_MAX: u64 = 4000;
/// One life in this many is armed to die at a crash point.
const ARMED_ONE_IN: u32 = 3;
/// Most visits of that point.
const NTH_MAX: u64 = 60;

/// Kills and restarts the processes of a rack for `seconds`, then ends them in order and audits the
/// region.
///
/// # Errors
/// What must never be; that it was `interrupted`; or that the processes cannot be run.
pub fn run(
    plan: Plan,
    seconds: u64,
    program: &Path,
    interrupted: &Arc<AtomicBool>,
) -> Result<Figures> {
    let mut storm = Storm {
        rack: Rack::new(plan, program, 0, interrupted)?,
        random: Random::new(plan.seed),
        restarts: Vec::new(),
    };
    storm.rage(seconds * 1000)?;
    storm.rack.stop()?;
    storm.rack.audit()?;
    Ok(storm.rack.figures)
}

struct Storm {
    rack: Rack,
    random: Random,
    /// When who is to live again.
    restarts: Vec<(u64, usize)>,
}

impl Storm {
    fn rage(&mut self, ms: u64) -> Result<()> {
        for place in 0..self.rack.players.len() {
            self.rack.start(place, None, None)?;
        }
        let end_ms = self.rack.now_ms() + ms;
        let mut kill_at_ms = self.rack.now_ms() + KILL_GAP_MS_MAX;
        loop {
            let now_ms = self.rack.now_ms();
            if now_ms >= end_ms {
                return Ok(());
            }
            if now_ms >= kill_at_ms {
                self.kill();
                kill_at_ms = now_ms + 5 + self.random.magnitude(KILL_GAP_MS_MAX);
            }
            let due: Vec<_> = self.restarts.extract_if(.., |(at_ms, _)| *at_ms <= now_ms).collect();
            for (_, place) in due {
                let armed = self.draw_armed();
                self.rack.start(place, armed, None)?;
            }
            for place in self.rack.listen(5)? {
                let away_ms = match self.rack.players[place].part {
                    Part::Worker => self.random.magnitude(WORKER_AWAY_MS_MAX),
                    Part::Manager => self.random.magnitude(MANAGER_AWAY_MS_MAX),
                };
                self.restarts.push((self.rack.now_ms() + away_ms, place));
            }
        }
    }

    fn kill(&mut self) {
        let part = if self.random.one_in(6) { Part::Manager } else { Part::Worker };
        let living: Vec<_> =
            self.rack.of(part).filter(|place| self.rack.players[*place].lives()).collect();
        if let Some(index) = self.random.index(living.len()) {
            self.rack.kill(living[index]);
        }
    }

    fn draw_armed(&mut self) -> Option<Armed> {
        if !self.random.one_in(ARMED_ONE_IN) {
            return None;
        }
        let index = self.random.index(CrashPoint::ALL.len())?;
        let nth = 1 + self.random.magnitude(NTH_MAX);
        Some(Armed { point: CrashPoint::ALL[index], nth })
    }
}
