//! The life of a node: hosts join node slots, are watched, declared dead, fenced and recovered, and
//! leave.
//!
//! The first process of a host joins its node slot under a new incarnation; further processes
//! register in the host tier. The last one to go leaves the slot. One process of each host, the
//! *agent*, sends the host's heartbeat and follows the lock managers (BEAT-G1 to BEAT-G3 in
//! `beat.rs`).
//!
//! In the order of a life: `attach` and `join`, with `admission` (of several hosts that join one
//! slot, one is admitted); `beat`; `failure_detector` (which heartbeats have stopped); `consensus`
//! (which node is dead, and its recoverer), driven by `deaths`; `fencing`; `recovery`; `orphans`
//! (what a vacant slot leaves to the layer above); `leave`. `write_back` moves lines to the device
//! before they pass to another host.

mod admission;
mod attach;
mod beat;
mod consensus;
mod deaths;
mod failure_detector;
mod fencing;
mod join;
mod leave;
mod node_death;
mod numbers;
mod orphans;
mod recovery;
mod write_back;

#[cfg(feature = "verify")]
pub(crate) use admission::JoinAttempt;
pub use attach::{ATTEND_BEATS, AttachError, Attachment, ChunkOwner, LocalMember};
pub use consensus::{
    Decision, Progress, Proposal, decided_about, is_declared_dead, membership_epoch,
};
pub use deaths::{DeathEvent, Deaths};
#[cfg(feature = "verify")]
pub(crate) use deaths::{Need, need_of};
pub use failure_detector::{NodeHeartbeat, watch_heartbeats};
pub use fencing::{CommandFence, Fence, FenceOrder, FenceState, NoFence, ProcessFence};
pub use join::JoinError;
#[cfg(feature = "verify")]
pub(crate) use join::{Admitted, AttemptOutcome, attempt_join, move_in};
pub use leave::LeaveOutcome;
pub use node_death::{NodeDeath, confirm_off_here};
pub use numbers::{EndingNumber, NumberUse};
pub use orphans::{Reclaimer, is_vacant};
#[cfg(feature = "verify")]
pub(crate) use orphans::{end_reclaim, may_write, still_guarded};
pub use recovery::RecoveryEvent;
#[cfg(feature = "verify")]
pub(crate) use recovery::{Recovery, Remembered, resign};
#[cfg(feature = "verify")]
pub(crate) use write_back::{flush_killed, flush_recovery};
