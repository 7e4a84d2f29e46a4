//! Audits: each kind of damage is found by its name, a healthy region in use has no faults, and a repair
//! leaves a region without the damage.

use cxl_shm::layout::{ChunkEntry, ChunkState, IntentRecord, LineKind};
use cxl_shm::units::{Incarnation, NodeId};

use super::clear::{die_before_the_count, keep_up};
use super::*;
use crate::tier::{Announced, DriveAnnouncer};
use crate::{
    Audit, AuditReport, DriveGeometry, Fault, Gravity, NamespaceTag, PayloadSample, Repair,
    RepairError,
};

const NODE: NodeId = NodeId(0);

fn rig_on(rack: SimulatedRack) -> Rig {
    let drives = DriveGeometry::new(16, 8, 2).unwrap();
    let cache = CacheGeometry::new(32, 16).unwrap().with_drives(Some(drives));
    Rig::formatted(rack, REGION_BYTES, 2, cache)
}

fn rig() -> Rig {
    rig_on(SimulatedRack::sticky(3, REGION_BYTES))
}

/// An audit on a host that is no member, with `between` as its pause.
fn audit_with(rig: &Rig, a: &TestCache<'_>, in_use: bool, between: impl FnMut()) -> AuditReport {
    let (host, member) = (rig.rack.host(2), a.member());
    let audit = Audit::new(&host, member.superblock(), member.layout(), in_use).unwrap();
    audit.run(PayloadSample::All, between, |_, _, _| ())
}

fn names(report: &AuditReport) -> Vec<&'static str> {
    assert_eq!((report.unlisted, report.changing), (0, 0));
    report.faults.iter().map(Fault::name).collect()
}

/// What an audit of the region in use finds after `damage`. Every one finds the same again.
#[track_caller]
fn expect(expected: &[&str], damage: impl FnOnce(&Rig, &TestCache<'_>, &ServingClock<'_>)) {
    let rig = rig();
    on_two_hosts(&rig, |a, b, clock| {
        for number in 1..=3 {
            publish(a, clock, number);
        }
        let handle = find(b, 1).unwrap();
        assert_eq!(fetch(b, 1, handle), Ok(()));
        assert_eq!(names(&audit_with(&rig, a, true, || ())), [""; 0]);
        damage(&rig, a, clock);
        assert_eq!(names(&audit_with(&rig, a, true, || ())), expected);
    });
}

fn flip(rig: &Rig, at: u64) {
    rig.rack.flip_bit(at, 3);
}

fn descriptor_at(a: &TestCache<'_>, handle: Handle) -> u64 {
    a.areas().segment(handle.owner()).range(handle.slot()).start().bytes()
}

#[test]
fn damage_of_the_regions_own_metadata_is_found() {
    expect(&["metadata_damaged"], |rig, a, _| {
        flip(rig, a.member().layout().host_name(NODE).at().bytes() + 3);
    });
    expect(&["copy_damaged"], |rig, a, _| {
        flip(rig, a.member().layout().ballots(NODE).range().start().bytes() + 9);
    });
    expect(&["metadata_damaged", "metadata_damaged"], |rig, a, _| {
        let at = a.member().layout().recoveries(NODE).range().start().bytes();
        flip(rig, at);
        flip(rig, at + 64);
    });
    // The spare slot of the superblock.
    expect(&["metadata_damaged"], |rig, _, _| flip(rig, 4096 + 64));
    expect(&["chunk_unreadable"], |rig, a, _| {
        flip(rig, a.member().layout().chunk_entry(cxl_shm::units::ChunkId(3)).at().bytes());
    });
}

#[test]
fn chunks_of_owners_that_cannot_be_are_found() {
    let owned =
        |owner, incarnation| ChunkEntry::new(ChunkState::Owned { owner, incarnation, purpose: 0 });
    for entry in [owned(NodeId(7), Incarnation(1)), owned(NODE, Incarnation(9))] {
        expect(&["chunk_owner_impossible"], |_, a, _| {
            let line = a.member().layout().chunk_entry(cxl_shm::units::ChunkId(5));
            line.claim().publish(a.member().fabric(), &entry);
        });
    }
}

