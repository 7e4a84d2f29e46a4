//! A small simulated rack for the tests of heaps and roots: bakery locks, so nobody need manage.

use crate::clock::SystemClock;
use crate::fabric::simulated::{SimulatedHost, SimulatedHostMemory, SimulatedRack};
use crate::layout::{Geometry, LockProtocol, Superblock, format_superblock};
use crate::member::{HostIdentity, HostTier, Member, ProcLiveness, ProcessIdentity};

pub(crate) type RigMemory = SimulatedHostMemory;
pub(crate) type RigMember = Member<SimulatedHost, SimulatedHostMemory, ProcLiveness>;

pub(crate) const TIMEOUT_MS: u64 = 50;

pub(crate) struct Rig {
    pub(crate) rack: SimulatedRack,
    pub(crate) geometry: Geometry,
    pub(crate) clock: SystemClock,
}

impl Rig {
    /// Two hosts and `chunks` chunks of 64 KiB, or a few more.
    pub(crate) fn new(chunks: u64) -> Self {
        Self::with_chunks_of(64 << 10, (1 << 20) + (chunks << 16))
    }

    /// Two hosts over `region_bytes`.
    pub(crate) fn with_chunks_of(chunk_bytes: u64, region_bytes: u64) -> Self {
        let geometry = Geometry {
            region_bytes,
            nodes: 2,
            locks: 8,
            chunk_bytes,
            area_lines: 1,
            host_words: 8,
        };
        let rack = SimulatedRack::sticky(2, geometry.region_bytes);
        let superblock = Superblock {
            lock_protocol: LockProtocol::Bakery,
            ..Superblock::new([1, 2], geometry, [0; 6])
        };
        format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
        Self { rack, geometry, clock: SystemClock::start() }
    }

    /// A process of `host`.
    pub(crate) fn join(&self, host: u16) -> RigMember {
        let memory = self.rack.host_memory(usize::from(host), HostTier::words_of(&self.geometry));
        let identity = HostIdentity::simulated(u64::from(host));
        let me = ProcessIdentity::current().unwrap();
        let fabric = self.rack.host(usize::from(host));
        Member::join(fabric, memory, host, &identity, me, ProcLiveness, &self.clock).unwrap()
    }
}
