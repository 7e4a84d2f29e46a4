//! The queue under a clock that the test moves.

use proptest::prelude::*;

use super::*;

const MIB: u32 = 1 << 20;
/// A device is believed to read 1 GiB/s at first: so many microseconds for a MiB, latency aside.
const MIB_US: u64 = 976;
const LATENCY_US: u64 = 1_000;

fn restore(name: u32, deadline_us: u64) -> Queued<u32> {
    Queued { restore: name, bytes: MIB, deadline_us, recompute_us: None, ahead: false }
}

#[test]
fn the_first_deadline_is_read_first() {
    let mut queue = RestoreQueue::new(2, 10);
    for (name, deadline) in [(1, 90_000), (2, 30_000), (3, 60_000), (4, 30_000)] {
        queue.offer(0, restore(name, deadline)).unwrap();
    }
    let Some(Next::Begin(second, 2)) = queue.next(0) else { panic!("the first deadline") };
    assert!(matches!(queue.next(0), Some(Next::Begin(_, 4))), "of two the one that was first");
    assert_eq!(queue.next(0), None, "two are under way");
    assert_eq!(queue.len(), (2, 2));
    queue.ended(3_000, second, true);
    assert!(matches!(queue.next(3_000), Some(Next::Begin(_, 3))));
    queue.ended(3_000, second, true);
    assert_eq!(queue.len(), (1, 2), "what is over ends once");
}

#[test]
fn what_would_be_late_is_refused_before_it_waits() {
    let mut queue = RestoreQueue::new(1, 100);
    let refused = queue.offer(0, restore(0, 1_500)).unwrap_err();
    assert!(matches!(refused, (0, NotQueued::TooLate { wait_us }) if wait_us > LATENCY_US));
    for name in 0..10 {
        queue.offer(0, restore(name, 1_000_000)).unwrap();
    }
    // Ten are before this one.
    let late = LATENCY_US + 10 * MIB_US;
    assert!(queue.offer(0, restore(11, 1_000_000 + late)).is_ok());
    let mut queue = RestoreQueue::new(1, 100);
    for name in 0..10 {
        queue.offer(0, restore(name, 20_000)).unwrap();
    }
    assert!(queue.offer(0, restore(11, 20_001)).is_err() || queue.wait(20_001) <= 20_001);
    assert!(queue.offer(0, Queued { bytes: 16 * MIB, ..restore(12, 22_000) }).is_err());
    // One with an early deadline goes before the others, unless they would be late then.
    assert!(queue.offer(0, restore(13, 3_000)).is_ok());
    let big = Queued { bytes: 12 * MIB, ..restore(14, 19_000) };
    assert!(queue.offer(0, big).is_err(), "it makes ten others late");
}

#[test]
fn a_prefetch_keeps_no_other_restore_out() {
    let prefetch = |name, deadline| Queued { ahead: true, ..restore(name, deadline) };
    let mut queue = RestoreQueue::new(1, 10);
    for name in 0..5 {
        queue.offer(0, prefetch(name, 8_000)).unwrap();
    }
    let busy = queue.offer(0, prefetch(5, 90_000)).unwrap_err();
    assert_eq!(busy, (5, NotQueued::Busy(5)), "prefetches have half of the queue");
    // The last of the prefetches is late then, and this one is not.
    queue.offer(0, Queued { bytes: 4 * MIB, ..restore(6, 7_000) }).unwrap();
    assert!(matches!(queue.next(0), Some(Next::Begin(_, 6))));
    let mut queue = RestoreQueue::new(1, 10);
    queue.offer(0, restore(0, 8_000)).unwrap();
    let big = Queued { bytes: 7 * MIB, ..prefetch(1, 7_900) };
    assert!(queue.offer(0, big).is_err(), "it makes a restore late");
    queue.offer(0, prefetch(2, 8_000)).unwrap();
    let big = Queued { bytes: 6 * MIB, ..prefetch(3, 7_900) };
    assert!(queue.offer(0, big).is_err(), "it makes a prefetch late");
}

impl RestoreQueue<u32> {
    fn len(&self) -> (usize, usize) {
        (self.waiting.len(), self.under_way.len())
    }

    fn wait(&self, deadline_us: u64) -> u64 {
        let before = self.waiting.range(..=(deadline_us, u64::MAX)).map(|(_, it)| it.bytes);
        self.speed.wait_us(before.map(u64::from).sum::<u64>() + u64::from(MIB))
    }
}

#[test]
fn a_restore_that_takes_longer_than_computing_is_refused() {
    let mut queue = RestoreQueue::new(1, 100);
    let cheap = Queued { recompute_us: Some(500), ..restore(1, 1_000_000) };
    assert!(matches!(queue.offer(0, cheap), Err((1, NotQueued::TooLate { .. }))));
    let dear = Queued { recompute_us: Some(50_000), ..restore(2, 1_000_000) };
    assert_eq!(queue.offer(0, dear), Ok(()));
}

