//! The shared tier `arbitrated`: slots in shared memory that a lock manager grants, as in the
//! paper, made safe with single-writer lines.
//!
//! Node *i* writes only its request words (a ticket per lock: odd = wants or holds, even = idle)
//! and a copy of the last new one. The manager of a term writes only its own grant words (per node
//! and lock: the ticket it granted). A node holds the lock while the grant of the term it obeys
//! equals its ticket. Release and withdrawal are the same write (ticket + 1) and always legal, so a
//! time-out strands nothing.
//!
//! Each rule breaks something when dropped (seen in a model of the protocol):
//! - **LOCK-A1** A lock is free only when *no* node has an odd request equal to its grant, looked
//!   at over all nodes; never "the last grantee has moved on".
//! - **LOCK-A2** A ticket only grows. A node that joins again continues from the even ticket that
//!   is one or two beyond its published one, and a recoverer leaves the same. The next ticket may
//!   have been told, and may yet be granted: its copy arrived, and its word was lost with the host
//!   (LOCK-S3).
//! - **LOCK-A3** Protected data is fully published before the release is stored; the next holder
//!   refreshes it after it sees the grant.
//! - **LOCK-T1** Per node and lock one host-local word {term, phase, ticket}. A thread looks only
//!   at the grant of the term in that word and enters only after a CAS from {T, wait, t} to {T,
//!   hold, t}.
//! - **LOCK-T2** The host's agent changes the term of every such word by a CAS each, in every
//!   phase, takes the held ticket from that CAS, and only then publishes the acknowledgement {term,
//!   held ticket} of that lock. A lock state never goes back to an older term (LOCK-T2a), and an
//!   acknowledgement that a deposed agent overwrote is written anew (LOCK-T2b): see `agent.rs`.
//! - **LOCK-T3** What is reported is the ticket held, never a flag. The reported node is the holder
//!   until its request differs from that ticket.
//! - **LOCK-T4** No grant in a term before every node has acknowledged it, or is known to have
//!   left. A time-out is not a fence.
//! - **LOCK-T5** The old manager need not notice: its late grants land in words that nobody obeys.
//!
//! How a manager learns of requests is said in `summary` (rules LOCK-S1 to LOCK-S4).
//!
//! The term tells its manager: term `t` belongs to node `t mod nodes`, so two managers never
//! claim the same one, and each writes grant words of its own (MEM-M1).

mod agent;
mod announcement;
mod client;
mod copy;
mod manager;
mod request;
mod summary;
#[cfg(test)]
mod tests;

pub(crate) use agent::{newest_claim, obey_newest_term, tick};
pub(crate) use client::{Acquire, clear_requests};
pub(crate) use manager::{Manager, beat_as_manager};
pub use manager::{ManagerState, NodeReport};
pub use request::is_wanted;
pub(crate) use request::{grants_of, ticket_wanted, tickets_used};

use crate::layout::Layout;
use crate::units::NodeId;

/// The node whose manager has claimed `term`; `None` for 0, which nobody claims.
pub(crate) fn manager_of(layout: &Layout, term: u64) -> Option<NodeId> {
    let nodes = u64::from(layout.geometry().nodes);
    (term != 0).then(|| u16::try_from(term % nodes).ok().and_then(|n| layout.node(n))).flatten()
}
