//! The command line of the lock manager.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
    #[arg(long, value_name = "MS", default_value_t = 3000)]
    pub declare_ms: u64,

    /// How a host that was declared dead is kept from writing ever again. Only then are its locks
    /// freed and its node number given to others: a host that only paused would overwrite them.
    #[arg(long, value_enum, default_value_t = FenceKind::Process)]
    pub fence: FenceKind,

    /// With --fence command: the program that cuts a host off (power, fabric port). It is run with
    /// the node number, the host's name, its machine-id and its boot id ("-" for what is not known,
    /// as the name of a host that died while it joined), and must return 0 only when no access of
    /// that host can arrive any more, as when the machine runs under another boot id. Any other status, or no end within --fence-timeout-ms, leaves
    /// the host quarantined, and it is run again later.
    #[arg(long, value_name = "PROGRAM", required_if_eq("fence", "command"))]
    pub fence_command: Option<PathBuf>,

    /// With --fence command: how long the program may take.
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    pub fence_timeout_ms: u64,

    /// Stop when the process that started this one ends.
    #[arg(long)]
    pub with_parent: bool,
}
