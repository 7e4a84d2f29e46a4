//! Whether a fence waits for the device: the question behind read-back (MEM-M2).

use super::finding::{Expect, Finding};
use super::party::{Party, Role, Silent, TRIALS, word_of};
use super::probe::Probe;
use cxl_shm::clock::Clock;
use cxl_shm::units::LineRange;

/// The writer writes lines back and fences, reads nothing back, and tells the reader by a step in
/// a line of its own. The reader refreshes and looks whether everything is there. Only two hosts
/// can see a line that is late, and that they see none is no proof.
pub(super) fn run<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
) -> Result<Vec<Finding>, Silent> {
    let mut findings = Vec::new();
    for (read_back, tried, expect) in [
        (false, "write back, fence, tell", Expect::Hidden),
        (true, "write back, fence, read back, tell (MEM-M2)", Expect::Never),
    ] {
        let (seen, trials) = (late(party, rounds, read_back)?, rounds * TRIALS);
        let counted = "line that was late";
        findings.push(Finding { litmus: LITMUS, tried, counted, trials, seen, expect });
    }
    Ok(findings)
}

/// Its name.
pub(super) const LITMUS: &str = "fence waits for device";

fn late<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
    read_back: bool,
) -> Result<u64, Silent> {
    party.begin()?;
    let lines = |party: &Party<'_, P, C>, role| {
        let first = party.line_of(role, 0, 0);
        LineRange::new(first, TRIALS).expect("the lines of a program")
    };
    let lines = lines(party, Role::First);
    let mut late = 0;
    for round in 1..=rounds {
        if party.role == Role::First {
            for line in lines.iter() {
                party.fabric.store(word_of(line, 0), round);
            }
            party.fabric.write_back(lines);
            party.fabric.fence();
            if read_back {
                party.fabric.read_back(lines);
            }
        }
        party.meet()?;
        let mut seen = 0;
        if party.role == Role::Second {
            party.fabric.refresh(lines);
            let is_late =
                |line: &cxl_shm::units::LineOffset| party.fabric.load(word_of(*line, 0)) != round;
            seen = u64::try_from(lines.iter().filter(is_late).count()).unwrap_or(u64::MAX);
        }
        let others = party.exchange(&[seen])?;
        late += seen + others[0];
    }
    Ok(late)
}
