//! Metadata that the device cannot read, and the processes that it cuts off (FAULT-F4).
//!
//! This is what `fabric/faults.rs` and Linux do on real memory, as far as others can see it. Only an
//! access of a process counts: a load or a store that its caches cannot answer, and the load of a
//! read-back. What caches fetch by themselves is dropped without a word.

use std::collections::{HashMap, HashSet};

use super::actor::Actor;
use super::cache::page_of;
use super::machine::Machine;
use super::trace::EventKind;
use crate::fabric::LineWords;
use crate::units::{LineOffset, LineRange};

/// How a line fails that the device cannot read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FailedLine {
    /// A write of the whole line, by caches that have it still, makes it good again. Otherwise the
    /// write is lost.
    pub heals: bool,
    /// The operating system of a host in which a process has met the line takes the page from all
    /// processes of this host: what their caches have of it does not help them.
    pub takes_page: bool,
}

/// A process that was cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutOff {
    /// Its host.
    pub host: usize,
    /// The line, or one of the page that was taken.
    pub line: LineOffset,
}

/// What a process sees in place of memory that failed: zeros, and its own stores.
#[derive(Debug, Default)]
struct Replacement {
    /// All of the memory is replaced. Otherwise these pages are.
    is_cut_off: bool,
    pages: HashSet<LineOffset>,
    lines: HashMap<LineOffset, LineWords>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FailedMemory {
    goes_on: bool,
    engines_go_on: bool,
    lost_pages: HashSet<(usize, LineOffset)>,
    replaced: HashMap<Actor, Replacement>,
    cut_offs: Vec<CutOff>,
}

impl FailedMemory {
    pub(super) fn go_on(&mut self) {
        self.goes_on = true;
    }

    pub(super) fn let_engines_go_on(&mut self) {
        self.engines_go_on = true;
    }

    pub(super) fn map_anew(&mut self, actor: Actor) {
        self.replaced.remove(&actor);
    }

    /// The operating system of `host` starts anew.
    pub(super) fn forget_pages(&mut self, host: usize) {
        self.lost_pages.retain(|(of, _)| *of != host);
    }

    pub(super) fn cut_offs(&self) -> &[CutOff] {
        &self.cut_offs
    }

    fn is_idle(&self) -> bool {
        self.lost_pages.is_empty() && self.replaced.is_empty()
    }

    fn is_replaced(&self, actor: Actor, line: LineOffset) -> bool {
        let has = |it: &Replacement| it.is_cut_off || it.pages.contains(&page_of(line));
        self.replaced.get(&actor).is_some_and(has)
    }
}

impl Machine {
    /// Whether the process that runs is cut off.
    pub(super) fn is_cut_off(&self) -> bool {
        !self.failed.replaced.is_empty()
            && self.failed.replaced.get(&self.actor()).is_some_and(|it| it.is_cut_off)
    }

    /// Whether the engine of the process that runs moves bytes of the replacement.
    pub(super) fn is_engine_cut_off(&self) -> bool {
        !self.failed.engines_go_on && self.is_cut_off()
    }

    /// Whether the process that runs sees a replacement of the line, be it by this access of its
    /// host.
    pub(super) fn is_replaced(&mut self, host: usize, line: LineOffset) -> bool {
        if self.failed.is_idle() && !self.device.has_failed_lines() {
            return false;
        }
        self.is_replaced_already(host, line) || {
            let failure = self.hosts[host].failure(&mut self.device, line);
            if let Some(failed) = failure {
                self.cut_off(host, line, failed.takes_page);
            }
            failure.is_some()
        }
    }

    /// What the process that runs sees of a line that is replaced.
    pub(super) fn replacement(&mut self, line: LineOffset) -> &mut LineWords {
        let actor = self.actor();
        self.failed.replaced.entry(actor).or_default().lines.entry(line).or_default()
    }

    /// Issues flushes of `host`. A flush asks the device for nothing, but it needs the page.
    pub(super) fn flush(&mut self, host: usize, lines: LineRange) {
        let actor = self.actor();
        if self.failed.is_idle() {
            self.hosts[host].flush(actor, lines);
            return;
        }
        for line in lines.iter() {
            if !self.is_replaced_already(host, line) {
                self.hosts[host].flush(actor, LineRange::one(line));
            }
        }
    }

    /// Whether an earlier failure has replaced the line, or taken its page from this host.
    fn is_replaced_already(&mut self, host: usize, line: LineOffset) -> bool {
        if self.failed.is_replaced(self.actor(), line) {
            return true;
        }
        let is_lost = self.failed.lost_pages.contains(&(host, page_of(line)));
        if is_lost {
            self.cut_off(host, line, true);
        }
        is_lost
    }

    /// The process that runs has met `line`.
    fn cut_off(&mut self, host: usize, line: LineOffset, takes_page: bool) {
        self.note(host, EventKind::MemoryFailed, line.bytes(), 0);
        let actor = self.actor();
        if takes_page {
            self.failed.lost_pages.insert((host, page_of(line)));
        }
        self.failed.cut_offs.push(CutOff { host, line });
        let goes_on = self.failed.goes_on;
        let replaced = self.failed.replaced.entry(actor).or_default();
        if goes_on {
            replaced.pages.insert(page_of(line));
            return;
        }
        replaced.is_cut_off = true;
        self.hosts[host].forget_actor(&mut self.device, &mut self.random, actor);
        if let Actor::Task { index, .. } = actor {
            self.tell_cut_off(host, index);
        }
    }
}