#[test]
fn damage_of_descriptors_is_found() {
    expect(&["tables_word_damaged"], |_, a, _| {
        let word = a.areas().tables_word(NODE);
        word.claim().publish(a.member().fabric(), 0xBAD);
    });
    expect(&["descriptor_damaged"], |rig, a, _| {
        flip(rig, descriptor_at(a, find(a, 2).unwrap()) + 12);
    });
    expect(&["block_misplaced"], |_, a, _| {
        let layout = *a.member().layout();
        let free = layout.chunk(cxl_shm::units::ChunkId(layout.chunks() - 1));
        let elsewhere = free.part(0, BLOCK_BYTES).unwrap();
        let bytes = content(2);
        store(a, elsewhere, &bytes);
        rewrite(a, find(a, 2).unwrap(), |block| Descriptor { payload: elsewhere, ..block });
    });
    // Both have the bytes of the first.
    expect(&["blocks_overlap"], |_, a, _| {
        let first = find(a, 1).unwrap();
        let payload = open(a, 1, first).unwrap().payload();
        let checksum = checksum(&content(1));
        rewrite(a, find(a, 2).unwrap(), |block| Descriptor { payload, checksum, ..block });
    });
    expect(&["block_hidden"], |_, a, _| {
        // Its home is the slot after it, so a search goes nearly once round, over blank slots.
        let handle = find(a, 2).unwrap();
        let home = u64::from(handle.slot()) + 1;
        let key = crate::BlockKey::new(crate::identity::IndexKey::from_words([home, 9]), 0);
        rewrite(a, handle, |block| Descriptor { key, ..block });
    });
    expect(&["payload_damaged"], |rig, a, _| {
        let payload = open(a, 3, find(a, 3).unwrap()).unwrap().payload();
        flip(rig, payload.offset() + 4321);
    });
}

#[test]
fn damage_of_what_nodes_tell_is_found() {
    expect(&["log_entry_damaged"], |rig, a, _| flip(rig, a.areas().log(NODE).at_bytes(1) + 5));
    expect(&["directive_damaged"], |_, a, _| {
        a.areas().directive_count(NODE).claim().publish(a.member().fabric(), 1);
    });
    expect(&["answer_impossible"], |_, a, _| {
        let answer = a.areas().directives(NODE).answer(NodeId(1));
        answer.claim().publish(a.member().fabric(), 5);
    });
    expect(&["summary_damaged"], |rig, a, clock| {
        keep_up(a, clock);
        flip(rig, a.areas().summary(NODE).part.range().start().bytes() + 70);
    });
}

#[test]
fn a_directive_that_was_not_counted_is_no_damage() {
    let rig = rig();
    on_two_hosts(&rig, |a, b, clock| {
        die_before_the_count(a, b, clock);
        assert_eq!(names(&audit_with(&rig, a, true, || ())), [""; 0]);
    });
}

#[test]
fn damage_of_what_is_said_of_drives_is_found() {
    let announced = |a: &TestCache<'_>| {
        let claim = a.claim_drives().unwrap();
        let mut announcer = DriveAnnouncer::begin(&claim, a).unwrap();
        let namespace = NamespaceTag::from_bits(3);
        let block = |number| Announced { key: key(number), bytes: 5000, depth: 0, namespace };
        assert_eq!(announcer.announce(a, &[block(1), block(2), block(3)]).unwrap(), 3);
    };
    // An agent that has begun and said nothing of itself yet.
    expect(&["agent_damaged"], |_, a, _| announced(a));
    expect(&["agent_damaged", "log_entry_damaged"], |rig, a, _| {
        announced(a);
        let drives = a.areas().drives().unwrap().of(NODE);
        flip(rig, drives.log().at_bytes(drives.head().cached(a.member().fabric()) - 1));
    });
    expect(&["agent_damaged", "drive_entry_damaged"], |rig, a, _| {
        announced(a);
        let drives = a.areas().drives().unwrap().of(NODE);
        let used = (0..16).find(|slot| drives.entry(a.member().fabric(), *slot).is_some()).unwrap();
        let word = drives.entry_words(used).next().unwrap();
        let value = word.cached(a.member().fabric());
        word.claim().publish(a.member().fabric(), value ^ 4);
        let _ = rig;
    });
    expect(&["request_damaged"], |_, a, _| {
        let drives = a.areas().drives().unwrap().of(NODE);
        drives.requests(NodeId(1)).claim().publish(a.member().fabric(), 1);
    });
    expect(&["answer_impossible"], |_, a, _| {
        let drives = a.areas().drives().unwrap().of(NODE);
        drives.answer(NodeId(1), 1).claim().publish(a.member().fabric(), 1 << 8 | 1);
    });
}

