//! Every litmus program, and what was found by all of them.

use cxl_shm::clock::Clock;
use cxl_shm::layout::FenceEvidence;

use super::finding::Finding;
use super::party::{Party, Silent, TRIALS};
use super::probe::Probe;
use super::timing::Timing;
use super::{litmus_arrival, litmus_line, litmus_order, litmus_stale};

/// Most rounds of a program: minutes of work.
pub const ROUNDS_MAX: u64 = 100_000;
/// Trials of the arrival program from which on two hosts that saw nothing late count as evidence.
pub const EVIDENCE_TRIALS_MIN: u64 = 10_000;

/// What was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// Each program and variant.
    pub findings: Vec<Finding>,
    /// Hosts that took part, 1 or 2.
    pub hosts: u8,
    /// What publishing costs here.
    pub timing: Timing,
    /// The cores that the two threads ran on; `None` when there was one core for both, or the
    /// other side is another process.
    pub cores: Option<[usize; 2]>,
}

impl Measured {
    /// Whether everything that the protocols need was seen to hold.
    #[must_use]
    pub fn is_fit(&self) -> bool {
        !self.findings.iter().any(Finding::is_violated)
    }

    /// What is known now about fences.
    #[must_use]
    pub fn fence(&self) -> FenceEvidence {
        let arrival = |finding: &&Finding| finding.litmus == litmus_arrival::LITMUS;
        let enough = self
            .findings
            .iter()
            .filter(arrival)
            .all(|finding| finding.seen == 0 && finding.trials >= EVIDENCE_TRIALS_MIN);
        if self.hosts > 1 && self.findings.iter().any(|finding| arrival(&finding)) && enough {
            FenceEvidence::TwoHosts
        } else {
            FenceEvidence::Unproven
        }
    }
}

/// Trials of `rounds` rounds of a program.
#[must_use]
pub fn trials_of(rounds: u64) -> u64 {
    rounds.saturating_mul(TRIALS)
}

/// Runs every program, in step with the other party.
pub(crate) fn run_all<P: Probe, C: Clock>(
    party: &mut Party<'_, P, C>,
    rounds: u64,
) -> Result<Vec<Finding>, Silent> {
    let mut findings = litmus_stale::run(party, rounds)?;
    findings.extend(litmus_line::tearing(party, rounds)?);
    findings.extend(litmus_order::message_passing(party, rounds)?);
    findings.extend(litmus_order::store_buffering(party, rounds)?);
    findings.extend(litmus_line::clobber(party, rounds)?);
    findings.extend(litmus_arrival::run(party, rounds)?);
    // Nobody takes his lines away while the other still looks at them.
    party.meet()?;
    Ok(findings)
}
