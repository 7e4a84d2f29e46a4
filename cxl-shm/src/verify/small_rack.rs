//! A small simulated rack for tests of chunks, heaps and roots: bakery locks, so nobody need
//! manage.

use super::simulated::SimulatedRack;
use crate::clock::SystemClock;
use crate::host::{HostIdentity, HostTier, ProcLiveness, ProcessIdentity};
use crate::layout::{Geometry, LockProtocol};
use crate::node::Member;
use crate::verify::SimulatedBackend;
use crate::verify::fixture::{SMALL, SmallRegion};

/// A process of a [`Rig`].
pub type RigMember = Member<SimulatedBackend>;

/// Long enough where nothing goes wrong.
pub const TIMEOUT_MS: u64 = 50;

/// Two hosts over one region.
#[derive(Debug)]
pub struct Rig {
    /// The hosts.
    pub rack: SimulatedRack,
    /// The region.
    pub geometry: Geometry,
    /// The clock of both hosts.
    pub clock: SystemClock,
}

impl Rig {
    /// Two hosts and `chunks` chunks of 64 KiB, or a few more.
    #[must_use]
    pub fn new(chunks: u64) -> Self {
        Self::with_chunks_of(64 << 10, (1 << 20) + (chunks << 16))
    }

    /// Two hosts over `region_bytes`.
    ///
    /// # Panics
    /// When there is no such region.
    #[must_use]
    pub fn with_chunks_of(chunk_bytes: u64, region_bytes: u64) -> Self {
        let geometry = Geometry { region_bytes, chunk_bytes, host_words: 8, ..SMALL };
        let SmallRegion { rack, .. } = SmallRegion::new(geometry, LockProtocol::Bakery);
        Self { rack, geometry, clock: SystemClock::start() }
    }

    /// A process of `host`.
    ///
    /// # Panics
    /// When it cannot join.
    #[must_use]
    pub fn join(&self, host: u16) -> RigMember {
        let memory = self.rack.host_memory(usize::from(host), HostTier::words_of(&self.geometry));
        let identity = HostIdentity::simulated(u64::from(host));
        let me = ProcessIdentity::current().expect("a process has an identity");
        let fabric = self.rack.host(usize::from(host));
        Member::join(fabric, memory, host, &identity, me, ProcLiveness, &self.clock)
            .expect("the slot is not taken")
    }
}
