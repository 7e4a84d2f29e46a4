//! The profile in the superblock is replaced by hosts in turn, and by processes that die on the
//! way.

use super::racks::{OBSERVER, Racks, layout};
use crate::fabric::{Fabric, FlushKind};
use crate::layout::RegionKind;
use crate::layout::{
    FenceEvidence, PayloadPolicy, Platform, PlatformProfile, flush_superblock, read_superblock,
    replace_profile,
};
use crate::units::{Extent, LineRange, NodeId};
use crate::verify::simulated::{Faults, Schedule, SimulatedRack};

fn profile(number: u64) -> PlatformProfile {
    let platform = Platform {
        vendor: *b"GenuineIntel",
        signature: 7,
        hypervisor: 0,
        flush: FlushKind::Clflushopt,
        memory: RegionKind::Devdax,
        bytes: layout().geometry().region_bytes,
    };
    let (fence, payload) = (FenceEvidence::TwoHosts, PayloadPolicy::FlushBoth);
    PlatformProfile { platform, fence, payload, strict: false, measured_unix_s: number }
}

fn replace(rack: &SimulatedRack, host: usize, number: u64) {
    let replaced = replace_profile(&rack.host(host), Some(profile(number)));
    replaced.unwrap_or_else(|error| panic!("{error}"));
}

fn number(rack: &SimulatedRack, host: usize) -> Option<u64> {
    let read = read_superblock(&rack.host(host));
    let (superblock, _) = read.unwrap_or_else(|error| panic!("{error}"));
    superblock.profile.map(|profile| profile.measured_unix_s)
}

fn superblock_lines() -> LineRange {
    let pages = Extent::new(0, layout().node_line(NodeId(0)).at().bytes());
    LineRange::covering(pages.expect("the superblock comes before the nodes"))
}

/// Two hosts replace it in turn; each has every line in its caches as it was before.
pub(super) fn profiles_change_hands(racks: &Racks<'_>) {
    let rack = racks.formatted(0);
    for turn in 1..6_u64 {
        (0..rack.hosts()).for_each(|host| rack.warm(host, superblock_lines()));
        replace(&rack, usize::from(turn % 2 == 1), turn);
        for host in 0..rack.hosts() {
            assert_eq!(number(&rack, host), Some(turn), "turn {turn}, host {host}");
        }
    }
}

/// A process dies at each operation of a replacement. Its host flushes what it left before the lock
/// passes on: what its caches write back later harms nothing.
pub(super) fn profiles_are_flushed(racks: &Racks<'_>) {
    for step in 1.. {
        let rack = racks.formatted(step);
        replace(&rack, 0, 1);
        let dying = rack.clone();
        let report = Schedule::builder(&rack, rack.settings().seed)
            .faults(Faults::NONE)
            .task(0, "writer", move || replace(&dying, 0, 2))
            .crash_process_at("writer", step)
            .run();
        flush_superblock(&rack.host(0));
        let found = number(&rack, OBSERVER);
        assert!(found == Some(1) || found == Some(2), "step {step}: {found:?}");
        for next in [7, 8] {
            replace(&rack, 1, next);
        }
        // Whatever was dirty or on its way arrives now.
        let late = rack.host(0);
        late.write_back(superblock_lines());
        late.fence();
        late.read_back(superblock_lines());
        for host in 0..rack.hosts() {
            assert_eq!(number(&rack, host), Some(8), "step {step}, host {host}");
        }
        if report.process_crashes == 0 {
            return;
        }
    }
}
