//! The table of named roots, and bytes in it that nobody wrote.

use crate::{NamedRoots, Objects};
use proptest::prelude::*;

use super::*;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::ROOTS_MAX;
use cxl_shm::verify::small_rack::{Rig, TIMEOUT_MS};

#[test]
fn every_host_finds_a_root_and_nobody_one_that_is_gone() {
    let rig = Rig::new(8);
    let (a, b) = (rig.join(0), rig.join(1));
    let offset = || a.allocate(&rig.clock, TIMEOUT_MS, 100).unwrap().offset();
    let put = |name: &str, offset| a.put_root(&rig.clock, TIMEOUT_MS, name, offset, RootKind::Leaf);
    let long = "n".repeat(ROOT_NAME_BYTES_MAX);
    assert_eq!(b.root(&long), Ok(None));
    let (first, second) = (offset(), offset());
    put(&long, first).unwrap();
    put("caf\u{e9}", second).unwrap();
    let found = b.root(&long).unwrap().unwrap();
    assert_eq!((found.object.offset(), found.kind), (first, Some(RootKind::Leaf)));
    assert_eq!(found.name, long);
    let mut names: Vec<_> = b.roots().into_iter().map(|root| root.name).collect();
    names.sort();
    assert_eq!(names, ["caf\u{e9}".to_owned(), long.clone()]);

    let third = offset();
    assert_eq!(put(&long, third), Err(PutRootError::Exists { name: long.clone() }));
    assert_eq!(put("other", first), Err(PutRootError::AlreadyNamed { offset: first }));
    assert_eq!(put("", third), Err(PutRootError::BadName { bytes: 0 }));
    assert_eq!(b.root(""), Err(GetRootError::BadName { bytes: 0 }));
    let too_long = "n".repeat(ROOT_NAME_BYTES_MAX + 1);
    let bytes = too_long.len();
    assert_eq!(put(&too_long, third), Err(PutRootError::BadName { bytes }));
    let theirs = b.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap().offset();
    let owner = b.node();
    assert_eq!(put("b", theirs), Err(PutRootError::NotOurs { offset: theirs, owner }));
    a.free(&rig.clock, TIMEOUT_MS, third).unwrap();
    assert_eq!(put("freed", third), Err(PutRootError::NotAnObject { offset: third }));

    let fourth = offset();
    let replace =
        |name: &str, offset| a.replace_root(&rig.clock, TIMEOUT_MS, name, offset, RootKind::Linked);
    assert_eq!(replace(&long, fourth).unwrap().offset(), first);
    let found = b.root(&long).unwrap().unwrap();
    assert_eq!((found.object.offset(), found.kind), (fourth, Some(RootKind::Linked)));
    a.free(&rig.clock, TIMEOUT_MS, first).unwrap();
    let missing = PutRootError::NotFound { name: "none".to_owned() };
    let fifth = offset();
    assert_eq!(replace("none", fifth), Err(missing));

    b.destroy_root(&rig.clock, TIMEOUT_MS, &long).unwrap();
    assert_eq!(a.root(&long), Ok(None));
    let gone = DestroyRootError::NotFound { name: long.clone() };
    assert_eq!(b.destroy_root(&rig.clock, TIMEOUT_MS, &long), Err(gone));
}

#[test]
fn a_destroyed_root_takes_the_stores_of_the_destroyer_along() {
    let rig = Rig::new(8);
    let (owner, destroyer) = (rig.join(0), rig.join(1));
    // Of a slot, and of pages.
    for bytes in [64, 20_000] {
        let object = owner.allocate(&rig.clock, TIMEOUT_MS, bytes).unwrap();
        let last = object.area().range().iter().last().unwrap();
        owner.put_root(&rig.clock, TIMEOUT_MS, "it", object.offset(), RootKind::Leaf).unwrap();
        let found = destroyer.root("it").unwrap().unwrap().object;
        destroyer.take_over(found.offset()).unwrap();
        // As a C program does, through its pointer.
        destroyer.fabric().store(last.word(0).unwrap(), 1);
        destroyer.destroy_root(&rig.clock, TIMEOUT_MS, "it").unwrap();
        owner.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
        let next = owner.allocate(&rig.clock, TIMEOUT_MS, bytes).unwrap();
        assert_eq!(next.offset(), object.offset(), "its place is the next object's");
        next.zero(owner.fabric());
        let late = rig.rack.dirty_lines(1).contains(&last);
        assert!(!late, "a line of the old object would be written over the next one");
        assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
    }
}

#[test]
fn a_free_of_a_named_object_is_refused_also_when_its_root_is_destroyed_after_it() {
    let rig = Rig::new(8);
    let (owner, other) = (rig.join(0), rig.join(1));
    let named = owner.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap().offset();
    owner.put_root(&rig.clock, TIMEOUT_MS, "it", named, RootKind::Leaf).unwrap();
    // Waits in the ring: the owner has not looked at it yet.
    other.free(&rig.clock, TIMEOUT_MS, named).unwrap();
    owner.destroy_root(&rig.clock, TIMEOUT_MS, "it").unwrap();
    let next = owner.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    assert_eq!(next.offset(), named, "the next object has its place");
    owner.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
    let usage = owner.heap_usage(&rig.clock).unwrap();
    assert_eq!((usage.objects, usage.refused_frees), (1, 1));
}

