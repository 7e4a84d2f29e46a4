//! Which engines of the host compute, and so for how long no read is expected.

use std::collections::BTreeMap;

use kv_cache::tier::ForwardSeen;

use super::{Mutant, Shape, SlackTable, breaks};

/// What the engines of the host do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostPhase {
    /// No engine has said anything for a time.
    Quiet,
    /// Some engine computes, and none is about to ask for blocks until then.
    Computes {
        /// When the first forward is expected to end.
        until_us: u64,
    },
    /// An engine may ask for blocks at any moment.
    Between,
}

/// An engine, as it was seen last.
#[derive(Clone, Copy, Debug)]
struct Engine {
    owner: u64,
    /// Number of the forward that runs, and until when it leaves the drives alone.
    runs: Option<(u64, u64)>,
    /// Low bits of the number of the last forward that ended.
    ended: Option<u64>,
    /// When it was last seen to begin or to end a forward.
    moved_us: u64,
}

/// The engines of this host.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    by_row: BTreeMap<usize, Engine>,
    looked_us: u64,
}

impl Engines {
    /// Takes in what the engines say. `table` learns from forwards that have ended.
    pub(crate) fn look(&mut self, now_us: u64, seen: &[ForwardSeen], table: &mut SlackTable) {
        // A forward that was not seen before began after the last look. The earliest moment counts.
        let began_us = self.looked_us;
        let mut by_row = BTreeMap::new();
        for said in seen {
            let owner = said.owner.word();
            let before = self.by_row.get(&said.row).filter(|it| it.owner == owner).copied();
            let ended = said.ended.map(|(number, ..)| number);
            if let Some((number, forward, took_us)) = said.ended
                && before.is_some_and(|before| before.ended != Some(number))
            {
                table.learn(Shape { model: said.model, forward }, took_us.into());
            }
            let was_running = before.and_then(|before| before.runs);
            let runs = said.runs.map(|(number, forward)| {
                let slack_us = table.slack_us(Shape { model: said.model, forward });
                match was_running {
                    Some((running, until_us)) if running == number => (number, until_us),
                    // Nobody knows how long it has been running.
                    _ if before.is_none() => (number, 0),
                    _ => (number, began_us.saturating_add(slack_us)),
                }
            });
            let has_moved =
                before.is_none_or(|before| before.runs != runs || before.ended != ended);
            let moved_us = match before {
                Some(before) if !has_moved => before.moved_us,
                _ => now_us,
            };
            by_row.insert(said.row, Engine { owner, runs, ended, moved_us });
        }
        self.by_row = by_row;
        self.looked_us = now_us;
    }

    /// What the engines do now. One that has said nothing for `quiet_us` since its last word ran out
    /// counts for nothing.
    #[must_use]
    pub(crate) fn phase(&self, now_us: u64, quiet_us: u64) -> HostPhase {
        let mut until_us: Option<u64> = None;
        for engine in self.by_row.values() {
            let expected_us = engine.runs.map_or(0, |(_, until_us)| until_us);
            let last_us = engine.moved_us.max(expected_us);
            if expected_us > now_us {
                let choose = if breaks(Mutant::LastForward) { u64::max } else { u64::min };
                until_us = Some(until_us.map_or(expected_us, |until| choose(until, expected_us)));
            } else if now_us - last_us < quiet_us && !breaks(Mutant::IgnoresGaps) {
                return HostPhase::Between;
            }
        }
        until_us.map_or(HostPhase::Quiet, |until_us| HostPhase::Computes { until_us })
    }
}

#[cfg(test)]
mod tests {
    use cxl_shm::host::HolderToken;
    use kv_cache::tier::ForwardShape;

    use super::*;

    const QUIET_US: u64 = 5_000;

    fn shape() -> ForwardShape {
        ForwardShape::new(1000, 0)
    }

    fn said(row: usize, number: u64, runs: bool) -> ForwardSeen {
        let ended = if runs { number - 1 } else { number };
        ForwardSeen {
            row,
            owner: HolderToken::from_word(row as u64 + 1),
            model: 0,
            runs: runs.then_some((number, shape())),
            ended: (ended > 0).then_some((ended, shape(), 20_000)),
        }
    }

    fn table() -> SlackTable {
        let mut table = SlackTable::default();
        (0..9).for_each(|_| table.learn(Shape { model: 0, forward: shape() }, 20_000));
        table
    }

    #[test]
    fn a_forward_is_a_window_up_to_its_expected_end() {
        let (mut engines, mut table) = (Engines::default(), table());
        assert_eq!(engines.phase(0, QUIET_US), HostPhase::Quiet);
        engines.look(1_000, &[said(0, 1, false)], &mut table);
        engines.look(10_000, &[said(0, 2, true)], &mut table);
        // It may have begun just after the look before.
        let computes = HostPhase::Computes { until_us: 21_000 };
        assert_eq!(engines.phase(10_000, QUIET_US), computes);
        assert_eq!(engines.phase(20_999, QUIET_US), computes);
        assert_eq!(engines.phase(21_000, QUIET_US), HostPhase::Between, "it takes longer");
        assert_eq!(engines.phase(26_000, QUIET_US), HostPhase::Quiet, "nobody knows its end");
        engines.look(30_000, &[said(0, 2, false)], &mut table);
        assert_eq!(engines.phase(30_000, QUIET_US), HostPhase::Between);
        assert_eq!(engines.phase(35_000, QUIET_US), HostPhase::Quiet);
    }

    #[test]
    fn the_first_forward_that_ends_closes_the_window_of_the_host() {
        let (mut engines, mut table) = (Engines::default(), table());
        engines.look(0, &[said(0, 1, false), said(1, 1, false)], &mut table);
        engines.look(1_000, &[said(0, 2, true), said(1, 1, false)], &mut table);
        assert_eq!(engines.phase(1_000, QUIET_US), HostPhase::Between, "the other has just begun");
        engines.look(9_000, &[said(0, 2, true), said(1, 2, true)], &mut table);
        assert_eq!(engines.phase(9_000, QUIET_US), HostPhase::Computes { until_us: 20_000 });
        engines.look(12_000, &[said(0, 2, false), said(1, 2, true)], &mut table);
        assert_eq!(engines.phase(12_000, QUIET_US), HostPhase::Between, "it ended early");
        engines.look(13_000, &[said(1, 2, true)], &mut table);
        assert_eq!(engines.phase(13_000, QUIET_US), HostPhase::Computes { until_us: 21_000 });
    }

    #[test]
    fn forwards_that_ended_between_looks_are_learned_once() {
        let (mut engines, mut table) = (Engines::default(), SlackTable::default());
        engines.look(0, &[said(0, 7, false)], &mut table);
        assert_eq!(table.forwards(), 0, "nobody knows when it ended");
        for number in 8..12 {
            engines.look(number * 1000, &[said(0, number, true)], &mut table);
            engines.look(number * 1000, &[said(0, number, true)], &mut table);
        }
        assert_eq!(table.forwards(), 3);
        engines.look(
            20_000,
            &[ForwardSeen { owner: HolderToken::from_word(99), ..said(0, 30, true) }],
            &mut table,
        );
        assert_eq!(table.forwards(), 3, "another process has the row");
        assert_eq!(engines.phase(20_000, QUIET_US), HostPhase::Between);
    }
}
