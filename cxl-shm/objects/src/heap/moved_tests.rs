//! Slots that move between two machines whose caches never forget anything by themselves: what the
//! machine had seen of the other's lines is not taken for its own (MEM-M8).

use crate::root::RootKind;
use crate::{NamedRoots, Objects};
use cxl_shm::fabric::Fabric;
use cxl_shm::host::{HostIdentity, HostTier, ProcLiveness, ProcessIdentity};
use cxl_shm::lifecycle::LeaveOutcome;
use cxl_shm::node::Member;
use cxl_shm::verify::small_rack::{Rig, RigMember, TIMEOUT_MS};

/// Frees that are sent in a life: more than a ring has slots, so that each slot is of another lap
/// than a machine has seen there before.
const FREES: u64 = super::ring::SLOTS + 20;

fn join(rig: &Rig, host: usize, node: u16) -> RigMember {
    let memory = rig.rack.host_memory(host, HostTier::words_of(&rig.geometry));
    let identity = HostIdentity::simulated(host as u64);
    let me = ProcessIdentity::current().unwrap();
    let fabric = rig.rack.host(host);
    Member::join(fabric, memory, node, &identity, me, ProcLiveness, &rig.clock).unwrap()
}

/// `sender` frees objects of `receiver`, which carries the frees out.
fn free_each_others(rig: &Rig, sender: &RigMember, receiver: &RigMember) {
    for round in 0..FREES {
        let object = receiver.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
        sender.free(&rig.clock, TIMEOUT_MS, object.offset()).unwrap();
        receiver.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
        assert_eq!(receiver.heap_usage(&rig.clock).unwrap().objects, 0, "free {round} got lost");
    }
}

#[test]
fn a_receiver_that_moves_to_a_senders_machine_carries_out_all_frees() {
    let rig = Rig::new(8);
    let mut on = [0, 1];
    for _ in 0..4 {
        let [sender, receiver] = [join(&rig, on[0], 0), join(&rig, on[1], 1)];
        free_each_others(&rig, &sender, &receiver);
        assert_eq!(sender.leave(), LeaveOutcome::NodeLeft);
        assert_eq!(receiver.leave(), LeaveOutcome::NodeLeft);
        on.reverse();
    }
}

#[test]
fn a_destroyer_that_moves_goes_on_counting_where_its_slot_was() {
    let rig = Rig::new(8);
    let mut on = [0, 1];
    let destroy = |destroyer: &RigMember, owner: &RigMember, looks: bool| {
        let object = owner.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
        owner.put_root(&rig.clock, TIMEOUT_MS, "root", object.offset(), RootKind::Leaf).unwrap();
        destroyer.destroy_root(&rig.clock, TIMEOUT_MS, "root").unwrap();
        if !looks {
            return;
        }
        owner.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
        assert_eq!(owner.heap_usage(&rig.clock).unwrap().objects, 0, "the object is not freed");
    };
    for _ in 0..4 {
        let [destroyer, owner] = [join(&rig, on[0], 0), join(&rig, on[1], 1)];
        (0..3).for_each(|_| destroy(&destroyer, &owner, true));
        // The owner's machine continues with an older count than the last one.
        destroy(&destroyer, &owner, false);
        assert_eq!(destroyer.leave(), LeaveOutcome::NodeLeft);
        assert_eq!(owner.leave(), LeaveOutcome::NodeLeft);
        on.reverse();
    }
}

/// Whatever the list of a node's own lines has in it: nothing of it is an old value of the machine
/// that the slot moved to.
#[test]
fn a_machine_that_a_slot_moves_to_reads_nothing_old_of_its_own() {
    let rig = Rig::new(8);
    let [first, other] = [join(&rig, 0, 0), join(&rig, 1, 1)];
    let (fabric, layout, node) = (rig.rack.host(1), *first.layout(), first.node());
    let words = || {
        let lines = layout.owned_by(node).flat_map(|range| range.iter());
        lines.flat_map(|line| (0..8).filter_map(move |index| line.word(index)))
    };
    let old = || words().filter(|at| fabric.load(*at) != rig.rack.device_word(*at)).count();
    // From here on its caches have all of them.
    old();
    free_each_others(&rig, &first, &other);
    free_each_others(&rig, &other, &first);
    let object = first.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    first.put_root(&rig.clock, TIMEOUT_MS, "root", object.offset(), RootKind::Leaf).unwrap();
    first.destroy_root(&rig.clock, TIMEOUT_MS, "root").unwrap();
    assert_eq!(first.leave(), LeaveOutcome::NodeLeft);
    assert_eq!(other.leave(), LeaveOutcome::NodeLeft);
    assert!(old() >= 16, "{} words are old: the test shows little", old());
    let moved = join(&rig, 1, 0);
    assert_eq!(moved.node(), node);
    assert_eq!(old(), 0, "read as one's own, and older than what the device has");
}
