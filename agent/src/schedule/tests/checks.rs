//! What a log has to say, by the rules and not by the code of the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use super::simulation::{BLOCK_MAX, BYTES_PER_S, LATENCY_US, Log, Rig, STEP_US};
use crate::schedule::{Event, Why};

#[derive(Clone, Copy, Debug, Default)]
struct Engine {
    until_us: u64,
    moved_us: u64,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    request: u64,
    bytes: u64,
    since_us: u64,
    /// When it has to begin at the latest (AGENT-W5).
    latest_us: u64,
}

#[derive(Debug, Default)]
struct Checked {
    reads: BTreeMap<u64, usize>,
    read_us: Option<u64>,
    engines: BTreeMap<usize, Engine>,
    waiting: BTreeMap<u64, Write>,
    under_way: BTreeMap<u64, u64>,
    /// The window that is open: its number, when it opened, its first end, and the bytes in it.
    window: Option<(u64, u64, u64, u64)>,
    ended: BTreeSet<u64>,
    /// Writes by reason: window, idle, late.
    begun: [u64; 3],
}

fn transfer_us(bytes: u64) -> u64 {
    bytes * 1_000_000 / BYTES_PER_S
}

/// Checks the log, and counts the writes in windows, beside nothing else, and late.
pub(super) fn check(rig: Rig, log: &[Log]) -> Result<[u64; 3], String> {
    let mut checked = Checked::default();
    for (line, entry) in log.iter().enumerate() {
        checked.take(rig, *entry).map_err(|why| format!("line {line}, {entry:?}: {why}"))?;
    }
    Ok(checked.begun)
}

fn rule(keeps: bool, why: &str) -> Result<(), String> {
    if keeps { Ok(()) } else { Err(why.to_owned()) }
}

impl Checked {
    fn take(&mut self, rig: Rig, entry: Log) -> Result<(), String> {
        match entry {
            Log::ReadQueued { at_us, request } => {
                *self.reads.entry(request).or_default() += 1;
                self.read_us = Some(at_us);
            }
            Log::ReadEnded { at_us, request } => {
                let left = self.reads.get_mut(&request).ok_or("a read that was not queued ends")?;
                *left -= 1;
                self.read_us = Some(at_us);
            }
            Log::EngineBegins { at_us, row, until_us } => {
                // The first that is seen of an engine says nothing of its begin.
                let until_us = if self.engines.contains_key(&row) { until_us } else { 0 };
                self.engines.insert(row, Engine { until_us, moved_us: at_us });
            }
            Log::EngineEnds { at_us, row } => {
                self.engines.insert(row, Engine { until_us: 0, moved_us: at_us });
            }
            Log::EngineGone { row } => drop(self.engines.remove(&row)),
            Log::WriteQueued { at_us, write, request, bytes } => {
                let latest_us = at_us + self.wait_us(rig, bytes);
                self.waiting.insert(write, Write { request, bytes, since_us: at_us, latest_us });
            }
            Log::Scheduler(event) => return self.event(rig, event),
            Log::Over { waiting } => rule(waiting == 0, "a write never begins")?,
        }
        Ok(())
    }

    /// How long a write waits at most that is queued now.
    fn wait_us(&self, rig: Rig, bytes: u64) -> u64 {
        let others = (self.waiting.len() + rig.settings.depth) as u64;
        let before: u64 = self.waiting.values().map(|it| it.bytes).sum();
        let all = before + bytes + rig.settings.depth as u64 * BLOCK_MAX;
        let turns_us = (others + 2) * (LATENCY_US + 2 * STEP_US);
        rig.settings.write_wait_us + transfer_us(all) + turns_us
    }

