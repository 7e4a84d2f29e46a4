//! Waiting for a host lock: first come, first served (LOCK-Q5, LOCK-Q6 in `queue`).

use super::lock::HolderToken;
use super::queue::{HostQueue, Living, Place, Turn};
use super::stopped_watch::StoppedWatch;
use crate::clock::Clock;
use crate::fabric::HostMemory;

/// A waiter's place; given up when a panic ends the wait.
struct Waiting<'q, 't, H: HostMemory> {
    queue: &'q HostQueue<'t, H>,
    me: HolderToken,
    place: Place,
    has_turn: bool,
}

impl<H: HostMemory> Drop for Waiting<'_, '_, H> {
    fn drop(&mut self) {
        if !self.has_turn {
            self.queue.leave(self.me);
        }
    }
}

/// Waits in the queue of a host lock until it is held. Returns whether the holder before died or
/// panicked inside (LOCK-H2).
pub(crate) fn wait_for_host_lock<H: HostMemory>(
    queue: &HostQueue<'_, H>,
    me: HolderToken,
    living: &impl Living,
    clock: &impl Clock,
) -> bool {
    let recovered = wait(queue, me, living, clock, None);
    recovered.expect("a wait without an end ends with a turn")
}

/// As [`wait_for_host_lock`], and leaves the queue with `None` at `until_ms` of `clock`.
pub(crate) fn wait_for_host_lock_until<H: HostMemory>(
    queue: &HostQueue<'_, H>,
    me: HolderToken,
    living: &impl Living,
    clock: &impl Clock,
    until_ms: u64,
) -> Option<bool> {
    wait(queue, me, living, clock, Some(until_ms))
}

fn wait<H: HostMemory>(
    queue: &HostQueue<'_, H>,
    me: HolderToken,
    living: &impl Living,
    clock: &impl Clock,
    until_ms: Option<u64>,
) -> Option<bool> {
    let mut waiting = Waiting { queue, me, place: queue.enter(me), has_turn: false };
    let mut before = StoppedWatch::default();
    for tries in 0u32.. {
        queue.stay(me, waiting.place);
        let is_over = until_ms.is_some_and(|until_ms| clock.now_ms() >= until_ms);
        // The first look and the last one, too: nobody waits for a holder that is dead already, and
        // the dead keep a lock from nobody, however short the time-out.
        let thorough = tries == 0 || is_over || is_thorough(tries + 1);
        if let Some(turn) = queue.look(me, waiting.place, living, thorough) {
            waiting.has_turn = true;
            return Some(turn != Turn::Fresh);
        }
        if is_over {
            return None;
        }
        before.look(queue, me, waiting.place, living, thorough, || clock.now_ms());
        clock.pause(tries.min(u32::MAX - 2));
    }
    unreachable!("a wait ends with a turn")
}

/// Looks at the host's queue before the first question whether the thread in the way still lives,
/// and at most between two such questions: each is a system call, and mostly the answer is yes.
const LOOKS_UNTIL_THOROUGH: u32 = 16;

const LOOKS_BETWEEN_MAX: u32 = 256;

