//! From a plan to what an executor does: moves, prefetches, and one plan for all ranks.
//!
//! Pure logic, as all of [`placement`](super). The executor beside the transfers (`rackline`, its
//! module `executor`) carries it out.
//!
//! - **PLAN-X1** Two plans differ by the layers of requests that lie elsewhere. Each of them is
//!   moved once, and nothing else is moved. All layers that leave the engine's memory leave before
//!   the first one comes. So memory never exceeds that of the larger of the two plans.
//! - **PLAN-X2** A request has two buffers. Its offloaded layers take them in turn, in the order of
//!   the layers. A fetch begins when the layer that had the buffer before has executed. Of several
//!   fetches that may begin, the one whose layer executes soonest begins first.
//! - **PLAN-X3** All ranks install the same plans, each once and in order: a plan has a number. A
//!   message that is not the next plan, or no plan of this model, changes nothing.
//! - **PLAN-X4** An iteration takes as long as its slowest rank. So the times of the ranks are
//!   merged by their maximum before the controller is told of them.

mod message;
mod moves;
mod prefetch;
mod ranks;

pub use message::{MessageError, PlanMessage};
pub use moves::{Installed, Move};
pub use prefetch::{Fetch, Prefetch};
pub use ranks::{InstallError, Lead, Rank, slowest};
