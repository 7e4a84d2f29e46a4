//! Order between lines: message passing and store buffering.

use super::finding::{Expect, Finding};
use super::party::{Party, Role, Silent, TRIALS, TRIALS_LEN, word_of};
use super::probe::Probe;
use cxl_shm::clock::Clock;
use cxl_shm::units::LineRange;

/// How often a reader looks for a flag, with and without a refresh, before it continues to the
/// next: long enough for the writer to get there.
const LOOKS: [u32; 2] = [256, 4096];

/// Payload, then flag; the reader looks at the flag, then at the payload.
pub(super) fn message_passing<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
) -> Result<Vec<Finding>, Silent> {
    let mut findings = Vec::new();
    for (flush, refresh, tried, expect) in [
        (true, true, "publish both, refresh each (MEM-M2, MEM-M4)", Expect::Never),
        (false, true, "without the writer's flushes", Expect::Hidden),
        (true, false, "without the reader's refreshes", Expect::Hidden),
    ] {
        let (trials, seen) = passed(party, rounds, flush, refresh)?;
        let counted = "flag without payload";
        findings.push(Finding { litmus: "message passing", tried, counted, trials, seen, expect });
    }
    Ok(findings)
}

fn passed<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
    flush: bool,
    refresh: bool,
) -> Result<(u64, u64), Silent> {
    party.begin()?;
    let looks = LOOKS[usize::from(!refresh)];
    let (mut flags, mut wrong) = (0, 0);
    for round in 1..=rounds {
        party.meet()?;
        let mut seen = [0; 2];
        for trial in 0..TRIALS {
            if party.role == Role::First {
                for line in [party.mine(trial, 0), party.mine(trial, 1)] {
                    party.fabric.store(word_of(line, 0), round);
                    if flush {
                        party.fabric.publish(LineRange::one(line));
                    }
                }
            } else {
                let [payload, flag] = [party.theirs(trial, 0), party.theirs(trial, 1)];
                let look = |line| {
                    if refresh {
                        party.fabric.refresh(LineRange::one(line));
                    }
                    party.fabric.load(word_of(line, 0))
                };
                if (0..looks).any(|_| look(flag) == round) {
                    seen[0] += 1;
                    seen[1] += u64::from(look(payload) != round);
                }
            }
        }
        let others = party.exchange(&seen)?;
        flags += seen[0] + others[0];
        wrong += seen[1] + others[1];
    }
    Ok((flags, wrong))
}

/// Each writes its own word and then looks at the other's: one of them has to see the other.
pub(super) fn store_buffering<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
) -> Result<Vec<Finding>, Silent> {
    let mut findings = Vec::new();
    for (published, tried, expect) in [
        (true, "publish own, refresh other (MEM-M2, MEM-M3)", Expect::Never),
        (false, "plain store, plain load", Expect::Anything),
    ] {
        let seen = unseen(party, rounds, published)?;
        let (counted, trials) = ("neither saw the other", rounds * TRIALS);
        findings.push(Finding { litmus: "store buffering", tried, counted, trials, seen, expect });
    }
    Ok(findings)
}

fn unseen<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
    published: bool,
) -> Result<u64, Silent> {
    party.begin()?;
    let mut neither = 0;
    for round in 1..=rounds {
        party.meet()?;
        let mut missed = [0; TRIALS_LEN];
        for (trial, missed) in (0..TRIALS).zip(&mut missed) {
            let (own, other) = (party.mine(trial, 0), party.theirs(trial, 0));
            party.fabric.store(word_of(own, 0), round);
            if published {
                party.fabric.publish(LineRange::one(own));
                party.fabric.refresh(LineRange::one(other));
            }
            *missed = u64::from(party.fabric.load(word_of(other, 0)) != round);
        }
        // Both variants end alike, so that the next round starts from what was written.
        for trial in 0..TRIALS {
            party.fabric.publish(LineRange::one(party.mine(trial, 0)));
        }
        let others = party.exchange(&missed)?;
        neither += missed.iter().zip(&others).map(|(mine, theirs)| mine & theirs).sum::<u64>();
    }
    Ok(neither)
}
