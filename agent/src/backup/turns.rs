//! When the writes of the backlog begin: the scheduler, with the engines and the drives of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kv_cache::tier::{DriveError, ForwardSeen};
use kv_drive::io::longest_write;
use rackline::LocalCache;

use super::kept_slack::KeptSlack;
use crate::figures::Figures;
use crate::reads::Reads;
use crate::restore::Speed;
use crate::schedule::{Engines, Event, Next, Scheduler, SlackTable, Waiting, Why};
use crate::settings::ScheduleSettings;

/// How often the agent asks whether the processes of engines live, in microseconds.
const ALIVE_US: u64 = 250_000;

/// The scheduler at work.
#[derive(Debug)]
pub(super) struct Turns {
    scheduler: Scheduler,
    engines: Engines,
    table: SlackTable,
    kept: KeptSlack,
    speed: Speed,
    /// Writes under way.
    began: BTreeMap<u64, Began>,
    /// What a write may take beyond its wait for reads, in microseconds.
    silent_us: u64,
    /// Reads that there ever were, and when one was last seen.
    reads_ever: u64,
    read_us: u64,
    /// Rows and owners of engines whose processes are gone.
    gone: BTreeSet<(usize, u64)>,
    alive_us: u64,
    window_used: u64,
}

/// A write under way.
#[derive(Clone, Copy, Debug)]
struct Began {
    at_us: u64,
    /// It has to end until then: else its device does not answer.
    until_us: u64,
}

impl Turns {
    /// With the slack table that the file in `folder` has, as soon as it is read.
    pub(super) fn new(settings: ScheduleSettings, silent_ms: u64, folder: &Path) -> Self {
        let (table, kept) = (SlackTable::default(), KeptSlack::begin(folder));
        Self {
            scheduler: Scheduler::new(settings),
            engines: Engines::default(),
            table,
            kept,
            speed: Speed::default(),
            began: BTreeMap::new(),
            silent_us: silent_ms.saturating_mul(1000),
            reads_ever: 0,
            read_us: 0,
            gone: BTreeSet::new(),
            alive_us: 0,
            window_used: 0,
        }
    }

    /// Sees what engines and reads do now.
    ///
    /// # Errors
    /// [`DriveError`].
    pub(super) fn look(
        &mut self,
        cache: &LocalCache<'_>,
        now_us: u64,
        reads: &Reads,
    ) -> Result<(), DriveError> {
        let (reads_now, ever) = reads.get();
        let were_some = ever != self.reads_ever;
        self.reads_ever = ever;
        if reads_now > 0 || were_some {
            self.read_us = now_us;
        }
        self.scheduler.reads(now_us, reads_now, were_some);
        let mut seen = cache.forwards()?;
        self.leave_out_the_dead(cache, now_us, &mut seen);
        self.engines.look(now_us, &seen, &mut self.table);
        let quiet_us = self.scheduler.settings().idle_us;
        self.scheduler.phase(now_us, self.engines.phase(now_us, quiet_us));
        self.take_read();
        self.kept.keep_when_due(now_us, &self.table);
        Ok(())
    }

    /// What was learned before the start counts, unless more was learned since.
    fn take_read(&mut self) {
        if let Some(before) = self.kept.take_read()
            && before.forwards() > self.table.forwards()
        {
            self.table = before;
        }
    }

    /// TIER-F2.
    fn leave_out_the_dead(
        &mut self,
        cache: &LocalCache<'_>,
        now_us: u64,
        seen: &mut Vec<ForwardSeen>,
    ) {
        let name = |it: &ForwardSeen| (it.row, it.owner.word());
        if now_us >= self.alive_us {
            self.alive_us = now_us + ALIVE_US;
            let gone = seen.iter().filter(|it| !cache.is_engine_alive(it));
            self.gone = gone.map(name).collect();
        }
        seen.retain(|it| !self.gone.contains(&name(it)));
    }