#[test]
fn a_full_queue_refuses_at_once() {
    let mut queue = RestoreQueue::new(1, 2);
    queue.offer(0, restore(1, 1_000_000)).unwrap();
    queue.offer(0, restore(2, 1_000_000)).unwrap();
    assert_eq!(queue.offer(0, restore(3, 1_000_000)), Err((3, NotQueued::Busy(2))));
}

#[test]
fn what_is_late_is_not_begun() {
    let mut queue = RestoreQueue::new(1, 10);
    queue.offer(0, restore(1, 10_000)).unwrap();
    queue.offer(0, restore(2, 12_000)).unwrap();
    queue.offer(0, restore(3, 90_000)).unwrap();
    let Some(Next::Begin(_, 1)) = queue.next(0) else { panic!() };
    // Also while the device has enough to do: the asker is told.
    assert_eq!(queue.next(12_000), Some(Next::Late(2)));
    assert_eq!(queue.next(12_000), None);
    assert_eq!(queue.drain(), [3], "the other has begun");
    assert_eq!(queue.len(), (0, 1));
    assert_eq!(queue.began_before(1), [1]);
    assert_eq!(queue.began_before(0), [0; 0]);
}

/// AGENT-Q5: restores are refused while the device is believed to be slow, and not for ever.
#[test]
fn a_device_that_was_slow_is_tried_again() {
    let mut queue = RestoreQueue::new(1, 100);
    let mut now = 0;
    for name in 0..30 {
        let Ok(()) = queue.offer(now, restore(name, now + 20_000_000)) else { break };
        let Some(Next::Begin(number, _)) = queue.next(now) else { panic!() };
        now += 5_000_000;
        queue.ended(now, number, true);
    }
    assert!(queue.offer(now, restore(100, now + 100_000)).is_err(), "it is slow");
    let (mut begun, mut refused) = (0, 0);
    for name in 200..4_200 {
        now += 10_000;
        if queue.offer(now, restore(name, now + 100_000)).is_err() {
            refused += 1;
            continue;
        }
        let Some(Next::Begin(number, _)) = queue.next(now) else { panic!() };
        begun += 1;
        now += 2_000;
        queue.ended(now, number, true);
    }
    assert!(begun > 2_000 && refused > 100, "{begun} begun, {refused} refused");
    // What no device can do is refused at any time.
    now += 10_000_000;
    assert!(queue.offer(now, restore(1, now + 1_000)).is_err());
    let cheap = Queued { recompute_us: Some(500), ..restore(2, now + 1_000_000) };
    assert!(queue.offer(now, cheap).is_err());
}

proptest! {
    /// On a device that is as fast as it is believed to be, nothing that was queued is late.
    #[test]
    fn what_is_queued_is_in_time(
        offers in prop::collection::vec((0u64..5_000, 1_000u64..80_000, 1u32..4), 1..60),
    ) {
        let mut queue = RestoreQueue::new(1, 1_000);
        let (mut now, mut free_at, mut reading) = (0u64, 0u64, None);
        let mut deadlines = std::collections::HashMap::new();
        let mut arrivals = offers.into_iter().enumerate().peekable();
        let mut arrival_at = arrivals.peek().map(|(_, (gap, ..))| *gap);
        loop {
            let step = match (reading.is_some().then_some(free_at), arrival_at) {
                (Some(free), Some(arrival)) => free.min(arrival),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => break,
            };
            now = now.max(step);
            if let Some((number, name)) = reading.filter(|_| free_at <= now) {
                queue.ended(now, number, false);
                prop_assert!(now <= deadlines[&name], "{name} ended at {now}");
                reading = None;
            }
            if arrival_at.is_some_and(|at| at <= now) {
                let (name, (_, wait, mib)) = arrivals.next().unwrap();
                let queued = Queued { bytes: mib * MIB, ..restore(u32::try_from(name).unwrap(), now + wait) };
                if queue.offer(now, queued).is_ok() {
                    deadlines.insert(u32::try_from(name).unwrap(), now + wait);
                }
                arrival_at = arrivals.peek().map(|(_, (gap, ..))| now + gap);
            }
            while reading.is_none() {
                match queue.next(now) {
                    Some(Next::Begin(number, name)) => {
                        let bytes = queue.under_way[&number].bytes;
                        reading = Some((number, name));
                        // Reads follow one another: the latency is that of the first.
                        free_at = now + u64::from(bytes) * 1_000_000 / (1 << 30);
                    }
                    Some(Next::Late(name)) => prop_assert!(false, "{name} was never begun"),
                    None => break,
                }
            }
        }
    }
}
