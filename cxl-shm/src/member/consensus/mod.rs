//! Agreeing that a host is dead, and on who recovers it: Disk Paxos with one disk, the region.
//!
//! One instance a [`Case`] (life of a node slot, appointment). Node *i* writes only its own ballot
//! record about that slot ([`BallotRecord`]), a twin of lines, so a single-writer register:
//!
//! 1. **Promise.** Publish a ballot of our own (ballot mod nodes = node) that is higher than any
//!    seen, keeping what we accepted before in this case.
//! 2. **Accept.** Read everybody. A higher promise outbids us: back to 1. Else the value accepted
//!    at the highest ballot, ours included, or, when there is none, our own; publish it as
//!    accepted at our ballot.
//! 3. **Decide.** Read everybody. A higher promise outbids us. Else it is decided: say so.
//!
//! - **C1** Publish, then read: of two proposers, one sees the other's ballot.
//! - **C2** A later case makes an earlier one moot. The life after this one comes only when this
//!   one is over, and the next appointment only when this one was decided and its recoverer is
//!   over. A record of an earlier case counts as blank in a later one: its writer never took part
//!   there, as its cases only grow. So a life is declared dead with all before it. One that was given
//!   up at the door after its case was opened leaves the life before it, which is over too, in the
//!   slot: the case goes on, as nothing can be decided in an earlier one any more. And who comes next
//!   comes for a life of which nobody has opened a case.
//! - **C3** A decision is never changed: [`Progress::Decided`] of all proposers of a case agree.
//! - **C4** A death is a fact about a *life*: that somebody declared it does not stop the host. It
//!   stops itself when it sees the decision; a fence stops it for certain.
//!
//! Who may propose is not a matter of safety. Suspicion is by each watcher's own clock.

mod decisions;
mod proposal;

pub(crate) use decisions::Ballots;
pub use decisions::{Decision, decided_about, is_declared_dead, membership_epoch};
pub use proposal::{Progress, Proposal};

#[cfg(test)]
mod tests;

#[cfg(doc)]
use crate::layout::{BallotRecord, Case};
