//! Every interleaving of few operations on one queue.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use super::*;

const WORDS: QueueWords = QueueWords { owner: 0, tickets: 1, places: 2, waits: 3 };
const PLACES: u16 = 3;
/// Registry slots from here on are of the dead.
const DEAD: u16 = 2;

#[derive(Debug)]
struct Memory(Vec<AtomicU64>);

impl Memory {
    fn new() -> Self {
        let memory = Self((0..3 + PLACES).map(|_| AtomicU64::new(0)).collect());
        memory.store(WORDS.places, u64::from(PLACES));
        memory
    }
}

impl HostMemory for Memory {
    fn words(&self) -> usize {
        self.0.len()
    }

    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::SeqCst)
    }

    fn store(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::SeqCst);
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.0[index].compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
}

struct SlotsBelow(u16);

impl Living for SlotsBelow {
    fn holds(&self, token: HolderToken) -> bool {
        self.waits(token.process())
    }

    fn waits(&self, slot: ProcessSlot) -> bool {
        slot.0 < self.0
    }
}

fn token(slot: u16) -> HolderToken {
    HolderToken::new(ProcessSlot(slot), 1)
}

fn queue(memory: &Memory) -> HostQueue<'_, Memory> {
    HostQueue::new(memory, LockId(4), WORDS)
}

/// Looks once and uses the lock, or withdraws. Returns what turn it had.
fn look_once(memory: &Memory, slot: u16, place: Place, inside: &AtomicBool) -> Option<Turn> {
    let (queue, me) = (queue(memory), token(slot));
    let turn = queue.look(me, place, &SlotsBelow(DEAD), true);
    if turn.is_some() {
        assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
        inside.store(false, Ordering::SeqCst);
        queue.release(me);
    } else if queue.withdraw(me) {
        queue.release(me);
    }
    turn
}

fn nothing_is_left(memory: &Memory) {
    assert_eq!(memory.load(WORDS.owner), 0, "released by somebody");
    assert!((0..2).all(|slot| memory.load(WORDS.waits + slot) == 0), "nobody alive waits");
}

const PASSED_ONCE: Cohort = Cohort { passes: 1, elapsed_us: 7, after_death: true };

#[test]
fn what_is_passed_is_taken_over_or_released() {
    loom::model(|| {
        let memory = Arc::new(Memory::new());
        let inside = Arc::new(AtomicBool::new(false));
        memory.store(WORDS.owner, token(0).word());
        let place = queue(&memory).enter(token(1));
        let waiter = {
            let (memory, inside) = (Arc::clone(&memory), Arc::clone(&inside));
            thread::spawn(move || look_once(&memory, 1, place, &inside))
        };
        if !queue(&memory).pass(token(0), PASSED_ONCE) {
            assert!(!inside.load(Ordering::SeqCst), "still ours");
            queue(&memory).release(token(0));
        }
        let turn = waiter.join().unwrap();
        let passed = Turn::Passed(PASSED_ONCE);
        assert!([None, Some(Turn::Fresh), Some(passed)].contains(&turn), "{turn:?}");
        nothing_is_left(&memory);
    });
}

#[test]
fn the_agent_and_a_waiter_do_not_both_take_what_was_passed() {
    loom::model(|| {
        let memory = Arc::new(Memory::new());
        let inside = Arc::new(AtomicBool::new(false));
        memory.store(WORDS.owner, Owner::Passed(Cohort::default()).word());
        let place = queue(&memory).enter(token(1));
        let waiter = {
            let (memory, inside) = (Arc::clone(&memory), Arc::clone(&inside));
            thread::spawn(move || look_once(&memory, 1, place, &inside))
        };
        if queue(&memory).take_abandoned(token(0), &SlotsBelow(DEAD)).is_some() {
            assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
            inside.store(false, Ordering::SeqCst);
            queue(&memory).release(token(0));
        }
        waiter.join().unwrap();
        nothing_is_left(&memory);
    });
}

#[test]
fn who_came_first_is_first() {
    loom::model(|| {
        let memory = Arc::new(Memory::new());
        let inside = Arc::new(AtomicBool::new(false));
        let first_done = Arc::new(AtomicBool::new(false));
        let place = queue(&memory).enter(token(0));
        let second = {
            let (memory, inside) = (Arc::clone(&memory), Arc::clone(&inside));
            let first_done = Arc::clone(&first_done);
            thread::spawn(move || {
                let place = queue(&memory).enter(token(1));
                let me = token(1);
                if queue(&memory).look(me, place, &SlotsBelow(DEAD), true).is_some() {
                    assert!(first_done.load(Ordering::SeqCst), "the first was overtaken");
                    assert!(!inside.load(Ordering::SeqCst), "two are inside");
                    queue(&memory).release(me);
                } else {
                    assert!(!queue(&memory).withdraw(me), "nothing was passed");
                }
            })
        };
        let turn = queue(&memory).look(token(0), place, &SlotsBelow(DEAD), true);
        assert_eq!(turn, Some(Turn::Fresh), "nobody is before the first");
        inside.store(true, Ordering::SeqCst);
        first_done.store(true, Ordering::SeqCst);
        inside.store(false, Ordering::SeqCst);
        queue(&memory).release(token(0));
        second.join().unwrap();
        nothing_is_left(&memory);
    });
}

#[test]
fn a_dead_owner_is_recovered_from_once_and_a_dead_waiter_is_skipped() {
    loom::model(|| {
        let memory = Arc::new(Memory::new());
        let inside = Arc::new(AtomicBool::new(false));
        memory.store(WORDS.owner, token(DEAD).word());
        let dead = queue(&memory).enter(token(DEAD));
        assert_eq!(dead.ticket, 1, "before everybody else");
        let waiter = {
            let (memory, inside) = (Arc::clone(&memory), Arc::clone(&inside));
            thread::spawn(move || {
                let place = queue(&memory).enter(token(1));
                look_once(&memory, 1, place, &inside)
            })
        };
        let agent = queue(&memory).take_abandoned(token(0), &SlotsBelow(DEAD)).is_some();
        if agent {
            assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
            inside.store(false, Ordering::SeqCst);
            queue(&memory).release(token(0));
        }
        let turn = waiter.join().unwrap();
        assert_eq!(agent, turn != Some(Turn::Recovered), "exactly one recovers: {turn:?}");
        nothing_is_left(&memory);
    });
}
