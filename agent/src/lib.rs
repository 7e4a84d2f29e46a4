//! The drive agent of a host: blocks of the pool go to NVMe drives behind it, and come back.
//!
//! One process a host owns the folders of its drives. It is a member of its node like any other
//! process. It copies blocks of the node to the drives while they are READY, announces them to all
//! hosts, and restores those that a host asks for. Engines only ask. Without an agent everything
//! else works as before, and its death costs misses.
//!
//! The drive is one more memory that blocks are fetched into and published from: a backup is a fetch
//! whose destination is an extent, and a restore is a publish whose source is one. So what guards a
//! block in the pool guards it here, too.
//!
//! An agent without folders follows: it keeps its host's table of blocks on the drives of other hosts,
//! so that engines of its host find these blocks.
//!
//! ```text
//! run        the threads of an agent
//! backup     from the pool to the drives       restore   from the drives into the pool
//! clear      namespaces leave the drives       drives    the folders, opened and read
//! schedule   when the drives are written       figures   what the agent did
//! follow     a host without drives       metrics   what it shows
//! settings   what it is told
//! ```

mod backup;
mod clear;
mod drives;
mod error;
mod figures;
mod follow;
mod metrics;
mod reads;
mod restore;
mod run;
mod schedule;
mod settings;

pub use error::AgentError;
pub use figures::{Figures, RefusedBy};
pub use run::{Agent, AgentMetrics};
pub use settings::{BackupSettings, DriveFolder, RestoreSettings, ScheduleSettings, Settings};
