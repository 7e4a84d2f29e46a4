//! Systems that serve with prefill and decode apart: what each keeps, and over which link KV moves.
//!
//! - **RACK-S1** *rackline*: whole blocks are written to the shared memory and read from it, each host
//!   over its link to the device. What is there is found by all hosts. Tokens behind the last whole block
//!   are computed by the decode worker, as with *store* (RACK-R4); other systems send them.
//! - **RACK-S2** *direct* has no cache. The decode worker pulls the KV of the whole prompt from the GPU
//!   of the prefill worker over the network, as with NIXL.
//! - **RACK-S3** *host-cache* is *direct* with a cache in the memory of each prefill host, as LMCache has:
//!   the prefill worker reads what its own host has, and the whole prompt is still sent.
//! - **RACK-S4** *store* keeps blocks in the memory of all hosts, each block on the host that its number
//!   says, behind a metadata server that is asked before each read and before and after each write, as
//!   Mooncake's store has. Blocks of other hosts pass the network. Each host has its part of the room.
//! - **RACK-S5** A transfer between two hosts takes the network's link of both for its time. Blocks that
//!   are on the reading host take the host's own link.
//! - **RACK-S6** A prefill worker computes nothing while it reads or writes. For *direct* and *host-cache*
//!   it writes in no time: GPUs keep what is to be pulled, and caches are filled in the background.
//! - **RACK-S7** *rackline-drives* is *rackline* with drives on each host with a prefill worker. What
//!   the pool's policy lets leave is found on a drive, if its host had written it there. The agent of
//!   a host backs up what its node has, by the policy of the pool's agents. The prefill worker waits
//!   for all blocks that a drive restores into the pool, however long, and then reads the prompt. Restores
//!   and backups pass the host's link to the device, too. A backup moves few blocks at a time, so that
//!   reads do not wait long for it. Decode workers look into the pool alone.
//! - **RACK-S8** When a node is killed, what its workers had begins again. The scheduler and all workers
//!   know at once. Blocks in the shared memory stay. The next node with a prefill worker takes them over,
//!   and lets them leave where it needs room. What the node had in its own memory is gone. A prompt that
//!   was to come from the node (*direct*, *host-cache*) begins again when its decode worker would have
//!   it. The node's part of a *store* begins empty on the next node. What a store was moving at that time
//!   still arrives. The node's drives are not read any more.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// A system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// RACK-S1.
    Rackline,
    /// RACK-S7.
    RacklineDrives,
    /// RACK-S2.
    Direct,
    /// RACK-S3.
    HostCache,
    /// RACK-S4.
    Store,
}

/// There is no such system.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no system \"{name}\"; there are {}", System::ALL.map(System::name).join(", "))]
pub struct UnknownSystem {
    /// The name.
    pub name: String,
}

impl System {
    /// All systems.
    pub const ALL: [Self; 5] =
        [Self::Rackline, Self::RacklineDrives, Self::Direct, Self::HostCache, Self::Store];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rackline => "rackline",
            Self::RacklineDrives => "rackline-drives",
            Self::Direct => "direct",
            Self::HostCache => "host-cache",
            Self::Store => "store",
        }
    }

    /// Whether decode workers read from where prefill workers wrote, and not from a prefill worker.
    pub(crate) const fn is_shared(self) -> bool {
        matches!(self, Self::Rackline | Self::RacklineDrives | Self::Store)
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for System {
    type Err = UnknownSystem;

    fn from_str(name: &str) -> Result<Self, UnknownSystem> {
        let known = Self::ALL.into_iter().find(|system| system.name() == name);
        known.ok_or_else(|| UnknownSystem { name: name.to_owned() })
    }
}