#[test]
fn what_was_left_is_found_when_nobody_uses_the_region() {
    let rig = rig();
    on_two_hosts(&rig, |a, b, clock| {
        publish(a, clock, 1);
        let _held = hold(b, clock, 1).unwrap();
        let writing = reserve(a, clock, 2);
        let intent = a.member().layout().intents(NODE);
        let head = intent.line::<IntentRecord>(8).unwrap();
        let open = IntentRecord::opened(cxl_shm::layout::CHUNK_LOCK, &[1], 0);
        head.claim().publish(a.member().fabric(), &open);
        assert_eq!(names(&audit_with(&rig, a, true, || ())), [""; 0], "all of it is at work");
        let report = audit_with(&rig, a, false, || ());
        let left =
            ["node_abandoned", "node_abandoned", "update_open", "block_unfinished", "holds_left"];
        assert_eq!(names(&report), left);
        assert!(!report.is_damaged());
        assert!(report.faults.iter().all(|it| it.gravity() == Gravity::Left));
        head.claim().publish(a.member().fabric(), &IntentRecord::closed());
        a.abort(clock, vec![writing]);
    });
}

#[test]
fn a_region_in_use_has_no_faults_while_it_changes() {
    let rig = rig();
    on_two_hosts(&rig, |a, b, clock| {
        let mut number = 0;
        let mut handles = Vec::new();
        let mut work = || {
            number += 1;
            handles.push(publish(a, clock, number));
            keep_up(a, clock);
            if let Some(handle) = find(b, number) {
                assert_eq!(fetch(b, number, handle), Ok(()));
            }
            if handles.len() > 12 {
                assert_eq!(a.retire(clock, &[handles.remove(0)]), 1);
            }
        };
        (0..8).for_each(|_| work());
        let (host, member) = (rig.rack.host(2), a.member());
        let audit = Audit::new(&host, member.superblock(), member.layout(), true).unwrap();
        let report = audit.run(PayloadSample::All, || (), |_, _, _| work());
        assert_eq!(report.faults, []);
        assert!(report.checked.blocks > 4 && report.checked.payload_blocks > 0);
    });
}

#[test]
fn a_line_that_is_being_written_is_no_fault() {
    let rig = rig();
    on_two_hosts(&rig, |a, _, clock| {
        let at = descriptor_at(a, publish(a, clock, 1)) + 12;
        flip(&rig, at);
        let mut looks = 0;
        // The writer gets on before the last look.
        let report = audit_with(&rig, a, true, || {
            looks += 1;
            if looks == 3 {
                flip(&rig, at);
            }
        });
        assert_eq!((report.faults, looks), (vec![], 3));
        // A line that is wrong in another way each time is none that is known to be damaged.
        let host_name = a.member().layout().host_name(NODE).at().bytes();
        let entry = a.member().layout().chunk_entry(cxl_shm::units::ChunkId(5)).at().bytes();
        flip(&rig, entry);
        let report = audit_with(&rig, a, true, || {
            flip(&rig, entry);
            flip(&rig, host_name);
        });
        assert_eq!(report.faults, []);
    });
}

