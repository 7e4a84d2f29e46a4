//! A region that is made over another one, seen by hosts whose caches know the old one.

use std::cell::RefCell;

use cxl_shm::fabric::{Fabric, FlushKind, LineError};
use cxl_shm::layout::{
    FenceEvidence, Geometry, LockProtocol, PayloadPolicy, Platform, PlatformProfile, Superblock,
    SuperblockError, format_superblock, read_superblock,
};
use cxl_shm::region::RegionKind;
use cxl_shm::units::LockId;
use cxl_shm::verify::simulated::{Crash, Faults, Schedule};
use rackline_qualify::store_profile;

use super::bed::{
    OBSERVER, acquire, beat_all, cluster, geometry, manager_polls, poll_grants, settings,
};
use crate::rack::{Cluster, Mutant};
use crate::stepped::stepped;

const LOCK: LockId = LockId(9);

fn superblock(uuid: u64, geometry: Geometry) -> Superblock {
    let lock_protocol = LockProtocol::Arbitrated;
    Superblock { lock_protocol, ..Superblock::new([uuid, 1], geometry, [uuid; 6]) }
}

/// All that a region knows is used, then it is made anew from another host: every host finds the
/// new one, and nothing of the old.
///
/// # Panics
/// When that is not so.
pub fn a_new_region_is_seen_at_once(mutant: Mutant, seed: u64) {
    let cluster = Cluster::blank(settings(seed), geometry(), mutant);
    cluster.warm();
    for (life, formatter) in [(1, 0), (2, 1), (3, 0)] {
        let superblock = superblock(life, geometry());
        cluster.reformat(formatter, &superblock);
        for host in 0..3 {
            let found = read_superblock(&cluster.rack.host(host)).map(|(found, _)| found);
            assert_eq!(found, Ok(superblock), "host {host}");
        }
        cluster.warm();
        let members = [0, 1, 2].map(|host| cluster.join(host, "worker"));
        let [one, other, third] = &members;
        for member in &members {
            assert_eq!(member.incarnation().0, 1, "nobody has joined the new region before");
            assert_eq!(member.owned_chunks(), [], "nobody owns anything of it");
            assert_eq!(member.manager_seen(), None, "no manager has run on it");
        }
        let clock = cluster.clock(0);
        let manage = RefCell::new(third.manage().expect("nobody else manages"));
        manage.borrow_mut().claim().expect("there are terms");
        beat_all(&[one, other, third]);
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
        for member in [one, other] {
            drop(acquire(&cluster, member, &clock, LOCK, &manage));
            cluster.warm();
            poll_grants(&mut manage.borrow_mut(), 0);
        }
        // Two thirds of the chunks, so that both old states occur.
        let chunks = one.layout().chunks();
        for member in [one, other] {
            for _ in 0..chunks / 3 {
                let clock = manager_polls(&cluster, &manage, &[1]);
                member.allocate_chunk(&clock, 1000, life).expect("one is free");
                cluster.warm();
                poll_grants(&mut manage.borrow_mut(), 0);
            }
        }
        cluster.warm();
        drop(manage);
        for member in members {
            member.leave();
        }
    }
}

/// The superblock is replaced, twice, at each step of a look at it: who looks finds the one before,
/// or one of the new ones, whole.
///
/// # Panics
/// When it finds none.
pub fn a_superblock_is_replaced_at_each_step_of_a_look(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let (member, clock) = (cluster.join(0, "measures"), cluster.clock(0));
    let profile = |number| PlatformProfile {
        platform: Platform {
            vendor: *b"GenuineIntel",
            signature: 7,
            hypervisor: 0,
            flush: FlushKind::Clflushopt,
            memory: RegionKind::Devdax,
            bytes: cluster.geometry().region_bytes,
        },
        fence: FenceEvidence::TwoHosts,
        payload: PayloadPolicy::FlushBoth,
        strict: false,
        measured_unix_s: number,
    };
    let store = |number| {
        let stored = store_profile(&member, Some(profile(number)), &clock, 1000);
        stored.unwrap_or_else(|error| panic!("{error}"));
    };
    store(1);
    for step in 1.. {
        cluster.warm();
        let fabric = stepped(cluster.rack.host(OBSERVER));
        let (last, store) = (2 * step, &store);
        fabric
            .interposer()
            .interrupt_at(step, move || [last, last + 1].into_iter().for_each(store));
        let (found, _) = read_superblock(&fabric).unwrap_or_else(|e| panic!("step {step}: {e}"));
        let number = found.profile.map_or(0, |profile| profile.measured_unix_s);
        if fabric.interposer().steps() < step {
            break;
        }
        assert!([last - 1, last, last + 1].contains(&number), "step {step}: {number}");
    }
    cluster.check_writers();
}

/// The formatter dies at any of its operations: what is left is no region, or the new one whole;
/// never the old one, and never parts of two.
///
/// # Panics
/// When it is something else.
pub fn a_formatter_dies(mutant: Mutant, seed: u64) {
    let geometry = Geometry { nodes: 1, ..geometry() };
    let steps = formatter_dies_at(mutant, seed, geometry, u64::MAX);
    // Each of the first and last operations; those between do the same to line after line.
    let between = (1..8).map(|part| steps * part / 8);
    for step in (1..20).chain(between).chain(steps.saturating_sub(120)..=steps) {
        formatter_dies_at(mutant, seed.wrapping_add(2 * step), geometry, step);
    }
}

fn formatter_dies_at(mutant: Mutant, seed: u64, geometry: Geometry, step: u64) -> u64 {
    let cluster = Cluster::format(
        settings(seed),
        geometry,
        LockProtocol::Arbitrated,
        [0; 6],
        Mutant { removed: None, ..mutant },
    );
    if let Some(site) = mutant.removed {
        cluster.rack.suppress(site);
    }
    cluster.warm();
    let new = superblock(5, geometry);
    let host = cluster.rack.host(0);
    let formatter = Schedule::builder(&cluster.rack, seed).faults(Faults::NONE).task(
        0,
        "formatter",
        move || {
            format_superblock(&host, &new, |_, _| ()).expect("it fits");
        },
    );
    let formatter = if step == u64::MAX { formatter } else { formatter.crash_host_at(0, step) };
    let report = formatter.on_crash(|crash| assert!(matches!(crash, Crash::Host { .. }))).run();
    let observer = cluster.rack.host(1);
    match read_superblock(&observer) {
        Ok((found, layout)) if found == new => {
            for node in layout.nodes() {
                let line = layout.node_line(node).fresh(&observer);
                assert!(matches!(line, Err(LineError::Blank { .. })), "step {step}: {line:?}");
                for area in [layout.requests(node), layout.acks(node), layout.grants(node)] {
                    observer.refresh(area.range());
                    let blank = |line| observer.read_line(line) == [0; 8];
                    assert!(area.range().iter().all(blank), "step {step}: old lines are left");
                }
            }
            for chunk in (0..layout.chunks()).filter_map(|chunk| layout.chunk_id(chunk)) {
                let entry = layout.chunk_entry(chunk).fresh(&observer);
                assert!(entry.is_ok(), "step {step}: {chunk} is not there: {entry:?}");
            }
        }
        // Before its first publish is through it has changed nothing.
        Ok((found, _)) => assert!(step <= 5, "step {step}: {found} was being overwritten"),
        Err(SuperblockError::NotOurs) => assert!(step < u64::MAX, "nothing is there in the end"),
        Err(error) => panic!("step {step}: {error}"),
    }
    report.steps
}
