use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use cxl_shm::verify::simulated::{SimulatedHostMemory, SimulatedRack};
use proptest::prelude::*;

use super::*;

fn memory(holds: u64) -> SimulatedHostMemory {
    let rack = SimulatedRack::sticky(1, 4096);
    rack.host_memory(0, 8 + words_needed(holds))
}

fn table(holds: u64) -> HoldTable<SimulatedHostMemory> {
    HoldTable::new(memory(holds), 8, holds, 1 << 26)
}

fn handle(owner: u16, slot: u32, generation: u32) -> Handle {
    Handle::new(NodeId(owner), slot, generation)
}

/// A host's memory as a process uses it that dies after some stores: later ones never arrive.
#[derive(Clone, Debug)]
struct Watched {
    memory: SimulatedHostMemory,
    stores_left: Rc<Cell<usize>>,
    loads: Rc<Cell<usize>>,
}

impl Watched {
    fn new(memory: SimulatedHostMemory, stores: usize) -> Self {
        Self { memory, stores_left: Rc::new(Cell::new(stores)), loads: Rc::default() }
    }
}

impl HostMemory for Watched {
    fn words(&self) -> usize {
        self.memory.words()
    }

    fn load(&self, index: usize) -> u64 {
        self.loads.set(self.loads.get() + 1);
        self.memory.load(index)
    }

    fn store(&self, index: usize, value: u64) {
        if let Some(left) = self.stores_left.get().checked_sub(1) {
            self.stores_left.set(left);
            self.memory.store(index, value);
        }
    }

    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> Result<u64, u64> {
        panic!("the heap lock makes it needless")
    }
}

#[test]
fn a_block_is_held_until_the_last_holder_lets_it_go() {
    let table = table(64);
    let (a, b) = (ProcessSlot(3), ProcessSlot(255));
    let block = handle(31, 9, 4);
    assert!(table.add(a, block) && table.add(a, block) && table.add(b, block));
    table.remove(b, handle(31, 9, 3));
    for process in [a, b, a] {
        assert!(table.is_held(NodeId(31), 9));
        table.remove(process, block);
    }
    assert!(!table.is_held(NodeId(31), 9) && table.is_empty());
    table.remove(a, block);
    assert!(table.is_empty());
}

#[test]
fn what_the_dead_held_is_dropped() {
    let table = table(64);
    for slot in 0..40 {
        assert!(table.add(ProcessSlot(slot % 2), handle(0, u32::from(slot), 1)));
    }
    let gone = |process| process == ProcessSlot(1);
    let dropped = [table.drop_of(gone, 15), table.drop_of(gone, 15), table.drop_of(gone, 15)];
    assert_eq!(dropped.map(|it| it.len()), [15, 5, 0], "a bounded part at a time");
    for slot in 0..40 {
        assert_eq!(table.is_held(NodeId(0), slot), slot % 2 == 0);
    }
}

#[test]
fn dropping_what_a_process_held_does_not_look_at_what_others_hold() {
    let holds = 1 << 14;
    let memory = Watched::new(memory(holds), usize::MAX);
    let table = HoldTable::new(memory.clone(), 8, holds, 1 << 26);
    let most = u32::try_from(table.capacity()).unwrap();
    for slot in 0..most {
        let process = if slot % 1000 == 0 { 7 } else { 8 };
        assert!(table.add(ProcessSlot(process), handle(0, slot, 1)));
    }
    memory.loads.set(0);
    let dropped = table.drop_of(|process| process == ProcessSlot(7), usize::MAX);
    assert_eq!(dropped.len(), 17);
    let loads = memory.loads.get();
    assert!(loads < 2000, "{loads} words of {} were looked at", words_needed(holds));
    memory.loads.set(0);
    table.remove(ProcessSlot(8), handle(0, 77, 1));
    assert!(memory.loads.get() < 100, "a release looked at {} words", memory.loads.get());
}

