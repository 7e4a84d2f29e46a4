//! The scheduler: one seed is one run, crashes are crashes, and a run that cannot end says so.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::units::{Extent, LineOffset, LineRange, WordOffset};
use cxl_shm::verify::simulated::{
    DmaCache, Faults, Outcome, Report, Schedule, ScheduleFailure, SimulatedRack,
};

const BYTES: u64 = 64 * 1024;
const SEEDS: u64 = 50;

fn line(number: u64) -> LineRange {
    LineRange::one(LineOffset::new(number * 64).unwrap())
}

fn word(number: u64) -> WordOffset {
    line(number).start().word(0).unwrap()
}

/// Something that tasks add to in the order in which they run.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn write(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    fn read(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A run with everything in it; gives its report, and what each host did when.
fn eventful(rack_seed: u64, seed: u64) -> (Report, Vec<String>) {
    let rack = SimulatedRack::adversarial(4, BYTES, rack_seed);
    let diary = Diary::default();
    let faults = Faults {
        host_crash_one_in: 300,
        host_crashes_max: 3,
        process_crash_one_in: 300,
        process_crashes_max: 3,
        pause_one_in: 100,
        time_jump_one_in: 100,
        time_jump_ms_max: 1000,
        ..Faults::default()
    };
    let mut schedule = Schedule::builder(&rack, seed).faults(faults);
    for process in 0..6 {
        let number = process as u64;
        let (host, clock) = (rack.host(process % 4), rack.clock(process % 4));
        let (memory, diary) = (rack.host_memory(process % 4, 8), diary.clone());
        schedule = schedule.restarting(process % 4, format!("process {process}"), move |crashes| {
            for round in 0..20 {
                let payload = Extent::new(8192 + number * 256, 200).unwrap();
                host.dma_write(payload, &[7; 200], DmaCache::Allocate);
                host.store(word(number), round);
                host.publish(line(number));
                host.refresh(line(round % 6));
                let seen = host.read_line(line(round % 6).start())[0];
                // A process that dies with the lock leaves it locked: nobody tries for long.
                for tries in 0..10 {
                    if memory.compare_exchange(0, 0, number + 1).is_ok() {
                        break;
                    }
                    clock.pause(tries);
                }
                memory.store(0, 0);
                diary.write(format!("{process} {crashes} {round} {seen} {}", clock.now_ms()));
            }
        });
    }
    (schedule.run(), diary.read())
}

#[test]
fn the_same_seeds_are_the_same_run() {
    for seed in 0..10 {
        let ((one, diary), (other, other_diary)) = (eventful(seed, seed), eventful(seed, seed));
        assert_eq!(one.trace_hash, other.trace_hash);
        assert_eq!((one.steps, one.now_ms), (other.steps, other.now_ms));
        assert_eq!(diary, other_diary);
    }
}

#[test]
fn other_seeds_are_other_runs() {
    let hash = |rack_seed, seed| eventful(rack_seed, seed).0.trace_hash;
    assert_ne!(hash(1, 1), hash(1, 2), "the schedule's");
    assert_ne!(hash(1, 1), hash(2, 1), "the rack's");
}

#[test]
fn chance_brings_crashes_of_both_kinds() {
    let reports: Vec<_> = (0..10).map(|seed| eventful(seed, seed).0).collect();
    assert!(reports.iter().any(|report| report.host_crashes > 0));
    assert!(reports.iter().any(|report| report.process_crashes > 0));
    for report in reports {
        assert!(report.host_crashes <= 3 && report.process_crashes <= 3);
        assert!(report.tasks.iter().all(|task| task.outcome == Outcome::Finished));
        assert_eq!(report.host_steps.iter().sum::<u64>(), report.steps);
    }
}

#[test]
fn tasks_take_turns_between_operations() {
    let mut orders = std::collections::HashSet::new();
    for seed in 0..4 * SEEDS {
        let rack = SimulatedRack::sticky(1, BYTES);
        let diary = Diary::default();
        let mut schedule = Schedule::builder(&rack, seed);
        for name in ["a", "b"] {
            let (host, diary) = (rack.host(0), diary.clone());
            schedule = schedule.task(0, name, move || {
                for _ in 0..3 {
                    host.load(word(1));
                    diary.write(name);
                }
            });
        }
        schedule.run();
        orders.insert(diary.read().concat());
    }
    assert!(orders.len() > 10, "of the 20 orders there are: {orders:?}");
}

#[test]
fn a_panic_fails_the_run_and_names_the_seed() {
    let rack = SimulatedRack::sticky(2, BYTES);
    let (host, waiting) = (rack.host(0), rack.host(1));
    let error = Schedule::builder(&rack, 12345)
        .task(0, "broken", move || {
            host.load(word(1));
            panic!("this is wrong");
        })
        .task(1, "waiting", move || while waiting.load(word(1)) == 0 {})
        .try_run()
        .unwrap_err();
    let failure =
        ScheduleFailure::Panicked { task: "broken".into(), message: "this is wrong".into() };
    assert_eq!(error.failure, failure);
    let text = error.to_string();
    assert!(text.contains("12345") && text.contains("this is wrong"), "{text}");
}