/// Audits and repairs by a tool on another host, which has every line in its caches as it was.
pub(super) fn audited_and_repaired(rack: SimulatedRack) {
    let rig = rig_on(rack);
    let (first, second) = (rig.join(0), rig.join(1));
    let clock = rig.serve(&[&first, &second]);
    let a = Cache::attach(&first, &clock).unwrap();
    let b = Cache::attach(&second, &clock).unwrap();
    let host = rig.rack.host(2);
    let (superblock, layout) = (*first.superblock(), *first.layout());
    let audit = |in_use| Audit::new(&host, &superblock, &layout, in_use).unwrap();
    let look = |in_use| audit(in_use).run(PayloadSample::All, || (), |_, _, _| ());
    assert_eq!(look(true).faults, []);
    for number in 1..=4 {
        publish(&a, &clock, number);
        let report = look(true);
        assert_eq!(report.faults, []);
        let checked = (report.checked.blocks, report.checked.payload_blocks);
        assert_eq!(checked, (number.into(), number.into()));
    }
    let payload = open(&b, 1, find(&b, 1).unwrap()).unwrap().payload();
    let (damaged, tables) = (find(&b, 2).unwrap(), a.areas().tables_word(NODE));
    tables.claim().publish(first.fabric(), 0xBAD);
    flip(&rig, payload.offset() + 9);
    flip(&rig, descriptor_at(&a, damaged) + 12);
    flip(&rig, a.areas().log(NODE).at_bytes(2));
    let found = look(true);
    let expected =
        ["tables_word_damaged", "descriptor_damaged", "log_entry_damaged", "payload_damaged"];
    assert_eq!(names(&found), expected);
    let repairs = Repair::of(&found.faults);
    assert_eq!(repairs.len(), 4);
    // AUDIT-F1.
    let refused = audit(true).repair(&repairs);
    assert_eq!(refused, Err(RepairError::Member { node: NODE }));
    assert_eq!(names(&look(true)), expected);
    drop((a, b, clock));
    assert_eq!(first.leave(), LeaveOutcome::NodeLeft);
    assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    assert_eq!(audit(false).repair(&repairs), Ok(()));
    // Another host, with caches of its own, sees all of it.
    let host = rig.rack.host(0);
    let elsewhere = Audit::new(&host, &superblock, &layout, false).unwrap();
    assert_eq!(elsewhere.run(PayloadSample::All, || (), |_, _, _| ()).faults, []);
    let (third, fourth) = (rig.join(1), rig.join(0));
    let clock = rig.serve(&[&third, &fourth]);
    let b = Cache::attach(&third, &clock).unwrap();
    let a = Cache::attach(&fourth, &clock).unwrap();
    assert_eq!(look(true).faults, []);
    let hits: Vec<_> = (1..=4).filter(|number| find_and_fetch(&b, *number)).collect();
    assert_eq!(hits, [3, 4]);
    for number in 1..=2 {
        publish(&a, &clock, number);
        assert!(find_and_fetch(&b, number));
    }
    assert_eq!(look(true).faults, []);
}

#[test]
fn a_repair_leaves_a_region_that_is_whole() {
    audited_and_repaired(SimulatedRack::sticky(3, REGION_BYTES));
}

#[test]
fn a_repair_of_drives_blanks_what_is_damaged() {
    let rig = rig();
    let first = rig.join(0);
    let clock = rig.serve(&[&first]);
    let a = Cache::attach(&first, &clock).unwrap();
    let drives = a.areas().drives().unwrap().of(NODE);
    let word = drives.entry_words(3).next().unwrap();
    word.claim().publish(first.fabric(), 77);
    let report = audit_with(&rig, &a, true, || ());
    assert_eq!(names(&report), ["drive_entry_damaged"]);
    let (superblock, layout) = (*first.superblock(), *first.layout());
    drop((a, clock));
    assert_eq!(first.leave(), LeaveOutcome::NodeLeft);
    let host = rig.rack.host(2);
    let audit = Audit::new(&host, &superblock, &layout, false).unwrap();
    assert_eq!(audit.repair(&Repair::of(&report.faults)), Ok(()));
    assert_eq!(audit.run(PayloadSample::All, || (), |_, _, _| ()).faults, []);
}

#[test]
fn every_fault_says_what_it_means_and_what_to_do() {
    let (node, at) = (NODE, 64);
    let faults = [
        Fault::MetadataDamaged { kind: LineKind::Node, node: Some(node), index: 1, at },
        Fault::SummaryDamaged { node, at },
        Fault::DescriptorDamaged { node, slot: 7, at, torn: true },
    ];
    for fault in faults {
        assert!(!fault.meaning().is_empty() && !fault.to_do().is_empty());
        assert!(fault.to_string().contains("node 0"), "{fault}");
        assert_eq!(fault.at(), 64);
    }
}