#[test]
fn slots_that_share_a_reader_word_are_held_together() {
    let table = HoldTable::new(memory(64), 8, 64, 16);
    let (within, beyond) = (handle(2, 5, 1), handle(2, 5 + 32, 1));
    assert!(table.add(ProcessSlot(1), beyond));
    assert!(table.is_held(NodeId(2), 5) && table.is_held(NodeId(2), 5 + 16));
    assert!(!table.is_held(NodeId(2), 6) && !table.is_held(NodeId(3), 5));
    assert!(table.add(ProcessSlot(2), within));
    table.remove(ProcessSlot(1), beyond);
    assert!(table.is_held(NodeId(2), 5 + 32), "the other one is held still");
    table.remove(ProcessSlot(2), within);
    assert!(!table.is_held(NodeId(2), 5) && table.is_empty());
}

#[test]
fn a_full_table_says_so_and_has_room_again_later() {
    let table = table(1);
    let me = ProcessSlot(0);
    let most = u32::try_from(table.capacity()).unwrap();
    for slot in 0..most {
        assert!(table.add(me, handle(0, slot, 1)));
    }
    assert!(!table.add(me, handle(0, most, 1)));
    assert!(table.add(me, handle(0, 0, 1)), "counted where it is");
    table.remove(me, handle(0, 7, 1));
    assert!(table.add(me, handle(0, most, 1)));
    assert!(table.is_held(NodeId(0), most) && !table.is_held(NodeId(0), 7));
}

/// What a table that was built anew must be: all of these holds, none else, and room for the rest.
fn check(table: &HoldTable<Watched>, expected: &[(u16, Handle)]) {
    let slots = || 0..80;
    let held = |slot| expected.iter().any(|(_, it)| it.slot() == slot);
    for slot in slots() {
        assert_eq!(table.is_held(NodeId(1), slot), held(slot), "slot {slot}");
    }
    assert_eq!(table.load(WORD_COUNTED), expected.len() as u64);
    // Every record can be taken.
    let room = table.capacity() - expected.len();
    for number in 0..u32::try_from(room).unwrap() {
        assert!(table.add(ProcessSlot(9), handle(2, number, 1)), "{number} of {room}");
    }
    assert!(!table.add(ProcessSlot(9), handle(3, 0, 1)));
    assert_eq!(table.drop_of(|process| process == ProcessSlot(9), usize::MAX).len(), room);
    // The chains of the processes have each hold once.
    for process in [0, 1] {
        let of_process = expected.iter().filter(|(it, _)| *it == process).count();
        let dropped = table.drop_of(|gone| gone.0 == process, usize::MAX);
        assert_eq!(dropped.len(), of_process, "process {process}");
    }
    assert!(table.is_empty() && slots().all(|slot| !table.is_held(NodeId(1), slot)));
}

/// All that the records count.
fn counted(table: &HoldTable<Watched>) -> Vec<(u16, Handle)> {
    let (taken, _) = halves(table.load(WORD_TAKEN));
    let counted = (0..table.in_table(taken)).filter_map(|record| {
        let (name, count) = table.read(record);
        let (generation, _) = halves(table.load(table.at(record) + 1));
        (count > 0).then(|| (name.process.0, handle(name.owner.0, name.slot, generation)))
    });
    counted.collect()
}

/// A process dies after each of the stores of a change; then another builds the table anew. What
/// the change is about may be held then or not, and all else is held as before.
fn dies_at_each_store(change: impl Fn(&HoldTable<Watched>), about: &[(u16, Handle)]) {
    for stores in 0..40 {
        let memory = Watched::new(memory(64), usize::MAX);
        let table = HoldTable::new(memory.clone(), 8, 64, 1 << 26);
        for number in 0..8u16 {
            let block = handle(1, u32::from(number) * 3, 1);
            assert!(table.add(ProcessSlot(number % 2), block));
        }
        assert!(
            table.add(ProcessSlot(0), handle(1, 3, 1))
                && table.add(ProcessSlot(1), handle(1, 3, 2))
        );
        let before = counted(&table);
        memory.stores_left.set(stores);
        change(&table);
        let is_complete = memory.stores_left.get() > 0;
        memory.stores_left.set(usize::MAX);
        let after = counted(&table);
        let changed = |name: &&(u16, Handle)| before.contains(name) != after.contains(name);
        for name in before.iter().chain(&after).filter(changed) {
            assert!(about.contains(name), "{name:?} after {stores} stores");
        }
        table.rebuild();
        check(&table, &after);
        if is_complete {
            return;
        }
    }
    panic!("a change has more than 40 stores");
}

