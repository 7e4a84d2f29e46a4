mod gates;

use crate::layout::{Appointment, Case, Geometry, Superblock, format_superblock, read_superblock};
use crate::units::{Incarnation, NodeId};
use crate::verify::simulated::{Faults, Schedule, Settings, SimulatedRack};

use std::sync::{Arc, Mutex};

use super::decisions::{decided_about, is_declared_dead};
use super::proposal::{Progress, Proposal};
use crate::layout::Layout;

const VICTIM: NodeId = NodeId(0);
const CASE: Case = Case { incarnation: Incarnation(4), appointment: 1 };

fn geometry(nodes: u16) -> Geometry {
    Geometry {
        region_bytes: 4 << 20,
        nodes,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    }
}

fn rack(settings: Settings, nodes: u16) -> (SimulatedRack, Layout) {
    let rack = SimulatedRack::with(settings);
    let superblock = Superblock::new([1, 2], geometry(nodes), [0; 6]);
    format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
    let (_, layout) = read_superblock(&rack.host(0)).unwrap();
    (rack, layout)
}

fn settings(hosts: usize, seed: u64) -> Settings {
    let bytes = geometry(2).region_bytes;
    let settings = if seed.is_multiple_of(2) {
        Settings { seed, ..Settings::sticky(hosts, bytes) }
    } else {
        Settings::adversarial(hosts, bytes, seed)
    };
    Settings { posted_writes: seed.is_multiple_of(3), ..settings }
}

fn propose(layout: &Layout, rack: &SimulatedRack, node: u16, case: Case) -> Progress {
    let fabric = rack.host(usize::from(node));
    let mut proposal = Proposal::begin(NodeId(node), Incarnation(1), VICTIM, case);
    loop {
        match proposal.poll(layout, &fabric) {
            Progress::Pending | Progress::Outbid | Progress::Unreadable { .. } => {}
            end => return end,
        }
    }
}

#[test]
fn who_proposes_alone_is_appointed() {
    let (rack, layout) = rack(Settings::sticky(3, geometry(3).region_bytes), 3);
    // Stale copies of everything.
    assert!(!is_declared_dead(&layout, &rack.host(1), VICTIM, CASE.incarnation));
    let value = Appointment { recoverer: NodeId(2), incarnation: Incarnation(1), epoch: 1 };
    assert_eq!(propose(&layout, &rack, 2, CASE), Progress::Decided(value));
    assert_eq!(propose(&layout, &rack, 1, CASE), Progress::Decided(value), "nothing else, ever");
    for host in 0..3 {
        let fabric = rack.host(host);
        let decision = decided_about(&layout, &fabric, VICTIM, CASE.incarnation);
        assert_eq!(decision.map(|it| it.appointment), Some(value));
        assert!(!is_declared_dead(&layout, &fabric, VICTIM, Incarnation(5)), "only that life");
        assert!(!is_declared_dead(&layout, &fabric, NodeId(1), CASE.incarnation));
    }
}

#[test]
fn a_later_case_ends_an_earlier_one_and_has_a_later_epoch() {
    let (rack, layout) = rack(Settings::sticky(4, geometry(4).region_bytes), 4);
    propose(&layout, &rack, 2, CASE);
    let next = Case { appointment: 2, ..CASE };
    let Progress::Decided(value) = propose(&layout, &rack, 1, next) else { panic!() };
    assert_eq!((value.recoverer, value.epoch), (NodeId(1), 2));
    assert_eq!(propose(&layout, &rack, 3, CASE), Progress::Over { by: next });
    assert!(is_declared_dead(&layout, &rack.host(0), VICTIM, CASE.incarnation));
    let reborn = Case { incarnation: Incarnation(5), appointment: 1 };
    let Progress::Decided(value) = propose(&layout, &rack, 2, reborn) else { panic!() };
    assert_eq!((value.recoverer, value.epoch), (NodeId(2), 3));
}

/// Two to five proposers, some of which crash with their hosts and come back: all that come to an
/// end agree, with each other and with what anybody reads afterwards.
fn agree(seed: u64) {
    let hosts = 3 + usize::try_from(seed % 4).unwrap();
    let (rack, layout) = rack(settings(hosts, seed), u16::try_from(hosts).unwrap());
    let decided = Arc::new(Mutex::new(Vec::new()));
    let mut schedule = Schedule::builder(&rack, seed).faults(Faults {
        host_crash_one_in: 150,
        host_crashes_max: 3,
        process_crash_one_in: 150,
        process_crashes_max: 3,
        pause_one_in: 200,
        pause_ms_max: 50,
        ..Faults::NONE
    });
    for node in 1..u16::try_from(hosts).unwrap() {
        let (decided, rack) = (Arc::clone(&decided), rack.clone());
        schedule = schedule.restarting(usize::from(node), format!("node {node}"), move |life| {
            if life > 0 {
                // What joining does after the loss of the host's caches (MEM-M8).
                use crate::fabric::Fabric;
                rack.host(usize::from(node)).refresh(layout.ballots(NodeId(node)).range());
            }
            match propose(&layout, &rack, node, CASE) {
                Progress::Decided(value) => decided.lock().unwrap().push(value),
                other => panic!("{other:?}"),
            }
        });
    }
    schedule.run();
    let decided = decided.lock().unwrap();
    assert_eq!(decided.len(), hosts - 1);
    assert!(decided.iter().all(|value| *value == decided[0]), "{decided:?}");
    let read = decided_about(&layout, &rack.host(0), VICTIM, CASE.incarnation);
    assert_eq!(read.map(|it| it.appointment), Some(decided[0]));
    assert_eq!(rack.conflicts(), []);
}

#[test]
fn proposers_agree_whichever_process_dies() {
    for seed in 0..150 {
        if std::panic::catch_unwind(|| agree(seed)).is_err() {
            panic!("seed {seed}");
        }
    }
}
