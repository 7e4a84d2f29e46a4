//! Stale copies: what a load returns after a flush that nothing waits for, and after a prefetch.

use super::finding::{Expect, Finding};
use super::party::{Party, Role, Silent, TRIALS, TRIALS_LEN, word_of};
use super::probe::Probe;
use cxl_shm::clock::Clock;
use cxl_shm::fabric::MemoryFenceKind;
use cxl_shm::units::LineRange;

/// How the reader gets at what the other one published.
#[derive(Clone, Copy)]
enum Way {
    /// Loads what it has.
    Plain,
    /// Flushes, a fence of some kind, loads.
    Flush(MemoryFenceKind),
}

/// The reader holds a copy, the writer publishes, the reader is told, and loads in some way.
pub(super) fn run<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
) -> Result<Vec<Finding>, Silent> {
    let flushes = [
        (MemoryFenceKind::None, "flush, load", Expect::Hidden),
        (MemoryFenceKind::Stores, "flush, store fence, load", Expect::Hidden),
        (MemoryFenceKind::Loads, "flush, load fence, load", Expect::Hidden),
        (MemoryFenceKind::Full, "flush, full fence, load (MEM-M3)", Expect::Never),
    ];
    let mut findings = Vec::new();
    for (fence, tried, expect) in flushes {
        let seen = count(party, rounds, false, Way::Flush(fence))?;
        findings.push(finding("load passes flush", tried, rounds, seen, expect));
    }
    for (way, tried, expect) in [
        (Way::Plain, "prefetch, plain load", Expect::Hidden),
        (Way::Flush(MemoryFenceKind::Full), "prefetch, refresh, load (MEM-M3)", Expect::Never),
    ] {
        let seen = count(party, rounds, true, way)?;
        findings.push(finding("stale after prefetch", tried, rounds, seen, expect));
    }
    Ok(findings)
}

fn finding(
    litmus: &'static str,
    tried: &'static str,
    rounds: u64,
    seen: u64,
    expect: Expect,
) -> Finding {
    Finding { litmus, tried, counted: "old value", trials: rounds * TRIALS, seen, expect }
}

fn count<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
    prefetch: bool,
    way: Way,
) -> Result<u64, Silent> {
    party.begin()?;
    let writes = party.role == Role::First;
    let mut stale = 0;
    for round in 1..=rounds {
        if !writes {
            for trial in 0..TRIALS {
                let line = party.theirs(trial, 0);
                if prefetch {
                    party.fabric.prefetch(line);
                } else {
                    party.fabric.load(word_of(line, 0));
                }
            }
        }
        party.meet()?;
        if writes {
            for trial in 0..TRIALS {
                let line = party.mine(trial, 0);
                party.fabric.store(word_of(line, 0), round);
                party.fabric.publish(LineRange::one(line));
            }
        }
        party.meet()?;
        let mut seen = [0; TRIALS_LEN];
        if !writes {
            for (trial, old) in (0..TRIALS).zip(&mut seen) {
                let line = party.theirs(trial, 0);
                if let Way::Flush(fence) = way {
                    party.fabric.invalidate(LineRange::one(line));
                    party.fabric.fence_of(fence);
                }
                *old = u64::from(party.fabric.load(word_of(line, 0)) != round);
            }
            // The next round begins with fresh copies, whatever this one left.
            party.fabric.fence();
        }
        let others = party.exchange(&seen)?;
        stale += seen.iter().chain(&others).sum::<u64>();
    }
    Ok(stale)
}
