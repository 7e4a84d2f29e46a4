//! Disaggregated serving on a rack, without engines: which worker serves a request, and what each
//! stage of it takes. `rackline bench rack` moves real bytes by it; [`simulate`] runs it in virtual
//! time.
//!
//! - **RACK-R1** Requests arrive when the trace says so, however many others wait (an open loop).
//! - **RACK-R2** One queue feeds all prefill workers, in order of arrival. A worker computes one prompt
//!   at a time, to its end.
//! - **RACK-R3** A computed prompt goes to the decode worker with the fewest requests. A worker has so
//!   many requests as its batch may have, and as its GPU has room for. Until then the prompt waits, in order.
//! - **RACK-R4** A decode worker reads the KV of one prompt after the other, beside its iterations. A
//!   prompt joins the batch at the next iteration, and each iteration gives each request a token. What
//!   the worker does not have of a prompt is computed in that iteration, and all requests wait for it.
//! - **RACK-R5** All workers of a host share its link to the device, and all hosts share the device:
//!   transfers pass one after the other, in the order in which they begin.
//! - **RACK-R6** The first iteration of a request gives its first token.

mod link;
mod links;
mod numbers;
mod profile;
mod rack;
mod scheduler;
mod served;
mod summary;
mod system;
#[cfg(test)]
mod tests;
mod virtual_time;
mod workload;

pub use link::{Device, DeviceError, free_at};
pub use links::{DriveLinks, Links, LinksError};
pub use profile::{Decode, Prefill, Profile, ProfileError};
pub use rack::{Rack, RackError};
pub use scheduler::{Action, Scheduler};
pub use served::{Served, Stage, Times};
pub use summary::{Spread, Summary};
pub use system::{System, UnknownSystem};
pub use virtual_time::{Kill, Settings, Simulated, Software, simulate};
pub use workload::{Request, Workload, WorkloadError};
