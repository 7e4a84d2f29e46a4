//! Lines: whether they tear, and what two writing hosts do to one.

use super::finding::{Expect, Finding};
use super::party::{Party, Role, Silent, TRIALS, TRIALS_LEN, word_of};
use super::probe::Probe;
use cxl_shm::clock::Clock;
use cxl_shm::units::LineRange;

/// What is stored and loaded at once.
#[derive(Clone, Copy)]
enum Width {
    Word,
    WholeLine,
    EightWords,
}

/// One writes all bits zero and all bits one in turn, the other looks for a mixture.
pub(super) fn tearing<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
) -> Result<Vec<Finding>, Silent> {
    let mut findings = Vec::new();
    for (width, tried, expect) in [
        (Width::Word, "one word of 8 bytes (MEM-M5)", Expect::Never),
        (Width::WholeLine, "a line by one 64-byte store and load", Expect::Anything),
        (Width::EightWords, "a line by eight stores and loads", Expect::Anything),
    ] {
        let (trials, seen) = torn(party, rounds, width)?;
        let counted = "torn value";
        findings.push(Finding { litmus: "tearing", tried, counted, trials, seen, expect });
    }
    Ok(findings)
}

fn torn<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
    width: Width,
) -> Result<(u64, u64), Silent> {
    party.begin()?;
    let (mut looked, mut torn) = (0, 0);
    for _ in 0..rounds {
        party.meet()?;
        let mut seen = [0; 2];
        for trial in 0..TRIALS {
            if party.role == Role::First {
                write(party, width, if trial % 2 == 0 { u64::MAX } else { 0 });
            } else if let Some(mixed) = look(party, width) {
                seen[0] += 1;
                seen[1] += u64::from(mixed);
            }
        }
        let others = party.exchange(&seen)?;
        looked += seen[0] + others[0];
        torn += seen[1] + others[1];
    }
    Ok((looked, torn))
}

fn write<P: Probe, C: Clock>(party: &Party<'_, P, C>, width: Width, bits: u64) {
    let line = party.mine(0, 0);
    match width {
        Width::Word => party.fabric.store(word_of(line, 0), bits),
        Width::EightWords => party.fabric.write_line(line, &[bits; 8]),
        Width::WholeLine => {
            party.fabric.write_whole_line(line, &[bits; 8]);
        }
    }
    party.fabric.publish(LineRange::one(line));
}

/// Whether the line is a mixture; `None` when it cannot be looked at in this way.
fn look<P: Probe, C: Clock>(party: &Party<'_, P, C>, width: Width) -> Option<bool> {
    let line = party.theirs(0, 0);
    party.fabric.refresh(LineRange::one(line));
    let mixed = match width {
        Width::Word => {
            let word = party.fabric.load(word_of(line, 0));
            word != 0 && word != u64::MAX
        }
        Width::EightWords => is_mixed(&party.fabric.read_line(line)),
        Width::WholeLine => is_mixed(&party.fabric.read_whole_line(line)?),
    };
    Some(mixed)
}

fn is_mixed(words: &[u64; 8]) -> bool {
    words.iter().any(|word| *word != words[0])
}

/// Both write a word of their own in one line, and publish: against MEM-M1, in lines that nobody
/// else uses, to see what it does.
pub(super) fn clobber<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
) -> Result<Vec<Finding>, Silent> {
    party.begin()?;
    let own = if party.role == Role::First { 0 } else { 1 };
    let mut lost = 0;
    for round in 1..=rounds {
        party.meet()?;
        for trial in 0..TRIALS {
            let line = party.line_of(Role::First, trial, 0);
            party.fabric.store(word_of(line, own), round);
            party.fabric.publish(LineRange::one(line));
        }
        party.meet()?;
        let mut seen = [0; TRIALS_LEN];
        for (trial, seen) in (0..TRIALS).zip(&mut seen) {
            let line = party.line_of(Role::First, trial, 0);
            party.fabric.refresh(LineRange::one(line));
            *seen = u64::from(party.fabric.load(word_of(line, own)) != round);
        }
        let others = party.exchange(&seen)?;
        lost += seen.iter().chain(&others).sum::<u64>();
    }
    Ok(vec![Finding {
        litmus: "clobber",
        tried: "two writers in one line (against MEM-M1)",
        counted: "lost word",
        trials: rounds * TRIALS * 2,
        seen: lost,
        expect: Expect::Hidden,
    }])
}
