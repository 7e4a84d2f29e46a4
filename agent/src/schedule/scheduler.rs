//! Whether a write begins now.

use std::collections::BTreeMap;

use super::engines::HostPhase;
use super::{Event, Mutant, Why, breaks};
use crate::restore::Speed;
use crate::settings::ScheduleSettings;

/// A write that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    /// Its number, larger than that of every write that was queued before it.
    pub(crate) write: u64,
    /// How long its block is.
    pub(crate) bytes: u64,
    /// When it was queued, in microseconds.
    pub(crate) since_us: u64,
}

/// What waits at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Next {
    /// What is worth most.
    pub(crate) first: Waiting,
    /// What has waited longest.
    pub(crate) oldest: Waiting,
}

/// Decides when writes begin.
#[derive(Debug)]
pub(crate) struct Scheduler {
    settings: ScheduleSettings,
    reads: usize,
    /// When a read was last there.
    read_us: Option<u64>,
    phase: HostPhase,
    /// The window that is open, and its end.
    window: Option<(u64, u64)>,
    windows: u64,
    under_way: BTreeMap<u64, u64>,
    stops: bool,
    events: Vec<Event>,
}

impl Scheduler {
    #[must_use]
    pub(crate) fn new(settings: ScheduleSettings) -> Self {
        Self {
            settings,
            reads: 0,
            read_us: None,
            phase: HostPhase::Quiet,
            window: None,
            windows: 0,
            under_way: BTreeMap::new(),
            stops: false,
            events: Vec::new(),
        }
    }

    /// So many reads wait or are under way. `were_some` when some were there since the last call.
    pub(crate) fn reads(&mut self, now_us: u64, reads: usize, were_some: bool) {
        if reads > 0 || self.reads > 0 || were_some {
            self.read_us = Some(now_us);
        }
        self.reads = reads;
    }

    /// The agent stops: what waits is written now, as far as the depth goes.
    pub(crate) fn stop(&mut self) {
        self.stops = true;
    }

    /// What the engines of the host do (AGENT-W2).
    pub(crate) fn phase(&mut self, at_us: u64, phase: HostPhase) {
        self.phase = phase;
        let until_us = match phase {
            HostPhase::Computes { until_us } => Some(until_us),
            HostPhase::Quiet | HostPhase::Between => None,
        };
        match (self.window, until_us) {
            (Some((_, end_us)), None) if breaks(Mutant::KeepsWindow) && at_us < end_us => {}
            (Some((window, _)), None) => {
                self.window = None;
                self.events.push(Event::Closes { at_us, window });
            }
            (Some((_, end_us)), Some(until_us)) if end_us == until_us => {}
            (Some((window, end_us)), Some(until_us)) if until_us < end_us => {
                self.open(at_us, window, until_us);
            }
            (open, Some(until_us)) => {
                // A forward ended and the next one began between two looks.
                self.events.extend(open.map(|(window, _)| Event::Closes { at_us, window }));
                self.windows += 1;
                self.open(at_us, self.windows, until_us);
            }
            (None, None) => {}
        }
    }

    fn open(&mut self, at_us: u64, window: u64, until_us: u64) {
        self.window = Some((window, until_us));
        self.events.push(Event::Opens { at_us, window, until_us });
    }

    /// The write that begins now, if one does.
    pub(crate) fn next(&mut self, at_us: u64, speed: &Speed, next: Next) -> Option<Waiting> {
        if self.under_way.len() >= self.settings.depth.max(1) && !breaks(Mutant::IgnoresDepth) {
            return None;
        }
        // AGENT-W5.
        let waited_us = at_us.saturating_sub(next.oldest.since_us);
        let is_late = waited_us >= self.settings.write_wait_us && !breaks(Mutant::NeverLate);
        let only_oldest = is_late && !breaks(Mutant::YoungFirst);
        let chosen = if only_oldest { next.oldest } else { next.first };
        let is_alone = self.under_way.is_empty() || breaks(Mutant::LateBesideOthers);
        let why = match self.opportunity(at_us, speed, chosen.bytes) {
            Some(why) => why,
            None if is_late && is_alone => Why::Late,
            None => return None,
        };
        let Waiting { write, bytes, .. } = chosen;
        self.under_way.insert(write, bytes);
        self.events.push(Event::Begins { at_us, write, bytes, why });
        Some(chosen)
    }

    /// Why a write of so many bytes may begin now, if it may.
    fn opportunity(&self, now_us: u64, speed: &Speed, bytes: u64) -> Option<Why> {
        if self.stops {
            return Some(Why::Stops);
        }
        if self.reads > 0 && !breaks(Mutant::IgnoresReads) {
            return None;
        }
        if let Some((window, until_us)) = self.window {
            let counted = if breaks(Mutant::CountsOneWrite) { 0 } else { self.under_way_bytes() };
            let ends_us = now_us.saturating_add(speed.wait_us(counted + bytes));
            let fits = ends_us <= until_us || breaks(Mutant::IgnoresBudget);
            return fits.then_some(Why::Window { window });
        }
        let idle_us = self.read_us.map_or(u64::MAX, |then| now_us.saturating_sub(then));
        let is_idle = idle_us >= self.settings.idle_us || breaks(Mutant::IdleAtOnce);
        (self.phase == HostPhase::Quiet && is_idle).then_some(Why::Idle)
    }

    /// A write is over, whatever came of it.
    pub(crate) fn ended(&mut self, at_us: u64, write: u64) {
        if self.under_way.remove(&write).is_some() {
            self.events.push(Event::Ends { at_us, write });
        }
    }

    /// What it was told to keep to.
    #[must_use]
    pub(crate) fn settings(&self) -> ScheduleSettings {
        self.settings
    }

    /// How many writes are under way.
    #[must_use]
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Their bytes.
    #[must_use]
    pub(crate) fn under_way_bytes(&self) -> u64 {
        self.under_way.values().sum()
    }

    /// What happened since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}
