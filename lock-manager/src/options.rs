//! The command line of the lock manager.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cxl_shm::node::SUSPECT_MS;

use crate::cpu::CpuChoice;

/// How a host that was declared dead is kept from writing ever again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FencingMethod {
    /// Kill the processes of the host, if it runs on this machine. A host on another machine is
    /// quarantined, as with `none`.
    Process,
    /// Run the program given with --fence-command.
    Command,
    /// Quarantine the host. Its locks and memory stay out of use until it joins again on the same
    /// machine, or an operator confirms with `rackline fence` that it is off.
    None,
}

/// Run the lock manager of a region.
///
/// One process on one host of the rack grants the locks that guard chunk allocation. Start a second
/// one on another host as a standby. The standby takes over when the first one stops sending
/// heartbeats and every joined host has acknowledged the change. Without a lock manager, lookups,
/// fetches and publishes continue.
///
/// The log goes to standard error. When standard error cannot be written, only log lines are lost.
/// SIGHUP reads the settings again: --takeover-ms, --declare-ms and those of fences take effect at once.
/// Under systemd it says when it is ready, and feeds the watchdog.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file on a single host.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    pub region: PathBuf,

    /// The node number of this host in the region. Each host of the rack has its own.
    #[arg(long, value_name = "N", env = "RACKLINE_NODE")]
    pub node: u16,

    /// As a standby: how long to wait after the active manager is suspected (1500 ms without a
    /// heartbeat) before taking over.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub takeover_ms: u64,

    /// How long a host may send no heartbeat before it is declared dead. Its processes then refuse
    /// to continue, the host is fenced, and its locks and memory are recovered. At least 1500.
    #[arg(
        long, value_name = "MS", default_value_t = 3000,
        value_parser = clap::value_parser!(u64).range(SUSPECT_MS..)
    )]
    pub declare_ms: u64,

    /// How a dead host is kept from writing ever again. Its locks and its node number are freed
    /// only after that, because a host that only paused could still write.
    #[arg(long, value_enum, default_value_t = FencingMethod::Process)]
    pub fence: FencingMethod,

    /// With --fence command: the program that cuts a host off (power, switch port). Its arguments
    /// are the node number, and the machine-id and the boot id that the region keeps for the node
    /// (32 hexadecimal digits, or "-" when unknown). The program must choose what to cut off by the
    /// node number alone, because the host itself wrote the ids. It must return 0 only when no
    /// access of that host can arrive any more, for example because the machine runs under another
    /// boot id. Any other status, or no end within --fence-timeout-ms, leaves the host quarantined.
    /// The program then runs again later.
    #[arg(long, value_name = "PROGRAM", required_if_eq("fence", "command"))]
    pub fence_command: Option<PathBuf>,

    /// With --fence command: how long the program may take.
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    pub fence_timeout_ms: u64,

    /// The CPU that the thread which grants is bound to: `near` is one near the memory of the region, and
    /// none where the kernel does not say which are; `any` leaves the choice to the kernel; or the
    /// number of a CPU.
    #[arg(long, value_name = "CPU", default_value_t)]
    pub cpu: CpuChoice,

    /// Stop when the process that started this one ends.
    #[arg(long)]
    pub with_parent: bool,
}
