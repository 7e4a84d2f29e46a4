//! A host's view of the shared memory.

use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::MutexGuard;

use super::machine::Machine;
use super::trace::EventKind;
use super::{SimulatedRack, SiteOp};
use crate::fabric::{Fabric, LineWords};
use crate::units::{LINE_WORDS, LineOffset, LineRange, WordOffset};

/// One access in this many to a whole line is interrupted between two of its words (MEM-M5).
const SPLIT_ONE_IN: u32 = 8;

/// [`Fabric`] of one simulated host. Clones, and all threads and processes of the host, share its
/// cache.
#[derive(Clone)]
pub struct SimulatedHost {
    pub(super) rack: SimulatedRack,
    pub(super) host: usize,
}

impl SimulatedHost {
    /// Number of the host in its rack.
    #[must_use]
    pub fn index(&self) -> usize {
        self.host
    }

    /// The rack it is in.
    #[must_use]
    pub fn rack(&self) -> &SimulatedRack {
        &self.rack
    }

    /// Begins an operation of `op` issued at `location`; `None` when it is not to be carried out.
    fn begin(
        &self,
        op: SiteOp,
        lines: Option<LineRange>,
        location: &'static Location<'static>,
    ) -> Option<MutexGuard<'_, Machine>> {
        lines.into_iter().for_each(|lines| self.rack.check_lines(lines));
        let mut machine = self.enter(lines.map(LineRange::start))?;
        let kind = match op {
            _ if !machine.sites.pass(location, op) => EventKind::Suppressed,
            SiteOp::WriteBack => EventKind::WriteBack,
            SiteOp::Invalidate => EventKind::Invalidate,
            SiteOp::Fence => EventKind::Fence,
            SiteOp::ReadBack => EventKind::ReadBack,
        };
        let (at, count) = lines.map_or((0, 0), |lines| (lines.start().bytes(), lines.lines()));
        machine.note(self.host, kind, at, count);
        (kind != EventKind::Suppressed).then_some(machine)
    }

    /// Calls `act`, which lets go of lines of this host, for `lines`. Several may be done in two
    /// parts, drawn at random, between which others run: different lines keep no order.
    fn each_line(
        &self,
        mut machine: MutexGuard<'_, Machine>,
        lines: Vec<LineOffset>,
        act: fn(&mut Machine, usize, Vec<LineOffset>),
    ) {
        let Machine { random, misbehaviour, .. } = &mut *machine;
        let (early, late) = misbehaviour.part(lines, random);
        act(&mut machine, self.host, early);
        drop(machine);
        if let Some(first) = late.first()
            && let Some(mut machine) = self.rack.enter_again(self.host, *first)
        {
            act(&mut machine, self.host, late);
        }
    }

    fn enter(&self, line: Option<LineOffset>) -> Option<MutexGuard<'_, Machine>> {
        self.rack.enter(self.host, line)
    }

    /// Calls `part` for all words of a line, in one go or, now and then, in two between which
    /// others run.
    fn in_parts(
        &self,
        at: LineOffset,
        kind: EventKind,
        mut part: impl FnMut(&mut Machine, Range<usize>),
    ) {
        self.rack.check_lines(LineRange::one(at));
        let Some(mut machine) = self.enter(Some(at)) else {
            return;
        };
        machine.note(self.host, kind, at.bytes(), 0);
        let split = if machine.random.one_in(SPLIT_ONE_IN) {
            machine.random.index(LINE_WORDS).unwrap_or(0)
        } else {
            LINE_WORDS
        };
        if split > 0 {
            part(&mut machine, 0..split);
        }
        if split < LINE_WORDS {
            drop(machine);
            let Some(mut machine) = self.rack.enter_again(self.host, at) else {
                return;
            };
            machine.note(self.host, kind, at.bytes(), split as u64);
            part(&mut machine, split..LINE_WORDS);
        }
    }
}

/// Operations of a task that has crashed do nothing: they are destructors run while it unwinds.
const OF_THE_DEAD: u64 = 0;

impl Fabric for SimulatedHost {
    fn bytes(&self) -> u64 {
        self.rack.bytes()
    }

    fn load(&self, at: WordOffset) -> u64 {
        self.rack.check_lines(LineRange::one(at.line()));
        let Some(mut machine) = self.enter(Some(at.line())) else {
            return OF_THE_DEAD;
        };
        let value = machine.load(self.host, at);
        machine.note(self.host, EventKind::Load, at.bytes(), value);
        value
    }

    #[track_caller]
    fn store(&self, at: WordOffset, value: u64) {
        self.rack.check_lines(LineRange::one(at.line()));
        let Some(mut machine) = self.enter(Some(at.line())) else {
            return;
        };
        machine.note(self.host, EventKind::Store, at.bytes(), value);
        machine.store(self.host, at, value);
    }

    fn read_line(&self, at: LineOffset) -> LineWords {
        let mut words = [OF_THE_DEAD; LINE_WORDS];
        self.in_parts(at, EventKind::ReadLine, |machine, part| {
            words[part.clone()].copy_from_slice(&machine.load_line(self.host, at)[part]);
        });
        words
    }

    #[track_caller]
    fn write_line(&self, at: LineOffset, words: &LineWords) {
        self.in_parts(at, EventKind::WriteLine, |machine, part| {
            machine.store_words(self.host, at, part.start, &words[part]);
        });
    }

    #[track_caller]
    fn write_back(&self, lines: LineRange) {
        if let Some(mut machine) = self.begin(SiteOp::WriteBack, Some(lines), Location::caller()) {
            machine.flush(self.host, lines);
        }
    }

    #[track_caller]
    fn invalidate(&self, lines: LineRange) {
        if let Some(mut machine) = self.begin(SiteOp::Invalidate, Some(lines), Location::caller()) {
            machine.flush(self.host, lines);
        }
    }

    #[track_caller]
    fn fence(&self) {
        if let Some(mut machine) = self.begin(SiteOp::Fence, None, Location::caller()) {
            let actor = machine.actor();
            let lines = machine.hosts[self.host].take_flushes(actor);
            self.each_line(machine, lines, Machine::complete_flushes);
        }
    }

    #[track_caller]
    fn read_back(&self, lines: LineRange) {
        if let Some(machine) = self.begin(SiteOp::ReadBack, Some(lines), Location::caller()) {
            self.each_line(machine, lines.iter().collect(), Machine::read_back);
        }
    }

    fn is_cut_off(&self) -> bool {
        self.rack.lock().is_cut_off()
    }

    fn faults(&self) -> u64 {
        u64::from(self.is_cut_off())
    }
}

impl fmt::Debug for SimulatedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedHost({})", self.host)
    }
}
