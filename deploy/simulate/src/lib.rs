//! Decoding with KV of layers in the pool, in virtual time.
//!
//! Requests arrive, decode in batches and leave. A [`PolicyKind`] says which layers' KV of which
//! request is offloaded, and which request waits. What an iteration takes is computed by
//! [`kv_cache::placement::evaluate`]; the policy `ours` is [`kv_cache::placement::Controller`]. So the
//! simulation has no second form of either.
//!
//! - **SIM-D1** The same inputs and seed give the same figures, on every machine.
//! - **SIM-D2** Prefill is done elsewhere. The KV of a request is in the pool when the request
//!   arrives, and its resident layers are on the GPU when it first runs: that transfer is not counted.
//! - **SIM-D3** A layer that stays on the GPU from now on and was not there is brought before the
//!   iteration begins. All requests of the batch wait for it.
//! - **SIM-D4** A request is in the batch or paused until its last token is computed. At most so many
//!   requests are there as the batch may have; the others wait in the queue.

mod figures;
mod machine;
mod policy;
mod profile;
mod run;
mod sweep;
#[cfg(test)]
mod tests;
mod workload;

pub use figures::Figures;
pub use policy::PolicyKind;
pub use profile::{LayerTime, Profile, ProfileError};
pub use run::{Settings, SimulateError, simulate};
pub use sweep::{Figure, Point, Series};
pub use workload::{Lengths, LengthsError, Order, Request, Workload};
