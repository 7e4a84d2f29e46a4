//! A host that loses its slot while much is moved to the device for a lock whose holder died.

use super::*;
use crate::host::LossCause;
use crate::layout::{NodeLine, NodeState};
use crate::units::{ChunkId, Incarnation, LineRange, NodeId, WordOffset};
use crate::verify::BackendOf;
use crate::verify::simulated::{Access, Interposed};

/// Process 5 of host 0, alone with one that died with the lock in hand, beats, or leaves. In the
/// middle of what is to be flushed another life takes the slot.
fn nothing_is_written_after_the_slot_was_lost(leaves: bool) {
    let geometry = Geometry { region_bytes: 64 << 20, chunk_bytes: 4 << 20, ..GEOMETRY };
    let bed = Bed::with(LockProtocol::Bakery, geometry);
    let dies = bed.process(0, 3);
    let layout = *dies.layout();
    dies.may_write(layout.payload());
    let memory = bed.rack.host_memory(0, HostTier::words_of(&geometry));
    let taken: Rc<Cell<Option<Vec<u64>>>> = Rc::default();
    let of_node = {
        let rack = bed.rack.clone();
        move || -> Vec<u64> {
            let words = layout.owned_by(NodeId(0)).flat_map(|range| {
                let start = range.start().bytes();
                (start..start + range.lines() * 64).step_by(8)
            });
            words.map(|at| rack.device_word(WordOffset::new(at).unwrap())).collect()
        }
    };
    let act = {
        let (far, taken, of_node) = (bed.rack.host(1), Rc::clone(&taken), of_node.clone());
        move || {
            let line = NodeLine::new(NodeState::Joined, Incarnation(9), [7, 7], [7, 7]);
            layout.node_line(NodeId(0)).claim().publish(&far, &line);
            taken.set(Some(of_node()));
        }
    };
    let (at, act) =
        (LineRange::covering(layout.chunk(ChunkId(3))).start(), RefCell::new(Some(act)));
    // Something happens when a certain line is written back.
    let fabric = Interposed::new(bed.rack.host(0), |access: Access| {
        if matches!(access, Access::WriteBack(lines) if lines.start() == at)
            && let Some(act) = act.take()
        {
            act();
        }
    });
    let (identity, me) = (HostIdentity::simulated(0), ProcessIdentity::new(5, 1));
    let member: Member<BackendOf<_, _, _>> =
        Member::join(fabric, memory, 0, &identity, me, bed.dead.clone(), &bed.clock).unwrap();
    std::mem::forget(bed.acquire(&dies));
    std::mem::forget(dies);
    bed.kill_first_host(&[3]);
    if leaves {
        member.leave();
    } else {
        assert!(member.beat(), "it is the agent");
        assert_eq!(member.check_member().unwrap_err().cause, LossCause::SlotTaken);
        std::mem::forget(member);
    }
    let taken = taken.take().expect("it came as far as the third chunk");
    assert!(taken == of_node(), "something was written over the later life; leaves: {leaves}");
}

#[test]
fn an_agent_that_loses_its_slot_while_it_flushes_writes_nothing_more() {
    nothing_is_written_after_the_slot_was_lost(false);
}

#[test]
fn who_leaves_and_loses_the_slot_while_it_flushes_writes_nothing_more() {
    nothing_is_written_after_the_slot_was_lost(true);
}
