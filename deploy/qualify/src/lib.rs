//! What this platform's memory does, measured: litmus programs, and what follows from them.
//!
//! The rules of [`fabric`](cxl_shm::fabric) assume little of the memory, and two things that they
//! assume are properties of a platform: that a refresh really refreshes and an aligned word never
//! tears (without which nothing here works), and, where read-back is to be left out, that a fence
//! waits for the device (MEM-M2). Litmus programs try these. They also show what the rules do *not*
//! rely on: what happens without a flush, a fence, an owner of a line.
//!
//! - [`alone`] runs them with two threads of this host. A host is coherent within itself, so this
//!   finds broken processors and hypervisors, not devices.
//! - [`pair`] runs them with a process of another node, over two hosts when it is on another.
//!   Only this can see a write that is late or a copy that is old.
//!
//! What was measured is kept as a [`PlatformProfile`](cxl_shm::layout::PlatformProfile) in the
//! superblock ([`store_profile`]). A process that attaches compares its platform with the one that
//! was measured, and decides how it publishes ([`Visibility`](cxl_shm::region::Visibility)):
//! without read-back only where that is known to be right. That several programs have seen no
//! violation is evidence, not proof; what is never left out is the flush, the fence and the
//! checksum of payload.
//!
//! # What is not measured
//!
//! Whether writes of a GPU reach the device, and its reads come from there (MEM-M9): there is no
//! GPU engine yet. The payload policy stays
//! [`FlushBoth`](cxl_shm::layout::PayloadPolicy::FlushBoth).

mod alone;
mod finding;
mod litmus_arrival;
mod litmus_line;
mod litmus_order;
mod litmus_stale;
mod measured;
mod pair;
mod party;
mod probe;
mod scratch;
mod store;
#[cfg(test)]
mod tests;
mod timing;

pub use alone::{AloneError, alone};
pub use finding::{Expect, Finding};
pub use measured::{EVIDENCE_TRIALS_MIN, Measured, ROUNDS_MAX, trials_of};
pub use pair::{PairError, Partner, pair};
pub use party::{Role, Silent};
pub use probe::Probe;
pub use scratch::ScratchError;
pub use store::{StoreError, store_profile};
pub use timing::Timing;
