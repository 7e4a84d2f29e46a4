//! The command line of the lock manager.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cxl_shm::member::SUSPECT_MS;

/// How a host that was declared dead is kept from writing ever again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FenceKind {
    /// Kill its processes, when it runs on this very machine. A host on another machine is
    /// quarantined as with `none`.
    Process,
    /// Run the program given with --fence-command.
    Command,
    /// Quarantine: what it held stays out of use until it joins again on the same machine, or an
    /// operator confirms that it is off with `rackline fence`.
    None,
}

/// Run the lock manager of a region.
///
/// One process on one host of the rack grants the locks that guard chunk allocation. Start a
/// second one on another host as a standby: it takes over when the first falls silent, once every
/// host that takes part has acknowledged it. Lookups, fetches and publishes go on without any.
///
/// The log goes to standard error. When that cannot be written, lines are lost, and nothing else.
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

    /// How long the heart of a host stands still before it is declared dead: its processes then
    /// refuse to go on, it is fenced, and what it left is recovered. At least 1500.
    #[arg(
        long, value_name = "MS", default_value_t = 3000,
        value_parser = clap::value_parser!(u64).range(SUSPECT_MS..)
    )]
    pub declare_ms: u64,

    /// How a host that was declared dead is kept from writing ever again. Only then are its locks
    /// freed and its node number given to others: a host that only paused would overwrite them.
    #[arg(long, value_enum, default_value_t = FenceKind::Process)]
    pub fence: FenceKind,

    /// With --fence command: the program that cuts a host off (power, fabric port). It is run with
    /// the node number, and the machine-id and the boot id that the region keeps for the node (32
    /// hexadecimal digits, or "-" when unknown). Choose what to cut off by the node number alone:
    /// the ids were written by the host itself. Return 0 only when no access of that host can arrive
    /// any more, as when the machine runs under another boot id. Any other status, or no end within
    /// --fence-timeout-ms, leaves the host quarantined, and the program is run again later.
    #[arg(long, value_name = "PROGRAM", required_if_eq("fence", "command"))]
    pub fence_command: Option<PathBuf>,

    /// With --fence command: how long the program may take.
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    pub fence_timeout_ms: u64,

    /// Stop when the process that started this one ends.
    #[arg(long)]
    pub with_parent: bool,
}