#[test]
fn a_death_at_any_store_of_a_change_leaves_what_can_be_built_anew() {
    let new = (1, handle(1, 50, 1));
    dies_at_each_store(|table| assert!(table.add(ProcessSlot(1), new.1)), &[new]);
    for gone in
        [(0, handle(1, 0, 1)), (1, handle(1, 9, 1)), (0, handle(1, 18, 1)), (1, handle(1, 3, 2))]
    {
        dies_at_each_store(|table| table.remove(ProcessSlot(gone.0), gone.1), &[gone]);
    }
    let counted_twice = (0, handle(1, 3, 1));
    dies_at_each_store(
        |table| {
            table.remove(ProcessSlot(0), counted_twice.1);
            assert!(table.add(ProcessSlot(0), new.1));
        },
        &[counted_twice, (0, new.1)],
    );
}

/// A word of the host's memory that another program wrote: the chain of a process that is gone leads to
/// the record of one that lives.
#[test]
fn a_chain_that_leads_to_what_another_holds_is_built_anew() {
    let table = table(64);
    let (lives, gone) = (ProcessSlot(3), ProcessSlot(7));
    assert!(table.add(lives, handle(1, 5, 1)) && table.add(gone, handle(1, 6, 1)));
    table.store(table.chain_of(gone), table.load(table.chain_of(lives)));
    assert_eq!(table.drop_of(|process| process == gone, 64), [(NodeId(1), 6)]);
    assert!(table.is_held(NodeId(1), 5) && !table.is_held(NodeId(1), 6));
    assert_eq!((table.counted(), table.drop_of(|process| process == gone, 64)), (1, vec![]));
    // The same, to a record that counts nothing.
    table.store(table.chain_of(gone), index_word(1));
    assert_eq!(table.drop_of(|process| process == gone, 64), []);
    table.remove(lives, handle(1, 5, 1));
    assert!(table.is_empty());
}

#[test]
fn words_that_no_table_has_lead_nowhere() {
    let holds = 64;
    let memory = memory(holds);
    for seed in 1..50u64 {
        let mut word = seed;
        for index in 8..8 + words_needed(holds) {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(seed);
            memory.store(index, if seed % 2 == 0 { word >> 40 } else { word });
        }
        let table = HoldTable::new(memory.clone(), 8, holds, 1 << 26);
        let _ = table.is_held(NodeId(1), 5);
        let _ = table.add(ProcessSlot(1), handle(1, 5, 1));
        table.remove(ProcessSlot(1), handle(1, 5, 1));
        table.rebuild();
        table.drop_of(|_| true, usize::MAX);
        assert!(table.is_empty());
    }
}

proptest! {
    #[test]
    fn it_counts_like_a_map(
        steps in prop::collection::vec((0u8..4, 0u16..3, 0u16..2, 0u32..24, 1u32..3), 0..300)
    ) {
        let table = table(512);
        let mut model: HashMap<(u16, Handle), u32> = HashMap::new();
        for (what, process, owner, slot, generation) in steps {
            let handle = handle(owner, slot, generation);
            match what {
                0 => {
                    prop_assert!(table.add(ProcessSlot(process), handle));
                    *model.entry((process, handle)).or_default() += 1;
                }
                1 => {
                    table.remove(ProcessSlot(process), handle);
                    if let Some(count) = model.get_mut(&(process, handle)) {
                        *count -= 1;
                    }
                    model.retain(|_, count| *count > 0);
                }
                2 => table.rebuild(),
                _ => {
                    table.drop_of(|gone| gone.0 == process && slot == 0, usize::MAX);
                    model.retain(|(name, _), _| *name != process || slot != 0);
                }
            }
            let held = |owner, slot| {
                model.keys().any(|(_, it)| (it.owner(), it.slot()) == (owner, slot))
            };
            for owner in [NodeId(0), NodeId(1)] {
                for slot in 0..24 {
                    prop_assert_eq!(table.is_held(owner, slot), held(owner, slot));
                }
            }
            prop_assert_eq!(table.is_empty(), model.is_empty());
        }
    }
}
