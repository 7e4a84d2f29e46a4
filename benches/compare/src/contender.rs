//! The contenders of the comparison.

use clap::ValueEnum;
use serde::Serialize;

/// A way to hand blocks from one process to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    /// The ceiling of reading: shared memory and memcpy, no index, no check, no flush.
    Memcpy,
    /// The ceiling of writing: shared memory and non-temporal stores, no index, no flush.
    Stream,
    /// Rackline as it comes: `rackline format`, `rackline lock-manager`, one session a process.
    Rackline,
    /// LMDB without durability, its file in memory.
    Lmdb,
    /// A Redis server on this machine, over a Unix socket.
    Redis,
    /// Mooncake store: master, a client that owns the memory, workers that share it.
    Mooncake,
    /// LMCache: its server, and workers with its connector to it.
    #[value(name = "lmcache")]
    #[serde(rename = "lmcache")]
    LmCache,
}

impl Contender {
    /// The contenders by default.
    pub(crate) const DEFAULT: [Self; 5] =
        [Self::Rackline, Self::Lmdb, Self::Redis, Self::Mooncake, Self::LmCache];
    /// What the others are measured against.
    pub(crate) const CEILINGS: [Self; 2] = [Self::Memcpy, Self::Stream];

    /// What it is called in reports and on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy",
            Self::Stream => "stream",
            Self::Rackline => "rackline",
            Self::Lmdb => "lmdb",
            Self::Redis => "redis",
            Self::Mooncake => "mooncake",
            Self::LmCache => "lmcache",
        }
    }

    /// The program of its servers and workers, and the variable with the Python that runs it.
    pub(crate) fn peer_program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Mooncake => Some(("mooncake_peer.py", "RACKLINE_COMPARE_PYTHON")),
            Self::LmCache => Some(("lmcache_peer.py", "RACKLINE_COMPARE_LMCACHE_PYTHON")),
            _ => None,
        }
    }

    /// Whether its work is done in the worker's process, so that the CPU time of that process is
    /// what a block costs.
    pub(crate) fn works_in_process(self) -> bool {
        !matches!(self, Self::Redis | Self::Mooncake | Self::LmCache)
    }
}

impl std::fmt::Display for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