    fn event(&mut self, rig: Rig, event: Event) -> Result<(), String> {
        match event {
            Event::Opens { at_us, window, until_us } => {
                rule(until_us > at_us, "a window opens that is over")?;
                self.window = match self.window {
                    Some((open, since_us, first_us, bytes)) if open == window => {
                        rule(until_us < first_us, "a window grows")?;
                        Some((open, since_us, first_us, bytes))
                    }
                    Some(_) => return Err("a window opens beside another".to_owned()),
                    None => Some((window, at_us, until_us, 0)),
                };
            }
            Event::Closes { window, .. } => {
                let open = self.window.take().map(|it| it.0);
                rule(open == Some(window), "a window closes that is not open")?;
            }
            Event::Ends { write, .. } => {
                rule(self.under_way.remove(&write).is_some(), "a write ends that did not begin")?;
                rule(self.ended.insert(write), "a write ends twice")?;
            }
            Event::Begins { at_us, write, bytes, why } => {
                self.begins(rig, at_us, write, bytes, why)?
            }
        }
        Ok(())
    }

    fn begins(
        &mut self,
        rig: Rig,
        at_us: u64,
        write: u64,
        bytes: u64,
        why: Why,
    ) -> Result<(), String> {
        let oldest = self.waiting.first_key_value().map(|(write, it)| (*write, it.since_us));
        let (oldest, oldest_us) = oldest.ok_or("a write begins and none waits")?;
        let known = self.waiting.remove(&write).ok_or("a write begins that does not wait")?;
        rule(known.bytes == bytes, "the write has another length")?;
        rule(at_us <= known.latest_us, "the write starved (AGENT-W5)")?;
        let is_late = at_us - oldest_us >= rig.settings.write_wait_us;
        rule(!is_late || write == oldest, "an older write has waited for long (AGENT-W5)")?;
        let reads: usize = self.reads.values().sum();
        if why != Why::Late {
            let own = self.reads.get(&known.request).copied().unwrap_or(0);
            rule(own == 0, "a write of a request begins before its reads are over")?;
            rule(reads == 0, "a write begins beside reads (AGENT-W1)")?;
        }
        match why {
            Why::Window { window } => self.in_window(rig, at_us, window, bytes)?,
            Why::Idle => {
                let idle_us = self.read_us.map_or(u64::MAX, |then| at_us - then);
                rule(idle_us >= rig.settings.idle_us, "reads were there just now (AGENT-W4)")?;
                let quiet = |it: &Engine| at_us - it.moved_us.max(it.until_us.min(at_us));
                let is_quiet = self
                    .engines
                    .values()
                    .all(|it| it.until_us <= at_us && quiet(it) >= rig.settings.idle_us);
                rule(is_quiet, "an engine says when it computes (AGENT-W4)")?;
                self.begun[1] += 1;
            }
            Why::Late => {
                rule(is_late, "the write has not waited for long")?;
                rule(self.under_way.is_empty(), "a late write begins beside others (AGENT-W5)")?;
                self.begun[2] += 1;
            }
            Why::Stops => return Err("the agent does not stop".to_owned()),
        }
        self.under_way.insert(write, bytes);
        rule(self.under_way.len() <= rig.settings.depth, "too many writes are under way")
    }

    fn in_window(&mut self, rig: Rig, at_us: u64, number: u64, bytes: u64) -> Result<(), String> {
        let window = self.window.as_mut().filter(|window| window.0 == number);
        let (_, since_us, until_us, sum) = window.ok_or("the window is not open (AGENT-W2)")?;
        *sum += bytes;
        rule(transfer_us(*sum) <= *until_us - *since_us, "the budget is used up (AGENT-W3)")?;
        let computing = self.engines.values().filter(|it| it.until_us > at_us);
        let first_us = computing.map(|it| it.until_us).min();
        let first_us = first_us.ok_or("no engine computes (AGENT-W2)")?;
        let is_between = self.engines.values().any(|it| {
            it.until_us <= at_us && at_us - it.moved_us.max(it.until_us) < rig.settings.idle_us
        });
        rule(!is_between, "an engine may ask for blocks (AGENT-W2)")?;
        let all = self.under_way.values().sum::<u64>() + bytes;
        let ends_us = at_us + LATENCY_US + transfer_us(all);
        rule(ends_us <= first_us, "the write does not fit the window (AGENT-W3)")?;
        self.begun[0] += 1;
        Ok(())
    }
}
