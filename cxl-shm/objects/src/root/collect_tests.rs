//! A process dies after it has freed the object of a destroyed root, before the root's entry says
//! so.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cxl_shm::chunk;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{HEAP_PURPOSE, ROOT_LOCK, RootState};
use cxl_shm::verify::small_rack::{Rig, RigMember, TIMEOUT_MS};

use super::{RootKind, read, table};
use crate::heap::{self, Access, Deadline, Object, Retired, Unlocked};
use crate::{NamedRoots, Objects};

fn put(rig: &Rig, member: &RigMember, name: &str) -> Object {
    let object = member.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    member.put_root(&rig.clock, TIMEOUT_MS, name, object.offset(), RootKind::Leaf).unwrap();
    object
}

/// Destroys a root up to there.
fn die_with_the_object_freed(rig: &Rig, member: &RigMember, name: &str) {
    let _guard = member.lock_shared(ROOT_LOCK, &rig.clock, TIMEOUT_MS).unwrap();
    member.fabric().refresh(member.layout().roots().range());
    let (entry, head) = read::head_of(member, name).unwrap();
    table::set_state(member.node_handle(), member.fabric(), entry, RootState::Retired);
    let retired = Retired { entry, sequence: head.sequence(), offset: head.offset() };
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let access = Access::try_enter(member).unwrap().unwrap();
        access.collect(&[retired], |_| panic!("dies")).unwrap();
    }));
    unwound.unwrap_err();
}

#[test]
fn a_sweep_of_another_chunk_ends_what_a_dead_collector_began() {
    let rig = Rig::new(8);
    let owner = rig.join(0);
    let object = put(&rig, &owner, "it");
    put(&rig, &owner, "other");
    die_with_the_object_freed(&rig, &owner, "it");
    let next = owner.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    assert_eq!(next.offset(), object.offset(), "the next object has its place");
    // As one that comes from a dead host.
    chunk::request(&owner, &rig.clock, TIMEOUT_MS, HEAP_PURPOSE).unwrap();
    let deadline = Deadline::after(&rig.clock, TIMEOUT_MS);
    assert!(heap::build_new(&mut Unlocked::begin(&owner), &rig.clock, deadline).unwrap());
    owner.destroy_root(&rig.clock, TIMEOUT_MS, "other").unwrap();
    assert_eq!(
        owner.heap_usage(&rig.clock).unwrap().objects,
        1,
        "nobody has freed the next object"
    );
}

#[test]
fn a_chunk_passes_to_another_host_after_what_a_dead_collector_began() {
    for attends in [false, true] {
        let rig = Rig::new(1);
        let (owner, other) = (rig.join(0), rig.join(1));
        let object = put(&rig, &owner, "it");
        while other.allocate_chunk(&rig.clock, TIMEOUT_MS, 7).is_ok() {}
        die_with_the_object_freed(&rig, &owner, "it");
        other.node_handle().chunk_demand().publish(other.fabric(), 1);
        if attends {
            assert!(owner.attend(&rig.clock).unwrap());
        } else {
            assert_eq!(owner.answer_chunk_requests(&rig.clock, TIMEOUT_MS), Ok(1));
        }
        let next = other.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
        assert_eq!(next.offset(), object.offset(), "the next object has its place");
        put(&rig, &other, "other");
        other.destroy_root(&rig.clock, TIMEOUT_MS, "other").unwrap();
        let usage = other.heap_usage(&rig.clock).unwrap();
        assert_eq!(usage.objects, 1, "nobody has freed the next object");
    }
}

#[test]
fn a_chunk_is_not_given_back_before_the_root_of_its_last_object_is_free() {
    let rig = Rig::new(1);
    let owner = rig.join(0);
    put(&rig, &owner, "it");
    die_with_the_object_freed(&rig, &owner, "it");
    let give_up = || Access::try_enter(&owner).unwrap().unwrap().give_up_idle().unwrap();
    assert_eq!(give_up(), None);
    owner.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
    assert!(give_up().is_some());
}
