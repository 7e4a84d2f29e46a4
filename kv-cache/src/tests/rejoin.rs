//! An orphan that comes back while its reclaimer waits for a lock does not wait for as long as
//! that.

use cxl_shm::layout::CHUNK_LOCK;

use super::orphan::{ORPHAN, Off, declare_dead, is_recovered, there};
use super::*;
use crate::heap::SlotSize;

/// For which a publish of the reclaimer waits: longer than anybody waits for a reclaimer.
const HOUR_MS: u64 = 3_600_000;

/// Lets the orphan join at the reclaimer's third pause.
struct ComesBack<'c, 'm> {
    clock: &'c ServingClock<'m>,
    rig: &'c Rig,
    orphan: RefCell<Option<TestMember>>,
    pauses: Cell<u32>,
}

impl Clock for ComesBack<'_, '_> {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn pause(&self, tries: u32) {
        self.clock.pause(tries);
        self.pauses.set(self.pauses.get() + 1);
        assert!(
            self.pauses.get() < 1000,
            "the reclaimer waits for the lock, and the orphan for it"
        );
        if self.pauses.get() == 3 {
            *self.orphan.borrow_mut() = Some(self.rig.join(ORPHAN.0));
        }
    }
}

/// The orphan has four blocks in a chunk, and a chunk without blocks if it `has_empty`, which is
/// the one that goes.
fn comes_back(has_empty: bool) {
    let rig = Rig::new(3, 32, 16);
    let wall = rig.rack.clock(0);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    {
        let clock = rig.serve(&[&first, &second, &third]);
        let b = Cache::attach(&second, &clock).unwrap();
        for number in 1..=4 {
            publish(&b, &clock, number);
        }
        if has_empty {
            let size = SlotSize::for_block(BLOCK_BYTES, CHUNK_BYTES).unwrap();
            second.allocate_chunk(&clock, CHUNK_TIMEOUT_MS, size.purpose()).unwrap();
        }
    }
    rig.kill(&second);
    let clock = rig.serve(&[&first, &third]);
    declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);
    let a = Cache::attach(&first, &clock).unwrap();
    let chunks = first.chunks_of(ORPHAN).len();
    let held = third.lock_shared(CHUNK_LOCK, &clock, CHUNK_TIMEOUT_MS).unwrap();
    let comes =
        ComesBack { clock: &clock, rig: &rig, orphan: RefCell::default(), pauses: Cell::new(0) };
    assert!(!a.empty_an_orphan(&comes, HOUR_MS));
    drop(held);
    let again = comes.orphan.into_inner().unwrap();
    assert_eq!(again.still_guarded(), None);
    let b = Cache::attach(&again, &clock).unwrap();
    assert_eq!(there(&b, 1..=4), [1, 2, 3, 4], "nothing was evicted in vain");
    assert_eq!(again.owned_chunks().len(), chunks);
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
}

#[test]
fn a_reclaimer_that_waits_to_evict_stops_when_its_orphan_comes_back() {
    comes_back(false);
}

#[test]
fn a_reclaimer_that_waits_to_give_a_chunk_back_stops_when_its_orphan_comes_back() {
    comes_back(true);
}
