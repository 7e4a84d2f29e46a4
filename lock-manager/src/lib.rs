//! The lock manager: arbitrates the locks of a region, one active process a rack and any number of
//! standbys.
//!
//! The arbitration itself is a state machine of `cxl_shm` ([`cxl_shm::lock::arbitrated`]); this
//! crate drives it: stands by while another manager's heart beats, claims the next term when that
//! falls silent, grants until it is stopped or deposed; declares hosts dead whose hearts stand still, has
//! them fenced and recovers what they left. Readers and writers of blocks do not need
//! it: without one no chunk is allocated, and a publish that needs one evicts instead.

mod duty;
mod fence;
mod log;
mod options;
mod run;

pub use duty::{Duty, DutyChange, DutyError, Patience, Stepped};
pub use fence::FenceError;
pub use log::Log;
pub use options::{FenceKind, Options};
pub use run::{RunError, run};
