//! The lock manager of a region: one active process per rack, and any number of standbys.
//!
//! The arbitration is a state machine of `cxl_shm` ([`cxl_shm::lock::arbitrated`]), which this
//! crate drives. It stands by while another manager sends heartbeats, and claims the next term when
//! those stop. It grants locks until it is stopped or deposed. It declares hosts dead whose
//! heartbeats have stopped, has them fenced, and recovers their state. Readers and writers of
//! blocks do not need it. Without a lock manager no chunk is allocated, and a publish that needs a
//! chunk evicts instead.

mod cpu;
mod fence;
mod figures;
mod log;
mod options;
mod pace;
mod role;
mod run;
mod service;

pub use cpu::{CpuChoice, CpuError};
pub use fence::FenceError;
pub use figures::{ManagerActivity, ManagerFigures};
pub use log::{Log, LogFormat, LogOptions};
pub use options::{FencingMethod, Options};
pub use role::{ManagerRole, RoleChange, RoleError, StepOutcome, Timeouts};
pub use run::{ReadAgain, RunError, run, stop_with_parent};
pub use service::Service;
