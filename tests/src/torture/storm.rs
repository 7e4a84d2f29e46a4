//! Kills at random, of processes and, where hosts are declared dead, of hosts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use cxl_shm::crash::{Armed, CrashPoint};
use cxl_shm::verify::simulated::Random;

use super::broken::{needs_take_overs, points_of};
use super::child::Part;
use super::rack::Rack;
pub use super::rack::{Figures, Plan};

/// Most milliseconds between two kills, and between a death and the next life of a worker.
const KILL_GAP_MS_MAX: u64 = 250;
const WORKER_AWAY_MS_MAX: u64 = 300;
/// Long enough for a standby to take over first.
const MANAGER_AWAY_MS_MAX: u64 = 4000;
/// One death of a process in this many is that of a lock manager, and where hosts are declared
/// dead: a manager that is to notice lives for seconds.
const MANAGER_ONE_IN: u32 = 6;
const DECLARING_MANAGER_ONE_IN: u32 = 60;
/// Where one that is to declare hosts dead dies besides: every other life is armed.
const ON_THE_WAY: [CrashPoint; 9] = [
    CrashPoint::DeathPromised,
    CrashPoint::DeathAccepted,
    CrashPoint::DeathDecided,
    CrashPoint::RecoveryFenced,
    CrashPoint::RecoveryRedone,
    CrashPoint::RecoveryFreed,
    CrashPoint::RecoveryAdopted,
    CrashPoint::RecoveryFinalized,
    CrashPoint::RecoveryDone,
];
/// Most milliseconds between two deaths of hosts.
const HOST_GAP_MS_MAX: u64 = 2500;
/// Where take-overs are what matters: milliseconds between two deaths of all lock managers, which
/// then live again within this many. A new one waits until the heartbeats of those before it have
/// stood still.
const MANAGERS_GAP_MS: u64 = 3500;
const MANAGERS_AWAY_MS_MAX: u64 = 100;
/// How long a dead host stays away at most: it was not recovered, and comes back by itself.
const HOST_AWAY_MS_MAX: u64 = 8000;
/// Most milliseconds between two stops of a process, and how long one stays stopped: longer than a
/// lock is waited for, and than a heartbeat may stop before its host is declared dead.
const STOP_GAP_MS_MAX: u64 = 500;
const STOPPED_MS_MAX: u64 = 4000;
/// Least and most milliseconds between two rests of everybody.
const REST_GAP_MS: u64 = 1200;
const REST_GAP_MS_MAX: u64 = 3000;
/// Where processes die where chunks are scarce: three of four that die at a point at all.
const IN_THE_CACHE: [CrashPoint; 15] = [
    CrashPoint::PublishReserved,
    CrashPoint::PublishCopied,
    CrashPoint::PublishReady,
    CrashPoint::PublishLogged,
    CrashPoint::PublishAnnounced,
    CrashPoint::RetireFreed,
    CrashPoint::TombstonesCleaned,
    CrashPoint::HoldCounted,
    CrashPoint::HoldWritten,
    CrashPoint::HoldReleased,
    CrashPoint::EvictAnnounced,
    CrashPoint::EvictDecided,
    CrashPoint::ChunkVacated,
    CrashPoint::OrphanTaken,
    CrashPoint::SweepMarked,
];
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
        declare: plan.declare,
        takes_over: plan.mutant.is_some_and(needs_take_overs),
        scarce: plan.scarce,
        points: plan.mutant.map_or(&[], points_of),
        host_away: None,
        stops: plan.stops,
        stopped: Vec::new(),
    };
    storm.rage(seconds * 1000)?;
    storm.rack.rest()?;
    storm.rack.stop()?;
    storm.rack.audit()?;
    Ok(storm.rack.figures)
}

struct Storm {
    rack: Rack,
    random: Random,
    /// When who is to live again.
    restarts: Vec<(u64, usize)>,
    declare: bool,
    /// Nobody but lock managers dies.
    takes_over: bool,
    /// Chunks run out.
    scarce: bool,
    /// Where a process has to die for a broken rule to matter; anywhere when there are none.
    points: &'static [CrashPoint],
    /// A dead host that is to be recovered by others, and since when it has been dead.
    host_away: Option<(u16, u64)>,
    /// Whether processes are stopped for some time.
    stops: bool,
    /// When which process is to continue.
    stopped: Vec<(u64, usize)>,
}

