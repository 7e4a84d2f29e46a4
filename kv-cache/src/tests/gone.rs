//! Processes that left without tidying up.

use super::*;

#[test]
fn what_was_unfinished_when_a_process_left_is_freed() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let other = rig.join(0);
        {
            let cache = Cache::attach(&other, clock).unwrap();
            publish(&cache, clock, 1);
            std::mem::forget(reserve(&cache, clock, 2));
        }
        let ours = reserve(a, clock, 3);
        assert_eq!(a.reclaim_unfinished(clock), 0, "it is there still");
        assert_eq!(other.leave(), LeaveOutcome::OthersRemain);
        assert_eq!(a.reclaim_unfinished(clock), 1);
        assert_eq!(a.reclaim_unfinished(clock), 0);
        assert_eq!(a.process_state().metrics().reclaimed_blocks, 1);
        assert_eq!(a.host_figures().metrics().ended_processes, 0, "it left");
        assert_eq!(a.heap_use(clock).blocks, 2);
        publish(a, clock, 2);
        store(a, ours.payload(), &content(3));
        assert!(a.commit(clock, vec![(ours, checksum(&content(3)))])[0].is_ok());
        for number in 1..=3 {
            assert!(find_and_fetch(b, number));
        }
    });
}

#[test]
fn whether_a_process_lives_is_asked_once_for_all_that_it_holds() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let asked = Cell::new(0);
        for number in 1..=4 {
            publish(a, clock, number);
        }
        let held: Vec<_> = (1..=4).map(|number| hold(b, clock, number).unwrap()).collect();
        let is_gone = |_| {
            asked.set(asked.get() + 1);
            false
        };
        assert_eq!(b.locked(clock, |heap| heap.drop_holds_of(is_gone)), 0);
        assert_eq!(asked.get(), 1);
        b.release(clock, held);
    });
}

#[test]
fn the_heap_lock_is_not_kept_while_another_thread_is_at_the_replica() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        assert!(find_and_fetch(b, 1));
        let tell = || b.locked(clock, |heap| b.process_state().flush_touches(heap));
        let tick = || {
            b.areas()
                .own_reader_words(b.member().area())
                .own(b.member().fabric(), handle.owner(), handle.slot())
                .tick
        };
        let scanning = b.process_state().replica();
        assert!(!tell(), "nothing more can be told now");
        assert_eq!(tick(), 0);
        drop(scanning);
        assert!(!tell());
        assert_eq!(tick(), 1, "it was not forgotten");
        assert_eq!(b.process_state().metrics().told_uses, 1);
    });
}
