//! A host that loses its slot while much is moved to the device for a lock whose holder died.

use super::*;
use crate::fabric::{Fabric, LineWords};
use crate::layout::{NodeLine, NodeState};
use crate::member::LossCause;
use crate::units::{ChunkId, Incarnation, LineOffset, LineRange, NodeId, WordOffset};

/// The memory of host 0, where something happens when a certain line is written back.
struct Meddled {
    host: SimulatedHost,
    at: LineOffset,
    act: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl Fabric for Meddled {
    fn bytes(&self) -> u64 {
        self.host.bytes()
    }

    fn load(&self, at: WordOffset) -> u64 {
        self.host.load(at)
    }

    fn store(&self, at: WordOffset, value: u64) {
        self.host.store(at, value);
    }

    fn read_line(&self, at: LineOffset) -> LineWords {
        self.host.read_line(at)
    }

    fn write_line(&self, at: LineOffset, words: &LineWords) {
        self.host.write_line(at, words);
    }

    fn write_back(&self, lines: LineRange) {
        if lines.start() == self.at
            && let Some(act) = self.act.take()
        {
            act();
        }
        self.host.write_back(lines);
    }

    fn invalidate(&self, lines: LineRange) {
        self.host.invalidate(lines);
    }

    fn fence(&self) {
        self.host.fence();
    }

    fn read_back(&self, lines: LineRange) {
        self.host.read_back(lines);
    }
}

/// Process 5 of host 0, alone with one that died with the lock in hand, beats, or leaves. In the middle of
/// what is to be settled another life takes the slot.
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
    let fabric = Meddled {
        host: bed.rack.host(0),
        at: LineRange::covering(layout.chunk(ChunkId(3))).start(),
        act: RefCell::new(Some(Box::new(act))),
    };
    let (identity, me) = (HostIdentity::simulated(0), ProcessIdentity::new(5, 1));
    let member =
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
fn an_agent_that_loses_its_slot_while_it_settles_writes_nothing_more() {
    nothing_is_written_after_the_slot_was_lost(false);
}

#[test]
fn who_leaves_and_loses_the_slot_while_it_settles_writes_nothing_more() {
    nothing_is_written_after_the_slot_was_lost(true);
}