#[test]
#[should_panic(expected = "seed 777")]
fn run_panics_with_the_seed() {
    let rack = SimulatedRack::sticky(1, BYTES);
    let host = rack.host(0);
    Schedule::builder(&rack, 777)
        .steps_max(100)
        .task(0, "endless", move || while host.load(word(1)) == 0 {})
        .run();
}

#[test]
fn a_loop_that_only_watches_the_clock_ends() {
    let rack = SimulatedRack::sticky(1, BYTES);
    let clock = rack.clock(0);
    let deadline_ms = clock.now_ms() + 2;
    Schedule::builder(&rack, 0)
        .task(0, "watcher", move || while clock.now_ms() < deadline_ms {})
        .run();
}

#[test]
fn waiting_costs_time_but_hardly_steps() {
    let rack = SimulatedRack::sticky(2, BYTES);
    let (sleeper, worker, host) = (rack.clock(0), rack.clock(1), rack.host(1));
    let report = Schedule::builder(&rack, 3)
        .task(0, "sleeper", move || (0..1000).for_each(|_| sleeper.pause(5000)))
        .task(1, "worker", move || {
            worker.pause(5000);
            host.store(word(1), 1);
        })
        .run();
    assert!(report.now_ms >= 500, "{} ms", report.now_ms);
    assert!(report.steps < 1100, "{} steps", report.steps);
}

#[test]
fn without_a_schedule_a_pause_lets_time_pass() {
    let rack = SimulatedRack::sticky(2, BYTES);
    let clock = rack.clock(1);
    let start_ms = clock.now_ms();
    (0..10).for_each(|_| clock.pause(5000));
    assert_eq!(clock.now_ms(), start_ms + 10);
    rack.advance_ms(90);
    assert_eq!(clock.now_ms(), start_ms + 100);
    assert_ne!(rack.clock(0).now_ms(), clock.now_ms(), "no two hosts' clocks agree");
}

#[test]
fn a_paused_host_stands_still_until_it_is_resumed() {
    for seed in 0..SEEDS {
        let rack = SimulatedRack::adversarial(2, BYTES, seed);
        let diary = Diary::default();
        let (paused, host, clock) = (rack.host(0), rack.host(1), rack.clock(1));
        let (told, telling, resumer) = (diary.clone(), diary.clone(), rack.clone());
        rack.pause(0);
        Schedule::builder(&rack, seed)
            .task(0, "paused", move || {
                paused.load(word(1));
                told.write("paused");
            })
            .task(1, "other", move || {
                (0..50).for_each(|value| host.store(word(2), value));
                (0..50).for_each(|_| clock.pause(2000));
                telling.write("other");
                resumer.resume(0);
            })
            .run();
        assert_eq!(diary.read(), ["other", "paused"]);
    }
}

#[test]
fn a_host_that_nobody_resumes_is_a_failure() {
    let rack = SimulatedRack::sticky(2, BYTES);
    let (host, pauser) = (rack.host(0), rack.clone());
    let error = Schedule::builder(&rack, 0)
        .task(0, "paused", move || {
            host.load(word(1));
            pauser.pause(0);
            host.load(word(1));
        })
        .try_run()
        .unwrap_err();
    assert_eq!(error.failure, ScheduleFailure::Stuck);
}

#[test]
fn pauses_by_chance_let_much_time_pass() {
    let now_ms = |faults: Faults| {
        let rack = SimulatedRack::sticky(1, BYTES);
        let host = rack.host(0);
        let task = move || (0..1000).for_each(|value| host.store(word(1), value));
        Schedule::builder(&rack, 1).faults(faults).task(0, "worker", task).run().now_ms
    };
    let often = Faults { pause_one_in: 10, ..Faults::default() };
    assert!(now_ms(often) > now_ms(Faults::NONE) + 100);
    let jumps = Faults { time_jump_one_in: 10, time_jump_ms_max: 1000, ..Faults::NONE };
    assert!(now_ms(jumps) > now_ms(Faults::NONE) + 100);
}

#[test]
fn a_rack_can_run_one_schedule_after_another() {
    let rack = SimulatedRack::sticky(1, BYTES);
    for value in 1..=3 {
        let host = rack.host(0);
        Schedule::builder(&rack, value)
            .task(0, "adder", move || {
                let before = host.load(word(1));
                host.store(word(1), before + 1);
            })
            .run();
    }
    assert_eq!(rack.host(0).load(word(1)), 3);
    assert_eq!(Schedule::builder(&rack, 0).run().steps, 0, "no tasks, no steps");
}

#[test]
fn an_access_outside_the_memory_fails_the_run() {
    let rack = SimulatedRack::sticky(1, BYTES);
    let host = rack.host(0);
    let error = Schedule::builder(&rack, 0)
        .task(0, "wild", move || {
            host.load(WordOffset::new(BYTES).unwrap());
        })
        .try_run()
        .unwrap_err();
    assert!(error.to_string().contains("outside the memory"), "{error}");
}
