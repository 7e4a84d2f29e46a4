//! Everything of a rack that is behind its one lock.

use super::actor::Actor;
use super::cache::Host;
use super::device::Device;
use super::failed_memory::FailedMemory;
use super::misbehaviour::Misbehaviour;
use super::schedule::Run;
use super::sites::Sites;
use super::trace::{EventKind, Trace};
use super::{CacheMode, Random, Settings};
use crate::fabric::LineWords;
use crate::units::{LineOffset, WordOffset};

/// Spread of the moments at which the hosts' clocks start, so that no test can compare two.
const CLOCK_OFFSET_MS_MAX: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) device: Device,
    pub(super) failed: FailedMemory,
    pub(super) hosts: Vec<Host>,
    pub(super) sites: Sites,
    pub(super) trace: Trace,
    pub(super) random: Random,
    pub(super) misbehaviour: Misbehaviour,
    pub(super) now_ns: u64,
    /// What each host's clock said at the start.
    pub(super) clock_offsets_ms: Vec<u64>,
    /// Hosts that the test keeps from running.
    pub(super) paused: Vec<bool>,
    /// Lines that two hosts had unwritten stores to at one time, in the order of the mishaps.
    pub(super) conflicts: Vec<LineOffset>,
    pub(super) run: Option<Run>,
    /// Schedules started so far.
    pub(super) runs: u64,
    /// Operations outside of schedules before one panics.
    pub(super) operations_left: u64,
}

impl Machine {
    pub(super) fn new(settings: &Settings, device: Device) -> Self {
        let mut random = Random::new(settings.seed);
        let clock_offsets_ms =
            (0..settings.hosts).map(|_| random.below(CLOCK_OFFSET_MS_MAX)).collect();
        Self {
            device,
            failed: FailedMemory::default(),
            hosts: (0..settings.hosts).map(|_| Host::new(settings.posted_writes)).collect(),
            sites: Sites::default(),
            trace: Trace::default(),
            misbehaviour: match settings.cache {
                CacheMode::Sticky => Misbehaviour::none(),
                CacheMode::Adversarial => Misbehaviour::drawn(&mut random),
            },
            random,
            now_ns: 0,
            clock_offsets_ms,
            paused: vec![false; settings.hosts],
            conflicts: Vec::new(),
            run: None,
            runs: 0,
            operations_left: u64::MAX,
        }
    }

    pub(super) fn note(&mut self, host: usize, kind: EventKind, at: u64, value: u64) {
        let task = self.run.as_ref().and_then(Run::running);
        self.trace.note(task, host, kind, at, value);
    }

    /// Who carries out the present operation.
    pub(super) fn actor(&self) -> Actor {
        let task = self.run.as_ref().and_then(|run| Some(run.actor(run.running()?)));
        task.unwrap_or_else(|| Actor::Thread(std::thread::current().id()))
    }

    pub(super) fn load(&mut self, host: usize, at: WordOffset) -> u64 {
        if self.is_replaced(host, at.line()) {
            return self.replacement(at.line())[at.index_in_line()];
        }
        self.hosts[host].load(&mut self.device, at)
    }

    pub(super) fn load_line(&mut self, host: usize, line: LineOffset) -> &LineWords {
        if self.is_replaced(host, line) {
            return self.replacement(line);
        }
        self.hosts[host].load_line(&mut self.device, line)
    }

    pub(super) fn store(&mut self, host: usize, at: WordOffset, value: u64) {
        self.store_words(host, at.line(), at.index_in_line(), &[value]);
    }

    /// Stores neighbouring words of a line, the first of them word `first`.
    pub(super) fn store_words(
        &mut self,
        host: usize,
        line: LineOffset,
        first: usize,
        words: &[u64],
    ) {
        if self.is_replaced(host, line) {
            self.replacement(line)[first..first + words.len()].copy_from_slice(words);
            return;
        }
        let actor = self.actor();
        self.check_single_writer(host, line);
        self.hosts[host].store_words(&mut self.device, actor, line, first, words);
    }

    /// Keeps note of a second host that is about to write a line (MEM-M1).
    pub(super) fn check_single_writer(&mut self, host: usize, line: LineOffset) {
        if self.hosts[host].holds_writes_to(line) {
            return;
        }
        let mut others = self.hosts.iter().enumerate().filter(|(other, _)| *other != host);
        if others.any(|(_, other)| other.holds_writes_to(line)) && !self.conflicts.contains(&line) {
            self.conflicts.push(line);
        }
    }

    /// Completes flushes of `lines` of `host`.
    pub(super) fn complete_flushes(&mut self, host: usize, lines: Vec<LineOffset>) {
        self.let_go(host, lines, Host::complete_flush);
    }

    /// Loads of `lines` of `host` that are only made to be answered by the device.
    pub(super) fn read_back(&mut self, host: usize, mut lines: Vec<LineOffset>) {
        lines.retain(|line| !self.is_replaced(host, *line));
        self.let_go(host, lines, Host::read_back);
    }

    /// Calls `act`, which lets go of a line, for each of `lines` of `host`.
    fn let_go(
        &mut self,
        host: usize,
        lines: Vec<LineOffset>,
        act: fn(&mut Host, &mut Device, LineOffset),
    ) {
        for line in lines {
            let Self { hosts, device, misbehaviour, random, .. } = self;
            act(&mut hosts[host], device, line);
            let after = misbehaviour.aftermath(&mut hosts[host], device, line, random);
            if let Some(kind) = after {
                self.misbehaved(host, kind, line);
            }
        }
    }

    /// Keeps note of something that a cache did by itself. If it was the running task's, it matters
    /// only when somebody else acts before that task continues, so that is made likely.
    pub(super) fn misbehaved(&mut self, host: usize, kind: EventKind, line: LineOffset) {
        self.note(host, kind, line.bytes(), 0);
        if let Some(run) = &mut self.run
            && run.running_host() == Some(host)
            && self.random.one_in(2)
        {
            run.end_turn();
        }
    }

    /// The caches and the DRAM of a host are lost. What its tasks do is for the schedule to say.
    pub(super) fn lose_host(&mut self, host: usize) {
        self.note(host, EventKind::HostCrash, 0, 0);
        self.failed.forget_pages(host);
        self.hosts[host].crash(&mut self.device, &mut self.random);
    }

    /// What `host`'s clock says.
    pub(super) fn clock_ms(&self, host: usize) -> u64 {
        self.clock_offsets_ms[host] + self.now_ns / 1_000_000
    }
}
