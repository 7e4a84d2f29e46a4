//! Metadata that the simulated device cannot read: whom it cuts off, what such a process sees, and
//! what all others see of it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};

use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::units::{Extent, LineOffset, LineRange, WordOffset};
use cxl_shm::verify::simulated::schedule::crash_this_process;
use cxl_shm::verify::simulated::{
    Crash, CutOff, DmaCache, FailedLine, Faults, Schedule, Settings, SimulatedHost, SimulatedRack,
};

const BYTES: u64 = 64 * 1024;
const LOST: FailedLine = FailedLine { heals: false, takes_page: false };

fn line(number: u64) -> LineOffset {
    LineOffset::new(number * 64).unwrap()
}

fn word(number: u64, index: usize) -> WordOffset {
    line(number).word(index).unwrap()
}

fn range(number: u64) -> LineRange {
    LineRange::one(line(number))
}

/// A sticky rack of two hosts whose fence waits for the device, with a 7 in line 1.
fn plain() -> (SimulatedRack, SimulatedHost, SimulatedHost) {
    let rack = SimulatedRack::with(Settings { posted_writes: false, ..Settings::sticky(2, BYTES) });
    let (a, b) = (rack.host(0), rack.host(1));
    a.store(word(1, 0), 7);
    a.publish(range(1));
    (rack, a, b)
}

#[test]
fn a_process_is_cut_off_when_its_caches_have_no_copy() {
    let (rack, a, b) = plain();
    let memory = rack.host_memory(1, 4);
    memory.store(2, 5);
    assert_eq!(b.load(word(1, 0)), 7);
    a.store(word(9, 0), 3);
    a.publish(range(9));
    rack.fail(line(1), LOST);
    assert_eq!((b.load(word(1, 0)), b.is_cut_off()), (7, false), "the caches have it");
    b.refresh(range(1));
    assert_eq!((b.load(word(1, 0)), b.is_cut_off()), (0, true));
    assert_eq!(rack.cut_offs(), [CutOff { host: 1, line: line(1) }]);
    // Its own stores are all that it sees from now on.
    assert_eq!(b.load(word(9, 0)), 0);
    b.store(word(9, 1), 4);
    b.write_line(line(8), &[6; 8]);
    b.publish(range(8));
    b.publish(range(9));
    assert_eq!((b.read_line(line(8)), b.load(word(9, 1))), ([6; 8], 4));
    assert_eq!([memory.load(2), memory.counted(2)], [0; 2]);
    memory.store(2, 1);
    memory.count(2, 1);
    assert_eq!(memory.compare_exchange(2, 9, 1), Ok(9), "a loop comes to its end");
    // A process that starts has a mapping of its own, and finds nothing of it.
    rack.map_anew();
    assert!(!b.is_cut_off());
    b.refresh(LineRange::new(line(8), 2).unwrap());
    assert_eq!((b.read_line(line(8)), b.load(word(9, 1))), ([0; 8], 0));
    assert_eq!((b.load(word(9, 0)), memory.load(2)), (3, 5));
}

#[test]
fn a_store_and_a_read_back_meet_the_line_too() {
    let (rack, a, _) = plain();
    rack.fail(line(1), LOST);
    a.write_back(range(1));
    a.invalidate(range(1));
    a.fence();
    assert!(!a.is_cut_off(), "a flush asks the device for nothing");
    a.store(word(1, 0), 8);
    assert!(a.is_cut_off());
    rack.map_anew();
    a.read_back(range(1));
    assert!(a.is_cut_off());
    rack.map_anew();
    // A write of what the caches have is lost, and the read-back finds out.
    a.store(word(2, 0), 1);
    rack.fail(line(2), LOST);
    a.publish(range(2));
    assert!(a.is_cut_off());
    assert_eq!(rack.device_word(word(2, 0)), 0);
}

#[test]
fn a_write_of_the_whole_line_may_make_it_good_again() {
    let (rack, a, b) = plain();
    a.store(word(1, 0), 8);
    rack.fail(line(1), FailedLine { heals: true, ..LOST });
    a.publish(range(1));
    b.refresh(range(1));
    assert_eq!((b.load(word(1, 0)), rack.cut_offs()), (8, vec![]));
}