#[test]
fn a_free_of_a_named_object_is_refused_also_when_its_root_names_another_after_it() {
    let rig = Rig::new(8);
    let (owner, other) = (rig.join(0), rig.join(1));
    let object = || owner.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap().offset();
    let (named, later) = (object(), object());
    owner.put_root(&rig.clock, TIMEOUT_MS, "it", named, RootKind::Leaf).unwrap();
    // Waits in the ring: the owner has not looked at it yet.
    other.free(&rig.clock, TIMEOUT_MS, named).unwrap();
    owner.replace_root(&rig.clock, TIMEOUT_MS, "it", later, RootKind::Leaf).unwrap();
    owner.free(&rig.clock, TIMEOUT_MS, named).unwrap();
    assert_eq!(object(), named, "the next object has its place");
    owner.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
    let usage = owner.heap_usage(&rig.clock).unwrap();
    assert_eq!((usage.objects, usage.refused_frees), (2, 1));
}

#[test]
fn a_root_that_names_no_object_does_not_keep_others_from_being_collected() {
    let rig = Rig::new(8);
    let (a, b) = (rig.join(0), rig.join(1));
    let first = a.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap().offset();
    a.put_root(&rig.clock, TIMEOUT_MS, "good", first, RootKind::Leaf).unwrap();
    b.destroy_root(&rig.clock, TIMEOUT_MS, "good").unwrap();
    // Damaged: it was destroyed, and names no line of the same heap.
    let entry = table::entries_for("bad").next().unwrap();
    let head = cxl_shm::layout::RootHead::live("bad", first.bytes() + 8, 1, 1);
    let head = head.with_state(cxl_shm::layout::RootState::Retired);
    table::head(a.layout(), entry).claim().publish(a.fabric(), &head);
    assert_eq!(a.answer_chunk_requests(&rig.clock, TIMEOUT_MS), Ok(0));
    let usage = a.heap_usage(&rig.clock).unwrap();
    assert_eq!((usage.objects, usage.refused_frees), (0, 1));
}

#[test]
fn a_full_table_refuses_and_a_destroyed_root_makes_room() {
    let rig = Rig::new(8);
    let a = rig.join(0);
    let put = |n: u64| {
        let offset = a.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap().offset();
        a.put_root(&rig.clock, TIMEOUT_MS, &format!("root {n}"), offset, RootKind::Leaf)
    };
    for n in 0..ROOTS_MAX {
        put(n).unwrap();
    }
    assert_eq!(put(ROOTS_MAX), Err(PutRootError::Full));
    assert_eq!(a.roots().len() as u64, ROOTS_MAX);
    a.destroy_root(&rig.clock, TIMEOUT_MS, "root 77").unwrap();
    assert_eq!(a.root("root 77"), Ok(None));
    put(ROOTS_MAX).unwrap();
    for n in (0..=ROOTS_MAX).filter(|n| *n != 77) {
        assert!(a.root(&format!("root {n}")).unwrap().is_some(), "{n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_bytes_in_the_table_stop_anybody(
        lines in prop::collection::vec((0u64..16, any::<[u64; 8]>()), 1..20),
        heads in prop::collection::vec((0u16..256, any::<u64>(), any::<u32>(), 0u64..200), 0..10),
    ) {
        let rig = Rig::new(4);
        let (a, b) = (rig.join(0), rig.join(1));
        let fabric = rig.rack.host(0);
        let first = table::entries_for("it").next().unwrap();
        let at = a.layout().roots().range();
        for (line, words) in lines {
            let line = (u64::from(first) * 4 + line) % at.lines();
            fabric.write_line(at.iter().nth(usize::try_from(line).unwrap()).unwrap(), &words);
        }
        for (entry, offset, kind, sequence) in heads {
            let head = cxl_shm::layout::RootHead::live("it", offset, kind, sequence);
            table::head(a.layout(), entry).claim().publish(&fabric, &head);
        }
        fabric.publish(at);
        let _ = b.root("it");
        let _ = b.roots();
        let object = a.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
        let put = a.put_root(&rig.clock, TIMEOUT_MS, "it", object.offset(), RootKind::Linked);
        if put.is_ok() {
            let found = a.root("it");
            prop_assert!(!matches!(found, Ok(None)), "what was put is there, or damage is");
        }
        let _ = b.destroy_root(&rig.clock, TIMEOUT_MS, "it");
        let _ = a.answer_chunk_requests(&rig.clock, TIMEOUT_MS);
        a.sweep_heap(&rig.clock, TIMEOUT_MS).unwrap();
    }
}
