//! Holds: what is held stays, for as long as it is held and no longer.

use std::sync::Arc;

use super::*;
use crate::BlockKey;
use crate::format::ReaderWord;
use crate::hold::HeldBlock;
use crate::process::ProcessState;
use crate::upkeep::Watermarks;

/// Everything that can be evicted of a node's blocks is; returns the numbers of those that stay.
fn squeeze(owner: &TestCache<'_>, clock: &impl Clock, numbers: &[u8]) -> Vec<u8> {
    for _ in 0..4 {
        owner.evict(clock, None, usize::MAX);
    }
    numbers.iter().copied().filter(|number| find(owner, *number).is_some()).collect()
}

/// The word in which the host of `reader` holds and marks a block.
fn reader_word(reader: &TestCache<'_>, handle: Handle) -> ReaderWord {
    let reader_words = reader.areas().own_reader_words(reader.member().area());
    reader_words.own(reader.member().fabric(), handle.owner(), handle.slot())
}

fn wait_ms(clock: &impl Clock, ms: u64) {
    let until_ms = clock.now_ms() + ms;
    while clock.now_ms() < until_ms {
        clock.pause(1024);
    }
}

#[test]
fn what_is_held_stays_until_it_is_released() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        for number in 1..=4 {
            publish(a, clock, number);
        }
        let (theirs, ours) = (hold(b, clock, 2).unwrap(), hold(a, clock, 3).unwrap());
        assert_eq!(squeeze(a, clock, &[1, 2, 3, 4]), [2, 3]);
        assert!(fetch(b, 2, theirs.handle()).is_ok() && find_and_fetch(b, 3));
        assert_eq!((find(b, 1), find(b, 4)), (None, None));
        b.release(clock, vec![theirs]);
        assert_eq!(squeeze(a, clock, &[2, 3]), [3]);
        // Dropped, it is released by the next holder of the lock.
        drop(ours);
        assert_eq!(squeeze(a, clock, &[3]), [0; 0]);
        assert_eq!(a.heap_use(clock).blocks, 0);
        let (owner, reader) = (a.process_state().metrics(), b.process_state().metrics());
        assert_eq!((owner.evicted_blocks, reader.held_blocks, reader.released_blocks), (4, 1, 1));
    });
}

#[test]
fn a_forked_child_that_drops_a_hold_waits_for_no_lock_of_its_parent() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |a, _, clock| {
        publish(a, clock, 1);
        let held = hold(a, clock, 1).unwrap();
        let state = Arc::new(ProcessState::in_child(*a.areas()));
        let copy = HeldBlock::new(held.block(), a.member().token(), Arc::clone(&state));
        // As the fork found it: the thread that has it is not in the child.
        let locked = state.released.lock().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                drop(copy);
                sender.send(()).unwrap();
            });
            let ended = receiver.recv_timeout(std::time::Duration::from_secs(10));
            drop(locked);
            ended.unwrap();
        });
    });
}

#[test]
fn a_hold_of_what_is_gone_is_a_miss_and_leaves_nothing_behind() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (1..=4).map(|number| publish(a, clock, number)).collect();
        (1..=4).for_each(|number| assert!(find(b, number).is_some()));
        let now_ms = clock.now_ms();
        a.locked(clock, |heap| {
            heap.evict_all(&mut a.process_state().order(), now_ms, &[handles[0].slot()])
        });
        a.retire(clock, &handles[1..2]);
        let colliding = BlockKey::new(key(4).index(), 8);
        let tries = [
            (wanted(1, handles[0]), Miss::Evicted),
            (wanted(2, handles[1]), Miss::Absent),
            (wanted(9, handles[2]), Miss::WrongKey),
            (Wanted { key: colliding, ..wanted(4, handles[3]) }, Miss::KeyCollision),
            (wanted(1, Handle::new(handles[0].owner(), 32, 1)), Miss::Malformed),
        ];
        let held = b.hold(clock, &tries.map(|(wanted, _)| wanted), HOLD_MS);
        for (outcome, (_, miss)) in held.into_iter().zip(tries) {
            assert_eq!(outcome.unwrap_err(), HoldError::Miss(miss));
            assert_eq!(b.process_state().metrics().misses(miss), 1, "{miss}");
        }
        b.release(clock, Vec::new());
        for handle in &handles {
            assert!(!reader_word(b, *handle).held);
        }
        assert_eq!(b.process_state().metrics().refused_holds, 5);
        assert_eq!(squeeze(a, clock, &[3, 4]), [0; 0]);
    });
}

#[test]
fn threads_and_processes_of_a_host_share_a_reader_word() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let other = rig.join(1);
        let beside = Cache::attach(&other, clock).unwrap();
        let first = hold(b, clock, 1).unwrap();
        let again = hold(b, clock, 1).unwrap();
        let second = hold(&beside, clock, 1).unwrap();
        for held in [(b, first), (&beside, second)] {
            let (cache, held) = held;
            cache.release(clock, vec![held]);
            assert!(reader_word(b, handle).held, "others hold it still");
            assert_eq!(squeeze(a, clock, &[1]), [1]);
        }
        // A use does not take the hold away, nor does a hold hide a use.
        publish(a, clock, 2);
        assert!(find_and_fetch(&beside, 1));
        beside.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        let used = reader_word(b, handle);
        assert!(used.held && used.tick > 0);
        assert_eq!(squeeze(a, clock, &[1]), [1]);
        b.release(clock, vec![again]);
        assert_eq!(reader_word(b, handle).tick, used.tick);
        assert_eq!(squeeze(a, clock, &[1]), [0; 0]);
    });
}