/// Whether a waiter's look of this number, from 1 on, asks which threads live.
pub(crate) fn is_thorough(looks: u32) -> bool {
    looks.is_multiple_of(LOOKS_BETWEEN_MAX)
        || looks >= LOOKS_UNTIL_THOROUGH && looks.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::lock::HostLock;
    use crate::host::process::ProcessSlot;
    use crate::host::queue::{QueueWords, STOPPED_MS};
    use crate::units::LockId;
    use crate::verify::fixture::HandClock;
    use crate::verify::simulated::{SimulatedHostMemory, SimulatedRack};

    const WORDS: QueueWords = QueueWords { owner: 0, tickets: 1, places: 2, waits: 3 };
    /// Registry slots from here on are of the dead.
    const DEAD: u16 = 8;

    struct Others;

    impl Living for Others {
        fn holds(&self, token: HolderToken) -> bool {
            self.waits(token.process())
        }

        fn waits(&self, slot: ProcessSlot) -> bool {
            slot.0 < DEAD
        }
    }

    fn memory() -> SimulatedHostMemory {
        let memory = SimulatedRack::sticky(1, 4096).host_memory(0, 3 + 16);
        memory.store(WORDS.places, 16);
        memory
    }

    fn token(slot: u16) -> HolderToken {
        HolderToken::new(ProcessSlot(slot), 1)
    }

    fn queue(memory: &SimulatedHostMemory) -> HostQueue<'_, SimulatedHostMemory> {
        HostQueue::new(memory, LockId(2), WORDS)
    }

    /// Waits as thread 1 while `acts` happens. Returns after how many pauses it had its turn, and
    /// whether the holder before was dead.
    fn wait(memory: &SimulatedHostMemory, mut acts: impl FnMut(u64)) -> (u64, bool) {
        let clock = HandClock::with(1, |pause| {
            assert!(pause < 1000, "waits for ever");
            acts(pause);
        });
        let recovered = wait_for_host_lock(&queue(memory), token(1), &Others, &clock);
        (clock.pauses(), recovered)
    }

    #[test]
    fn who_releases_a_lock_and_wants_it_again_does_not_overtake_who_waits() {
        let memory = memory();
        let queue = queue(&memory);
        assert!(queue.take_unwaited(token(0)));
        let publisher = |pause| {
            if pause == 3 {
                queue.release(token(0));
                assert!(!queue.take_unwaited(token(0)), "thread 1 waits");
            }
        };
        assert_eq!(wait(&memory, publisher), (3, false));
        queue.release(token(1));
        assert!(queue.take_unwaited(token(0)), "nobody waits any more");
    }

    #[test]
    fn turns_are_had_in_the_order_of_arrival() {
        let memory = memory();
        let queue = queue(&memory);
        assert!(queue.take_unwaited(token(0)));
        let before = queue.enter(token(2));
        let others = |pause| match pause {
            2 => queue.release(token(0)),
            4 => assert_eq!(queue.look(token(2), before, &Others, false), Some(Turn::Fresh)),
            6 => queue.release(token(2)),
            _ => {}
        };
        assert_eq!(wait(&memory, others), (6, false));
    }

    #[test]
    fn dead_waiters_are_skipped_and_a_dead_holder_is_recovered_from() {
        let memory = memory();
        let queue = queue(&memory);
        memory.store(WORDS.owner, token(DEAD).word());
        for slot in [DEAD + 1, DEAD + 2] {
            let _ = queue.enter(token(slot));
        }
        let (pauses, recovered) = wait(&memory, |_| {});
        assert!(recovered && pauses < 100, "{pauses}");
    }

    #[test]
    fn a_stopped_waiter_costs_the_others_one_wait_and_has_its_turn_when_it_goes_on() {
        let memory = memory();
        let queue = queue(&memory);
        assert!(queue.take_unwaited(token(0)));
        let stopped = queue.enter(token(2));
        let (pauses, _) = wait(&memory, |pause| {
            if pause == 1 {
                queue.release(token(0));
            }
        });
        assert!((STOPPED_MS..2 * STOPPED_MS).contains(&pauses), "{pauses}");
        queue.release(token(1));
        // Nobody waits for it a second time.
        assert!(queue.take_unwaited(token(0)));
        // It continues, and is before all that came later.
        queue.stay(token(2), stopped);
        let late = queue.enter(token(3));
        queue.release(token(0));
        assert!(!queue.take_unwaited(token(0)));
        assert_eq!(queue.look(token(3), late, &Others, true), None);
        assert_eq!(queue.look(token(2), stopped, &Others, true), Some(Turn::Fresh));
    }

    #[test]
    fn a_stopped_waiter_does_not_keep_what_a_dead_or_an_unwinding_holder_left() {
        for panics in [false, true] {
            let memory = memory();
            let queue = queue(&memory);
            assert!(queue.take_unwaited(token(0)));
            let stopped = queue.enter(token(2));
            let (pauses, recovered) = wait(&memory, |pause| match (pause, panics) {
                (1, true) => HostLock::new(&memory, WORDS.owner).abandon(token(0)),
                (1, false) => memory.store(WORDS.owner, token(DEAD).word()),
                _ => {}
            });
            assert!(recovered && pauses < 4 * STOPPED_MS, "{pauses}");
            queue.release(token(1));
            queue.stay(token(2), stopped);
            assert_eq!(queue.look(token(2), stopped, &Others, true), Some(Turn::Fresh));
        }
    }

    #[test]
    fn a_lock_that_its_holder_gave_up_unwinding_is_taken_and_told_of() {
        let memory = memory();
        HostLock::new(&memory, WORDS.owner).abandon(token(0));
        assert!(queue(&memory).take_unwaited(token(0)), "nobody held it");
        HostLock::new(&memory, WORDS.owner).abandon(token(0));
        assert!(!queue(&memory).take_unwaited(token(0)));
        assert_eq!(wait(&memory, |_| {}), (0, true));
    }

    #[test]
    fn a_wait_that_a_panic_ends_leaves_nothing_in_the_queue() {
        let memory = memory();
        let queue = queue(&memory);
        assert!(queue.take_unwaited(token(0)));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait(&memory, |pause| assert!(pause < 5, "it has enough"))
        }));
        assert!(ended.is_err());
        queue.release(token(0));
        assert!(queue.take_unwaited(token(0)));
    }
}