impl Storm {
    fn rage(&mut self, ms: u64) -> Result<()> {
        for place in 0..self.rack.players.len() {
            let armed = self.draw_on_the_way(place);
            self.rack.start(place, armed, None)?;
        }
        let end_ms = self.rack.now_ms() + ms;
        let mut kill_at_ms = self.rack.now_ms() + KILL_GAP_MS_MAX;
        let mut host_dies_at_ms = self.rack.now_ms() + 2 * KILL_GAP_MS_MAX;
        let mut stops_at_ms = self.rack.now_ms() + STOP_GAP_MS_MAX;
        let mut rests_at_ms = self.rack.now_ms() + REST_GAP_MS;
        loop {
            let now_ms = self.rack.now_ms();
            if now_ms >= end_ms {
                return self.let_go_on(u64::MAX);
            }
            self.let_go_on(now_ms)?;
            if self.stops && now_ms >= stops_at_ms {
                self.stop_one(now_ms)?;
                stops_at_ms = now_ms + self.random.magnitude(STOP_GAP_MS_MAX);
            }
            if now_ms >= kill_at_ms {
                kill_at_ms = now_ms + self.kill();
            }
            if self.declare && self.host_away.is_none() && now_ms >= host_dies_at_ms {
                self.kill_host(now_ms);
            }
            if self.is_back(now_ms) {
                self.host_away = None;
                host_dies_at_ms = now_ms + self.random.magnitude(HOST_GAP_MS_MAX);
            }
            if now_ms >= rests_at_ms && self.host_away.is_none() && !self.takes_over {
                // The dead live again for it, and the stopped go on.
                self.restarts.clear();
                self.let_go_on(u64::MAX)?;
                self.rack.rest()?;
                rests_at_ms = self.rack.now_ms() + REST_GAP_MS + self.random.below(REST_GAP_MS_MAX);
                continue;
            }
            let away = self.host_away.map(|(node, _)| node);
            let players = &self.rack.players;
            let is_due = |(at_ms, place): &mut (u64, usize)| {
                *at_ms <= now_ms && Some(players[*place].node) != away
            };
            let due: Vec<_> = self.restarts.extract_if(.., is_due).collect();
            for (_, place) in due {
                let armed = self.draw_on_the_way(place).or_else(|| self.draw_armed());
                self.rack.start(place, armed, None)?;
            }
            for place in self.rack.listen(5)? {
                let away_ms = match self.rack.players[place].part {
                    Part::Worker => self.random.magnitude(WORKER_AWAY_MS_MAX),
                    Part::Manager if self.takes_over => self.random.below(MANAGERS_AWAY_MS_MAX),
                    Part::Manager => self.random.magnitude(MANAGER_AWAY_MS_MAX),
                };
                self.restarts.push((self.rack.now_ms() + away_ms, place));
            }
        }
    }

    /// Returns how many milliseconds later it is to be called again.
    fn kill(&mut self) -> u64 {
        if self.takes_over {
            let managers: Vec<_> = self.rack.of(Part::Manager).collect();
            managers.into_iter().for_each(|place| self.rack.kill(place));
            return MANAGERS_GAP_MS;
        }
        let one_in = if self.declare { DECLARING_MANAGER_ONE_IN } else { MANAGER_ONE_IN };
        let part = if self.random.one_in(one_in) { Part::Manager } else { Part::Worker };
        let living: Vec<_> =
            self.rack.of(part).filter(|place| self.rack.players[*place].lives()).collect();
        if let Some(index) = self.random.index(living.len()) {
            self.rack.kill(living[index]);
        }
        5 + self.random.magnitude(KILL_GAP_MS_MAX)
    }

    /// Stops a process: at any instruction, with any lock.
    fn stop_one(&mut self, now_ms: u64) -> Result<()> {
        let is_running = |place: &usize| {
            self.rack.players[*place].lives() && self.stopped.iter().all(|(_, it)| it != place)
        };
        let running: Vec<_> = (0..self.rack.players.len()).filter(is_running).collect();
        if let Some(index) = self.random.index(running.len()) {
            self.rack.pause(running[index], true)?;
            self.rack.figures.stops += 1;
            let until_ms = now_ms + self.random.magnitude(STOPPED_MS_MAX);
            self.stopped.push((until_ms, running[index]));
        }
        Ok(())
    }

    /// Lets the processes continue whose time has come. One that was killed meanwhile may have a
    /// next life, which does not mind.
    fn let_go_on(&mut self, now_ms: u64) -> Result<()> {
        let due: Vec<_> =
            self.stopped.extract_if(.., |(until_ms, _)| *until_ms <= now_ms).collect();
        due.into_iter().try_for_each(|(_, place)| self.rack.pause(place, false))
    }

    /// Cuts the power of a host.
    fn kill_host(&mut self, now_ms: u64) {
        let living: Vec<u16> = self
            .rack
            .players
            .iter()
            .filter(|player| player.lives())
            .map(|player| player.node)
            .collect();
        if let Some(index) = self.random.index(living.len()) {
            self.rack.kill_host(living[index]);
            self.host_away = Some((living[index], now_ms));
        }
    }

    /// Whether the dead host was recovered, or waited for it long enough.
    fn is_back(&self, now_ms: u64) -> bool {
        self.host_away.is_some_and(|(node, since_ms)| {
            let recovered = self.rack.death_of(node).is_some_and(|death| death.over);
            recovered || now_ms - since_ms > HOST_AWAY_MS_MAX
        })
    }

    /// Where a manager that is to declare hosts dead dies.
    fn draw_on_the_way(&mut self, place: usize) -> Option<Armed> {
        let manages = self.rack.players[place].part == Part::Manager;
        if !self.declare || !manages || !self.random.one_in(2) {
            return None;
        }
        let point = ON_THE_WAY[self.random.index(ON_THE_WAY.len())?];
        Some(Armed { point, nth: 1 + self.random.below(2) })
    }

    fn draw_armed(&mut self) -> Option<Armed> {
        if self.takes_over || !self.random.one_in(ARMED_ONE_IN) {
            return None;
        }
        let points = match self.points {
            [] if self.scarce && !self.random.one_in(4) => &IN_THE_CACHE,
            [] => CrashPoint::ALL,
            points => points,
        };
        let index = self.random.index(points.len())?;
        let nth = 1 + self.random.magnitude(NTH_MAX);
        Some(Armed { point: points[index], nth })
    }
}
