//! What caches do by themselves in the adversarial mode.

use super::Random;
use super::cache::Host;
use super::device::Device;
use super::machine::Machine;
use super::trace::EventKind;
use crate::units::LineOffset;

/// Accesses remembered: where a race is, if there is one.
const RECENT: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// Write a dirty line back and keep it.
    Clean,
    /// Write a dirty line back and drop it.
    Spill,
    /// Drop a clean line.
    Evict,
    /// Fetch a line.
    Prefetch,
    /// Complete an unfenced flush.
    CompleteFlush,
    /// Let a posted write reach the device.
    Land,
}

const ACTIONS: [Action; 6] = [
    Action::Clean,
    Action::Spill,
    Action::Evict,
    Action::Prefetch,
    Action::CompleteFlush,
    Action::Land,
];

/// How the caches of this run misbehave.
///
/// Each run leaves out some kinds of misbehaviour and does the others more or less often ("swarm
/// testing", Groce and others, ISSTA 2012): a run that does everything all the time never gets
/// deep into the states that only one kind leads to.
#[derive(Debug)]
pub(super) struct Misbehaviour {
    actions: Vec<Action>,
    /// Accesses between two actions on average; 0 for none.
    one_in: u32,
    recent: [(usize, LineOffset); RECENT],
    recent_next: usize,
}

impl Misbehaviour {
    pub(super) fn none() -> Self {
        let nowhere = LineOffset::new(0).expect("0 is a multiple of 64");
        Self { actions: Vec::new(), one_in: 0, recent: [(0, nowhere); RECENT], recent_next: 0 }
    }

    pub(super) fn drawn(random: &mut Random) -> Self {
        let actions = ACTIONS.into_iter().filter(|_| !random.one_in(4)).collect();
        let one_in = 1 << random.below(5);
        Self { actions, one_in, ..Self::none() }
    }

    /// Parts what happens at once: all of it and nothing, or any two parts.
    pub(super) fn part(
        &self,
        lines: Vec<LineOffset>,
        random: &mut Random,
    ) -> (Vec<LineOffset>, Vec<LineOffset>) {
        if self.one_in == 0 || lines.len() < 2 || random.one_in(2) {
            return (lines, Vec::new());
        }
        lines.into_iter().partition(|_| random.one_in(2))
    }

    fn does(&self, action: Action) -> bool {
        self.actions.contains(&action)
    }

    /// What may follow at once when `host` has let go of a line: its write is through already, or
    /// the line is back in the cache. Both are where protocols break, and rare by pure chance.
    pub(super) fn aftermath(
        &self,
        host: &mut Host,
        device: &mut Device,
        line: LineOffset,
        random: &mut Random,
    ) -> Option<EventKind> {
        if self.does(Action::Land) && random.one_in(2) && host.land_one(device, line) {
            return Some(EventKind::PostedLanded);
        }
        let back = self.does(Action::Prefetch) && random.one_in(4) && host.prefetch(device, line);
        back.then_some(EventKind::CachePrefetched)
    }
}

impl Machine {
    /// Gives the caches a chance to do something by themselves before an access of `host` to
    /// `line`.
    pub(super) fn misbehave(&mut self, host: usize, line: Option<LineOffset>) {
        if self.misbehaviour.one_in == 0 {
            return;
        }
        if let Some(line) = line {
            let place = self.misbehaviour.recent_next;
            self.misbehaviour.recent[place] = (host, line);
            self.misbehaviour.recent_next = (place + 1) % RECENT;
        }
        if self.random.one_in(self.misbehaviour.one_in) {
            self.act();
        }
    }

    fn act(&mut self) {
        let Self { random, misbehaviour, hosts, device, .. } = self;
        let Some(action) = random.index(misbehaviour.actions.len()) else {
            return;
        };
        let action = misbehaviour.actions[action];
        // Three times in four something that was just accessed, half of that by another host.
        let recent = misbehaviour.recent[random.index(RECENT).unwrap_or(0)];
        let anybody = random.index(hosts.len()).unwrap_or(0);
        let (index, line) = match random.below(8) {
            0..3 => (recent.0, Some(recent.1)),
            3..6 => (anybody, Some(recent.1)),
            _ => (anybody, None),
        };
        let host = &mut hosts[index];
        let line = line.or_else(|| match action {
            Action::Clean | Action::Spill => host.pick_dirty(random),
            Action::Evict => host.pick_cached(random),
            Action::Prefetch => host.pick_in_touched_page(random),
            Action::Land => host.pick_posted(random),
            Action::CompleteFlush => None,
        });
        let done = match (action, line) {
            (Action::CompleteFlush, _) => host
                .complete_any_flush(device, random)
                .map(|line| (EventKind::FlushCompleted, line)),
            (_, None) => None,
            (Action::Clean, Some(line)) => {
                host.write_back(device, line).then_some((EventKind::CacheWroteBack, line))
            }
            (Action::Spill, Some(line)) => (host.write_back(device, line) && host.evict(line))
                .then_some((EventKind::CacheWroteBack, line)),
            (Action::Evict, Some(line)) => {
                host.evict(line).then_some((EventKind::CacheEvicted, line))
            }
            (Action::Prefetch, Some(line)) => {
                host.prefetch(device, line).then_some((EventKind::CachePrefetched, line))
            }
            (Action::Land, Some(line)) => {
                host.land_one(device, line).then_some((EventKind::PostedLanded, line))
            }
        };
        if let Some((kind, line)) = done {
            self.misbehaved(index, kind, line);
        }
    }
}
