use std::cell::RefCell;
use std::collections::HashMap;

use proptest::prelude::*;
use shuttle::sync::atomic::{AtomicU64, Ordering};

use super::*;

const ROWS: usize = 16;
const WORDS: usize = TABLE_HEADER_WORDS + ROWS * ROW_WORDS;

/// Words of one thread.
#[derive(Debug)]
struct Plain(RefCell<Vec<u64>>);

impl HostMemory for Plain {
    fn words(&self) -> usize {
        self.0.borrow().len()
    }

    fn load(&self, index: usize) -> u64 {
        self.0.borrow()[index]
    }

    fn store(&self, index: usize, value: u64) {
        self.0.borrow_mut()[index] = value;
    }

    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> Result<u64, u64> {
        unreachable!("the table has one writer")
    }
}

/// Words that threads share.
#[derive(Debug)]
struct Shared(Vec<AtomicU64>);

impl HostMemory for Shared {
    fn words(&self) -> usize {
        self.0.len()
    }

    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::SeqCst)
    }

    fn store(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::SeqCst);
    }

    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> Result<u64, u64> {
        unreachable!("the table has one writer")
    }
}

fn plain() -> HostTable<Plain> {
    let table = HostTable::new(Plain(RefCell::new(vec![0; WORDS])), 0, ROWS);
    table.make(ROWS);
    table
}

/// Keys of few homes, so that searches are long, also round the end of the table.
fn key(number: u64) -> IndexKey {
    let home = [0, 1, 14, 15][usize::try_from(number % 4).unwrap()];
    IndexKey::from_words([home << 60 | number, number])
}

proptest! {
    #[test]
    fn it_is_a_map(steps in prop::collection::vec((0u8..5, 0u64..12, 0u16..3), 0..200)) {
        let table = plain();
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut taken = 0;
        for (what, number, node) in steps {
            let node = NodeId(node);
            match what {
                0..3 => {
                    taken += table.add(key(number), node).unwrap();
                    *model.entry(number).or_default() |= bit(node);
                }
                3 => {
                    taken -= table.remove(key(number), node);
                    model.entry(number).and_modify(|nodes| *nodes &= !bit(node));
                }
                _ => {
                    taken -= table.remove_all_of(node);
                    model.values_mut().for_each(|nodes| *nodes &= !bit(node));
                }
            }
            model.retain(|_, nodes| *nodes != 0);
            prop_assert_eq!(taken, model.len());
            for number in 0..12 {
                let nodes = model.get(&number).copied().unwrap_or(0);
                prop_assert_eq!(table.find(key(number)), nodes, "key {}", number);
            }
        }
    }

    #[test]
    fn words_that_no_table_has_end_a_search(words: [u64; 16], number: u64, rows in 0u64..40) {
        let memory = Plain(RefCell::new(words.into_iter().cycle().take(WORDS).collect()));
        memory.store(WORD_ROWS, rows);
        let table = HostTable::new(memory, 0, ROWS);
        table.find(key(number));
        table.add(key(number), NodeId(1));
        table.remove(key(number), NodeId(1));
        table.remove_all_of(NodeId(2));
    }
}

#[test]
fn a_full_table_says_so() {
    let table = plain();
    for number in 0..16 {
        assert_eq!(table.add(key(number), NodeId(0)), Some(1));
    }
    assert_eq!(table.add(key(16), NodeId(0)), None);
    assert_eq!(table.add(key(3), NodeId(1)), Some(0));
    assert_eq!((table.find(key(16)), table.find(key(3))), (0, 3));
    assert_eq!(table.remove(key(3), NodeId(1)), 0);
    assert_eq!(table.remove(key(3), NodeId(0)), 1);
    assert_eq!(table.remove(key(3), NodeId(0)), 0);
    assert_eq!(table.add(key(16), NodeId(0)), Some(1));
}

#[test]
fn a_table_that_is_made_anew_has_nothing_of_the_one_before() {
    let table = plain();
    for number in 0..8 {
        table.add(key(number), NodeId(0)).unwrap();
    }
    table.make(ROWS / 2);
    assert!((0..8).all(|number| table.find(key(number)) == 0));
    table.add(key(1), NodeId(2)).unwrap();
    table.make(ROWS);
    assert!((0..8).all(|number| table.find(key(number)) == 0));
}

/// A writer moves rows about, and readers look for keys meanwhile: what they find was so (TIER-H1).
fn read_while_written() {
    let memory = Shared((0..WORDS).map(|_| AtomicU64::new(0)).collect());
    let table = shuttle::sync::Arc::new(HostTable::new(memory, 0, ROWS));
    table.make(ROWS);
    // Three keys of one home in a row; the nodes of each are never those of another.
    let one_home = |number: u64| key(number * 4);
    for number in 0..3 {
        table.add(one_home(number), NodeId(u16::try_from(number).unwrap())).unwrap();
    }
    let readers: Vec<_> = (0..2)
        .map(|reader| {
            let table = shuttle::sync::Arc::clone(&table);
            shuttle::thread::spawn(move || {
                for number in [2 - reader, 2] {
                    let nodes = table.find(one_home(number));
                    assert!(nodes == 0 || nodes == 1 << number, "{number}: {nodes}");
                }
            })
        })
        .collect();
    table.remove(one_home(0), NodeId(0));
    table.add(one_home(0), NodeId(0)).unwrap();
    for reader in readers {
        reader.join().unwrap();
    }
    assert!((0..3).all(|number| table.find(one_home(number)) == 1 << number));
}

#[test]
fn what_is_found_while_rows_move_was_so() {
    shuttle::check_random(read_while_written, 3000);
    shuttle::check_pct(read_while_written, 1500, 4);
}
