//! Agreement that a host is dead, and on its recoverer: Disk Paxos (Gafni and Lamport, 2003) with
//! one disk, the region.
//!
//! Each [`Case`] (life of a node slot, appointment) is one instance. Node *i* writes only its own
//! ballot record about that slot ([`BallotRecord`]). The record is double-buffered in two lines, so
//! it is a single-writer register:
//!
//! 1. **Promise.** Publish a ballot of our own (ballot mod nodes = node) that is higher than any
//!    seen. Keep the value that we accepted before in this case.
//! 2. **Accept.** Read all records. A higher promise outbids us: back to 1. Otherwise take the
//!    value that was accepted at the highest ballot, ours included. If there is none, take our own
//!    value. Publish it as accepted at our ballot.
//! 3. **Decide.** Read all records. A higher promise outbids us. Otherwise the value is decided:
//!    say so.
//!
//! - **DEATH-C1** Publish, then read: of two proposers, one sees the other's ballot.
//! - **DEATH-C2** A later case supersedes an earlier one. The next life comes only when this one is
//!   over. The next appointment comes only when this one was decided and its recoverer is over. A
//!   record of an earlier case counts as blank in a later one: its writer took no part there,
//!   because its cases only grow. So a life is declared dead together with all lives before it.
//!   Suppose a case was opened for a host that was joining and then gave up. The slot keeps the
//!   life before it, which is over too. The case continues, because nothing can be decided in an
//!   earlier case any more. And the next host to join skips the incarnation for which a case was
//!   opened.
//! - **DEATH-C3** A decision is never changed: [`Progress::Decided`] is equal for all proposers of
//!   a case.
//! - **DEATH-C4** A death is a fact about a *life*. A declaration does not stop the host. The host
//!   stops itself when it sees the decision, and fencing stops it for certain.
//!
//! Any node may propose without risk to safety. Each watcher suspects by its own clock.

mod decisions;
mod proposal;

pub(crate) use decisions::Ballots;
pub use decisions::{Decision, decided_about, is_declared_dead, membership_epoch};
pub use proposal::{Progress, Proposal};

#[cfg(test)]
mod tests;

#[cfg(doc)]
use crate::layout::{BallotRecord, Case};