    /// The write that begins now, if one does.
    pub(super) fn next(&mut self, now_us: u64, next: Next) -> Option<Waiting> {
        let chosen = self.scheduler.next(now_us, &self.speed, next)?;
        // What is under way was queued before it. Twice, because the device does something else, too.
        let reads = longest_write(self.scheduler.under_way_bytes()).saturating_mul(2);
        let reads_us = u64::try_from(reads.as_micros()).unwrap_or(u64::MAX);
        let until_us = now_us.saturating_add(self.silent_us).saturating_add(reads_us);
        self.began.insert(chosen.write, Began { at_us: now_us, until_us });
        self.speed.began(now_us);
        Some(chosen)
    }

    /// A write is over that has written so many bytes, 0 when it failed.
    pub(super) fn ended(&mut self, now_us: u64, write: u64, bytes: u64) {
        self.scheduler.ended(now_us, write);
        let Some(Began { at_us: began_us, .. }) = self.began.remove(&write) else { return };
        // A write that waited for reads does not tell how fast the drive writes.
        if bytes == 0 || self.read_us >= began_us {
            self.speed.failed(now_us);
        } else {
            self.speed.arrived(began_us, now_us, bytes);
        }
    }

    /// The writes that their devices should have ended by now.
    pub(super) fn late(&self, now_us: u64) -> Vec<u64> {
        let is_late = |it: &(&u64, &Began)| it.1.until_us <= now_us;
        self.began.iter().filter(is_late).map(|(write, _)| *write).collect()
    }

    /// From now on writes wait for nothing: the agent stops.
    pub(super) fn stop(&mut self) {
        self.scheduler.stop();
    }

    /// How many writes are under way.
    pub(super) fn under_way(&self) -> usize {
        self.scheduler.under_way()
    }

    /// Counts what was decided since the last call.
    pub(super) fn count(&mut self, figures: &mut Figures) {
        for event in self.scheduler.take_events() {
            tracing::trace!(?event, "scheduler");
            match event {
                Event::Opens { window, .. } => figures.windows = window,
                Event::Begins { bytes, why: Why::Window { window }, .. } => {
                    figures.windows_used += u64::from(window != self.window_used);
                    self.window_used = window;
                    figures.window_bytes += bytes;
                }
                Event::Begins { bytes, why: Why::Idle | Why::Stops, .. } => {
                    figures.idle_bytes += bytes;
                }
                Event::Begins { bytes, why: Why::Late, .. } => figures.late_bytes += bytes,
                Event::Closes { .. } | Event::Ends { .. } => {}
            }
        }
    }

    /// Writes the slack table to its file, when it has learned something: the agent stops.
    pub(super) fn keep(&mut self) {
        self.kept.end(&self.table);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::schedule::Shape;

    /// Its device does not answer: a call to the file ends when the other end of the pipe is opened.
    fn silent(path: &Path) {
        mknodat(CWD, path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
    }

    fn learned(table: &mut SlackTable, forwards: u64) {
        let forward = kv_cache::tier::ForwardShape::new(512, 0);
        (0..forwards).for_each(|_| table.learn(Shape { model: 1, forward }, 1000));
    }

    #[test]
    fn a_device_that_does_not_answer_holds_up_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("slack");
        silent(&file);
        let settings = ScheduleSettings { depth: 1, idle_us: 1000, write_wait_us: 1000 };
        let mut turns = Turns::new(settings, 1000, folder.path());
        learned(&mut turns.table, 1);
        turns.keep();
        let mut before = SlackTable::default();
        learned(&mut before, 7);
        std::fs::write(&file, before.to_text()).unwrap();
        while turns.table != before {
            turns.take_read();
            std::thread::yield_now();
        }
        let new = folder.path().join("slack.new");
        silent(&new);
        learned(&mut turns.table, 1);
        turns.kept.keep_when_due(0, &turns.table);
        assert!(!turns.kept.is_writing(), "nothing is due when the agent starts");
        turns.kept.keep_when_due(u64::MAX / 2, &turns.table);
        assert!(turns.kept.is_writing());
        turns.kept.keep(&turns.table);
        assert_eq!(std::fs::read_to_string(&new).unwrap(), turns.table.to_text());
    }
}
