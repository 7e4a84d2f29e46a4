//! Exhaustive search: every run of a small configuration, on memory that is not coherent.
//!
//! A [`Model`] is a few [`Task`]s on a few hosts and what is claimed of them. A task is a value
//! that continues by steps, in which it runs the *real* protocol sources on [`ExploredFabric`] and
//! [`ExploredHostMemory`]; others act between each two of its operations. [`explore`] visits every
//! state breadth first and ends with a proof for this configuration, or with a shortest trace of
//! what goes wrong.
//!
//! # What is modelled
//!
//! - **Any interleaving** of the operations of all tasks: pauses of any length, anywhere.
//! - **Stale hits.** Adversarial caches may hold a clean copy of any age since the host's last
//!   refresh of the line took effect, some time between its issue and its fence; sticky ones keep
//!   what they have until it is flushed.
//! - **Whole-line write-back**, in adversarial caches at any time, so that lines arrive in any
//!   order and half written, and a second writing host brings old words back (MEM-M1).
//! - **Posted writes** that land when pushed by a load of the line or, beside adversarial caches,
//!   at any time; those of one line in order, different lines in any.
//! - **Death of a process** between any two operations: caches and DRAM of the host stay.
//! - **Loss of a host**: any subset of its dirty and posted lines lands, its DRAM is lost.
//!
//! # What is not, and why
//!
//! - **Order within a host**: as in [`simulated`](super::simulated). Its tier is checked by loom.
//! - **Time.** Protocols under exploration act on what they see; a process that would wait for a
//!   time-out chooses freely.
//! - **DMA, poison, flipped bits**: they add faults to values, not orders to explore; the simulated
//!   rack has them.
//! - **Numbers without bound** (heartbeats): a model leaves their lines out and says why.
//! - **Lines written back half stored** word by word, beside adversarial caches, in models that say
//!   so ([`Model::line_stores`]). Beside sticky ones a line that is half stored is all the same
//!   what a dead process leaves in its host's cache, and what may survive the loss of the host.
//! - **A dying process's unfenced flushes** never happen in sticky caches. In adversarial ones they
//!   may, like any write-back.
//!
//! # How it stays small
//!
//! Tasks, lines and words are numbered values, a state is a short row of numbers, and the visited
//! states are kept as fingerprints of 128 bits. Operations that are independent of everything
//! others can do are carried out at once (partial order reduction, argued in `eager`). Clean
//! copies in adversarial caches are sets of possible contents instead of events (`line_state`).

mod eager;
mod explorer;
mod footprint;
mod hosts;
mod intern;
mod line_state;
mod locals;
mod model;
mod op;
mod progress;
mod quick_hash;
mod replay;
mod search;
mod settings;
#[cfg(test)]
mod tests;
mod world;

pub use model::{Claim, Constant, EndClaim, LineStores, Model, Placed, Step, Task, Views};
pub use search::{Exploration, Refutation, Verdict, explore};
pub use settings::{Limits, Memory};
pub use world::{ExploredFabric, ExploredHostMemory, World};
