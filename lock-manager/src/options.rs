//! The command line of the lock manager.

use std::path::PathBuf;

use clap::Args;

/// Run the lock manager of a region.
///
/// One process on one host of the rack grants the locks that guard chunk allocation. Start a
/// second one on another host as a standby: it takes over when the first falls silent, once every
/// host that takes part has acknowledged it. Lookups, fetches and publishes go on without any.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file on a single host.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    pub region: PathBuf,

    /// The node number of this host in the region. Each host of the rack has its own.
    #[arg(long, value_name = "N", env = "RACKLINE_NODE")]
    pub node: u16,

    /// As a standby: how long after the active manager is suspected (1500 ms without a heartbeat)
    /// to take over.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub takeover_ms: u64,

    /// Stop when the process that started this one ends.
    #[arg(long)]
    pub with_parent: bool,
}