#[test]
fn the_system_of_a_host_may_take_the_page() {
    let (rack, a, b) = plain();
    assert_eq!([a.load(word(2, 0)), b.load(word(2, 0))], [0; 2]);
    rack.fail(line(1), FailedLine { takes_page: true, ..LOST });
    a.refresh(range(1));
    a.load(word(1, 0));
    rack.map_anew();
    assert_eq!(b.load(word(2, 0)), 0);
    assert!(!b.is_cut_off(), "the other host has the page still");
    a.write_back(range(3));
    assert!(a.is_cut_off(), "the caches do not help, and no flush either");
    rack.crash(0);
    rack.map_anew();
    assert_eq!(a.load(word(2, 0)), 0);
    assert!(!a.is_cut_off(), "after a start of the host the other lines are there");
}

#[test]
fn a_program_that_goes_on_sees_zeros_in_place_of_the_page_alone() {
    let (rack, a, b) = plain();
    rack.go_on_after_failures();
    rack.fail(line(1), LOST);
    b.load(word(1, 0));
    b.store(word(1, 1), 5);
    b.publish(range(1));
    assert_eq!((b.load(word(1, 0)), b.load(word(1, 1)), b.is_cut_off()), (0, 5, false));
    b.store(word(64, 0), 9);
    b.publish(range(64));
    assert_eq!(a.load(word(64, 0)), 9, "what it does elsewhere reaches everybody");
}

#[test]
fn engines_of_a_process_that_was_cut_off_reach_the_device_or_not() {
    for goes_on in [false, true] {
        let (rack, a, _) = plain();
        if goes_on {
            rack.let_engines_go_on();
        }
        rack.fail(line(1), LOST);
        a.refresh(range(1));
        a.load(word(1, 0));
        let at = Extent::new(line(5).bytes(), 8).unwrap();
        a.dma_write(at, &[1; 8], DmaCache::Bypass);
        let mut bytes = [0; 8];
        a.dma_read(at, &mut bytes, DmaCache::Bypass);
        assert_eq!(bytes, [1; 8]);
        assert_eq!(rack.device_word(word(5, 0)) != 0, goes_on);
    }
}

#[test]
fn caches_that_fetch_by_themselves_cut_nobody_off() {
    for seed in 0..50 {
        let rack = SimulatedRack::adversarial(2, BYTES, seed);
        let host = rack.host(0);
        rack.fail(line(1), LOST);
        for number in 2..60 {
            host.refresh(range(number));
            assert_eq!(host.load(word(number, 0)), 0);
        }
        assert!(!host.is_cut_off());
    }
}

#[test]
fn a_task_that_was_cut_off_goes_on_and_counts_as_dead() {
    let (rack, a, b) = plain();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (diary, failing) = (Arc::clone(&told), rack.clone());
    let report = Schedule::builder(&rack, 1)
        .faults(Faults::NONE)
        .restarting(1, "victim", move |life| {
            if life == 0 {
                failing.fail(line(1), LOST);
                b.load(word(1, 0));
                assert!(b.is_cut_off());
                b.store(word(2, 0), 9);
                b.publish(range(2));
                crash_this_process();
            }
            assert!(!b.is_cut_off(), "its next life has a mapping of its own");
            b.store(word(3, 0), 9);
            b.publish(range(3));
        })
        .task(0, "other", move || (0..50).for_each(|_| assert!(!a.is_cut_off())))
        .on_crash(move |crash| diary.lock().unwrap().push(crash.clone()))
        .run();
    let of_victim = Crash::Process { host: 1, task: "victim".to_owned() };
    assert_eq!(*told.lock().unwrap(), [of_victim.clone(), of_victim], "cut off, then at its end");
    assert_eq!(report.task("victim").unwrap().crashes, 1);
    assert_eq!([rack.device_word(word(2, 0)), rack.device_word(word(3, 0))], [0, 9]);
}
