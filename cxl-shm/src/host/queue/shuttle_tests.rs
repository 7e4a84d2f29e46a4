//! The host tier as a whole: threads that acquire, pass on, withdraw and die at any moment, an
//! agent that cleans up, and a stand-in for the shared tier that says who should have released it.

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use super::*;

const WORDS: QueueWords = QueueWords { owner: 0, tickets: 1, places: 2, waits: 3 };
const THREADS: u16 = 4;
/// The agent's place in the registry.
const AGENT: u16 = THREADS;
const ROUNDS: u32 = 3;
const ITERATIONS: usize = 1500;
const PCT_DEPTH: usize = 4;

#[derive(Debug)]
struct Memory(Vec<AtomicU64>);

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

/// One host.
struct Host {
    memory: Memory,
    dead: Vec<AtomicBool>,
    /// The host holds the shared lock: what the lock state says in the real tier.
    shared: AtomicBool,
    /// A thread that lives is inside.
    inside: AtomicBool,
    /// The threads that entered the queue and had neither their turn nor left: thread and place.
    waiting: Mutex<Vec<(u16, Place)>>,
}

impl Living for Host {
    fn holds(&self, token: HolderToken) -> bool {
        self.waits(token.process())
    }

    fn waits(&self, slot: ProcessSlot) -> bool {
        !self.dead[usize::from(slot.0)].load(Ordering::SeqCst)
    }
}

fn token(slot: u16) -> HolderToken {
    HolderToken::new(ProcessSlot(slot), 1)
}

/// One in `n`.
fn one_in(n: u32) -> bool {
    thread_rng().gen_range(0..n) == 0
}

impl Host {
    fn new() -> Self {
        let memory = Memory((0..4 + THREADS).map(|_| AtomicU64::new(0)).collect());
        memory.store(WORDS.places, u64::from(THREADS) + 1);
        Self {
            memory,
            dead: (0..=THREADS).map(|_| AtomicBool::new(false)).collect(),
            shared: AtomicBool::new(false),
            inside: AtomicBool::new(false),
            waiting: Mutex::new(Vec::new()),
        }
    }

    fn queue(&self) -> HostQueue<'_, Memory> {
        HostQueue::new(&self.memory, LockId(0), WORDS)
    }

    fn left(&self, slot: u16) {
        self.waiting.lock().unwrap().retain(|(waiter, _)| *waiter != slot);
    }

    fn die(&self, slot: u16) {
        self.left(slot);
        self.dead[usize::from(slot)].store(true, Ordering::SeqCst);
    }

    /// Gives the shared lock back, then the host's turn.
    fn release(&self, slot: u16) {
        self.shared.store(false, Ordering::SeqCst);
        self.queue().release(token(slot));
    }

    /// What a thread does once; false when it has died.
    fn round(&self, slot: u16) -> bool {
        let (queue, me) = (self.queue(), token(slot));
        let before = self.waiting.lock().unwrap().clone();
        let place = queue.enter(me);
        self.waiting.lock().unwrap().push((slot, place));
        let tries = thread_rng().gen_range(1..12);
        let mut looks = 0;
        let turn = loop {
            if one_in(25) {
                self.die(slot);
                return false;
            }
            match queue.look(me, place, self, looks % 2 == 1) {
                Some(turn) => break turn,
                None if looks == tries => {
                    self.left(slot);
                    if queue.withdraw(me) {
                        assert!(self.shared.load(Ordering::SeqCst), "what was passed is held");
                        self.release(slot);
                    }
                    return true;
                }
                None => thread::yield_now(),
            }
            looks += 1;
        };
        self.left(slot);
        let overtaken: Vec<_> = {
            let waiting = self.waiting.lock().unwrap();
            before.into_iter().filter(|waiter| waiting.contains(waiter)).collect()
        };
        assert_eq!(overtaken, [], "waited before {slot} came, and wait still");
        assert!(!self.inside.load(Ordering::SeqCst), "two are inside");
        let mut cohort = Cohort::default();
        match turn {
            Turn::Fresh => assert!(!self.shared.load(Ordering::SeqCst), "released by the last"),
            Turn::Passed(passed) => {
                assert!(self.shared.load(Ordering::SeqCst), "passed, so held");
                cohort = passed;
            }
            // Redo, close, release; then from the start.
            Turn::Recovered | Turn::GivenUp { .. } => {
                self.shared.store(false, Ordering::SeqCst);
            }
        }
        if one_in(10) {
            self.die(slot);
            return false;
        }
        self.shared.store(true, Ordering::SeqCst);
        if one_in(10) {
            self.die(slot);
            return false;
        }
        self.inside.store(true, Ordering::SeqCst);
        thread::yield_now();
        self.inside.store(false, Ordering::SeqCst);
        let next = Cohort {
            passes: cohort.passes + 1,
            elapsed_us: cohort.elapsed_us + 5,
            after_death: cohort.after_death,
        };
        assert!(next.passes <= 3, "passed without bound");
        if next.passes > 2 || !queue.pass(me, next) {
            self.release(slot);
        }
        true
    }

    /// A beat of the agent.
    fn beat(&self) {
        if self.queue().take_abandoned(token(AGENT), self).is_some() {
            assert!(!self.inside.load(Ordering::SeqCst), "taken from somebody who lives");
            self.release(AGENT);
        }
    }
}

fn scenario() {
    let host = Arc::new(Host::new());
    let threads: Vec<_> = (0..THREADS)
        .map(|slot| {
            let host = Arc::clone(&host);
            thread::spawn(move || (0..ROUNDS).all(|_| host.round(slot)))
        })
        .collect();
    let agent = {
        let host = Arc::clone(&host);
        thread::spawn(move || {
            for _ in 0..3 {
                host.beat();
                thread::yield_now();
            }
        })
    };
    for thread in threads {
        thread.join().unwrap();
    }
    agent.join().unwrap();
    // One more beat ends whatever the dead left; among the living nothing was left.
    host.beat();
    assert_eq!(host.memory.load(WORDS.owner), 0, "the lock is stranded");
    assert!(!host.shared.load(Ordering::SeqCst), "the shared lock is stranded");
}

#[test]
fn in_random_schedules() {
    shuttle::check_random(scenario, ITERATIONS);
}

#[test]
fn in_schedules_with_few_preemptions() {
    shuttle::check_pct(scenario, ITERATIONS, PCT_DEPTH);
}