#[test]
fn holds_die_with_their_process() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        publish(a, clock, 2);
        let other = rig.join(1);
        {
            let beside = Cache::attach(&other, clock).unwrap();
            std::mem::forget((hold(&beside, clock, 1).unwrap(), hold(&beside, clock, 2).unwrap()));
        }
        let shared = hold(b, clock, 2).unwrap();
        assert_eq!(squeeze(a, clock, &[1, 2]), [1, 2]);
        rig.kill(&other);
        crate::reclaim_dead_processes(b.member(), clock);
        assert!(!reader_word(b, handle).held);
        assert_eq!(squeeze(a, clock, &[1, 2]), [2], "the other one is held by a living process");
        b.release(clock, vec![shared]);
        assert_eq!(squeeze(a, clock, &[2]), [0; 0]);
    });
}

#[test]
fn holds_of_a_process_that_left_are_dropped() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let other = rig.join(1);
        {
            let beside = Cache::attach(&other, clock).unwrap();
            std::mem::forget(hold(&beside, clock, 1).unwrap());
        }
        assert_eq!(other.leave(), LeaveOutcome::OthersRemain);
        assert!(reader_word(b, handle).held);
        b.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        assert!(!reader_word(b, handle).held);
    });
}

#[test]
fn holds_die_with_their_host() {
    for left in [false, true] {
        let rig = Rig::new(2, 32, 16);
        let (first, second) = (rig.join(0), rig.join(1));
        let handle;
        {
            let clock = rig.serve(&[&first, &second]);
            let a = Cache::attach(&first, &clock).unwrap();
            let b = Cache::attach(&second, &clock).unwrap();
            handle = publish(&a, &clock, 1);
            std::mem::forget(hold(&b, &clock, 1).unwrap());
            assert_eq!(squeeze(&a, &clock, &[1]), [1]);
        }
        if left {
            assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
            let clock = rig.serve(&[&first]);
            let a = Cache::attach(&first, &clock).unwrap();
            assert_eq!(squeeze(&a, &clock, &[1]), [0; 0], "a node that left holds nothing");
            continue;
        }
        rig.kill(&second);
        rig.rack.crash(1);
        let again = rig.join(1);
        let clock = rig.serve(&[&first, &again]);
        let a = Cache::attach(&first, &clock).unwrap();
        assert_eq!(squeeze(&a, &clock, &[1]), [1], "nobody knows yet");
        let b = Cache::attach(&again, &clock).unwrap();
        assert!(!reader_word(&b, handle).held, "its next life begins without holds");
        assert_eq!(squeeze(&a, &clock, &[1]), [0; 0]);
    }
}

#[test]
fn a_hold_expires_by_the_clock_of_the_owner() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        assert_eq!(find(b, 1), Some(handle));
        let take = |hold_ms| b.hold(clock, &[wanted(1, handle)], hold_ms).remove(0).unwrap();
        let first = take(1000);
        // Time in which the owner does not look does not count.
        wait_ms(clock, 5000);
        assert_eq!(squeeze(a, clock, &[1]), [1]);
        wait_ms(clock, 600);
        let second = take(1);
        assert_eq!(squeeze(a, clock, &[1]), [1]);
        wait_ms(clock, 600);
        assert_eq!(squeeze(a, clock, &[1]), [1], "begun anew, and no shorter than the first");
        wait_ms(clock, 1000);
        assert_eq!(squeeze(a, clock, &[1]), [0; 0]);
        assert_eq!(fetch(b, 1, handle), Err(Miss::Evicted));
        // The slot's next block is held anew, and not by those.
        let next = publish(a, clock, 1);
        assert_eq!(next.slot(), handle.slot());
        assert_eq!(squeeze(a, clock, &[1]), [0; 0]);
        let next = publish(a, clock, 1);
        assert_eq!(find(b, 1), Some(next));
        let third = b.hold(clock, &[wanted(1, next)], 1000).remove(0).unwrap();
        drop((first, second));
        assert_eq!(squeeze(a, clock, &[1]), [1], "holds of another generation were released");
        b.release(clock, vec![third]);
        assert_eq!(squeeze(a, clock, &[1]), [0; 0]);
    });
}

#[test]
fn a_hold_waits_for_the_owners_decision_and_no_longer() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        assert_eq!(find(b, 1), Some(handle));
        let set_state = |state| rewrite(a, handle, |block| Descriptor { state, ..block });
        // An owner that stopped in the middle.
        set_state(BlockState::Evicting);
        let error = b.hold(clock, &[wanted(1, handle)], HOLD_MS).remove(0).unwrap_err();
        assert_eq!(error, HoldError::Miss(Miss::NotReady));
        b.release(clock, Vec::new());
        assert!(!reader_word(b, handle).held);
        // EVICT-H2: for a fetch that is as good as READY.
        assert_eq!(fetch(b, 1, handle), Ok(()), "it is not quarantined");
        set_state(BlockState::Ready);
        drop(hold(b, clock, 1).unwrap());
    });
}

#[test]
fn a_host_holds_so_much_and_no_more() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        publish(a, clock, 2);
        assert_eq!(find(b, 1), Some(handle));
        let table = b.locked(clock, |heap| heap.holds);
        // Others hold all that there is room for.
        for number in 0..u32::try_from(table.capacity()).unwrap() {
            let handle = Handle::new(handle.owner(), 100 + number, 1);
            assert!(table.add(cxl_shm::host::ProcessSlot(9), handle));
        }
        let error = hold(b, clock, 1).unwrap_err();
        assert_eq!(error, HoldError::TooMany { most: 64 });
        assert_eq!(b.process_state().metrics().holds_without_room, 1);
        table.drop_of(|_| true, usize::MAX);
        assert!(hold(b, clock, 2).is_ok());
    });
}
