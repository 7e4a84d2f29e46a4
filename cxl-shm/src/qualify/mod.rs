//! What this platform's memory does, measured: litmus programs, and what follows from them.
//!
//! The rules of [`fabric`](crate::fabric) assume little of the memory, and two things that they
//! assume are properties of a platform: that a refresh really refreshes and an aligned word never
//! tears (without which nothing here works), and, where read-back is to be left out, that a fence
//! waits for the device (M2). Litmus programs try these. They also show what the rules do *not*
//! rely on: what happens without a flush, a fence, an owner of a line.
//!
//! - [`alone`] runs them with two threads of this host. A host is coherent within itself, so this
//!   finds broken processors and hypervisors, not devices.
//! - [`pair`] runs them with a process of another node, over two hosts when it is on another.
//!   Only this can see a write that is late or a copy that is old.
//!
//! What was measured is kept as a [`PlatformProfile`](crate::layout::PlatformProfile) in the
//! superblock ([`store_profile`]). A process that attaches compares its platform with the one that
//! was measured, and decides how it publishes ([`Visibility`]): without read-back only where that
//! is known to be right. That several programs have seen no violation is evidence, not proof; what
//! is never left out is the flush, the fence and the checksum of payload.
//!
//! # What is not measured
//!
//! Whether writes of a GPU reach the device, and its reads come from there (M9): there is no GPU
//! engine yet. The payload policy stays [`FlushBoth`](crate::layout::PayloadPolicy::FlushBoth).

mod alone;
mod finding;
mod litmus_arrival;
mod litmus_line;
mod litmus_order;
mod litmus_stale;
mod pair;
mod party;
mod platform;
mod probe;
mod scratch;
mod store;
#[cfg(test)]
mod tests;
mod timing;
mod visibility;

pub use alone::{AloneError, alone};
pub use finding::{Expect, Finding};
pub use pair::{PairError, Partner, pair};
pub use party::{Role, Silent};
pub use platform::platform_of;
pub use probe::Probe;
pub use scratch::ScratchError;
pub use store::{StoreError, store_profile};
pub use timing::Timing;
pub use visibility::{Basis, Visibility};

use crate::clock::Clock;
use crate::layout::FenceEvidence;
use party::{Party, TRIALS};

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
fn run_all<P: Probe, C: Clock>(
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
