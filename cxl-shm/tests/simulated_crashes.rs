//! What crashes of simulated hosts and processes take and leave, and how tasks live on.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::units::{LineOffset, LineRange, WordOffset};
use cxl_shm::verify::simulated::schedule::crash_this_process;
use cxl_shm::verify::simulated::{
    Crash, EventKind, Faults, Outcome, Report, Schedule, Settings, SimulatedRack,
};

const BYTES: u64 = 64 * 1024;
const SEEDS: u64 = 100;

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

#[test]
fn a_host_crash_keeps_any_subset_of_the_dirty_lines() {
    let mut seen = [false; 8];
    for seed in 0..SEEDS {
        let rack = SimulatedRack::with(Settings { seed, ..Settings::sticky(2, BYTES) });
        let a = rack.host(0);
        (0..3).for_each(|number| a.store(word(number), 1));
        rack.crash(0);
        let kept = (0..3).fold(0, |kept, number| kept | rack.device_word(word(number)) << number);
        seen[usize::try_from(kept).unwrap()] = true;
        assert_eq!(rack.dirty_lines(0), []);
        let after: u64 = (0..3).map(|number| a.load(word(number)) << number).sum();
        assert_eq!(after, kept, "the caches are gone");
    }
    assert_eq!(seen, [true; 8]);
}

#[test]
fn a_host_crash_keeps_posted_writes_or_not() {
    let mut seen = [false; 2];
    for seed in 0..SEEDS {
        let rack = SimulatedRack::with(Settings { seed, ..Settings::sticky(1, BYTES) });
        let a = rack.host(0);
        a.write_line(line(1).start(), &[1; 8]);
        a.write_back(line(1));
        a.fence();
        a.write_line(line(2).start(), &[1; 8]);
        a.publish(line(2));
        rack.crash(0);
        assert_eq!(rack.device_word(word(2)), 1, "what was read back is safe");
        seen[usize::try_from(rack.device_word(word(1))).unwrap()] = true;
    }
    assert_eq!(seen, [true; 2]);
}

#[test]
fn a_host_crash_clears_the_host_memory() {
    let rack = SimulatedRack::sticky(2, BYTES);
    let (ours, theirs) = (rack.host_memory(0, 4), rack.host_memory(1, 4));
    ours.store(3, 5);
    theirs.store(3, 6);
    assert_eq!(rack.host_memory(0, 4).load(3), 5, "one memory a host");
    rack.crash(0);
    assert_eq!((ours.load(3), theirs.load(3)), (0, 6));
}

#[test]
fn a_spared_host_never_crashes_by_chance() {
    for seed in 0..SEEDS {
        let rack = SimulatedRack::sticky(2, BYTES);
        let faults = Faults {
            host_crash_one_in: 5,
            host_crashes_max: 10,
            process_crash_one_in: 5,
            process_crashes_max: 10,
            ..Faults::NONE
        };
        let (spared, other) = (rack.host(0), rack.host(1));
        let report = Schedule::builder(&rack, seed)
            .faults(faults)
            .spare(0)
            .task(0, "spared", move || (0..100).for_each(|value| spared.store(word(1), value)))
            .task(1, "other", move || (0..100).for_each(|value| other.store(word(2), value)))
            .run();
        assert_eq!(report.task("spared").unwrap().outcome, Outcome::Finished);
        assert_eq!(report.task("other").unwrap().outcome, Outcome::Crashed);
    }
}

/// Runs a task that makes host-memory and cache dirty, crashes it, and looks at what is left.
fn what_a_crash_leaves(crash: impl FnOnce(Schedule) -> Schedule) -> (u64, u64, Report) {
    let rack = SimulatedRack::sticky(1, BYTES);
    let (host, memory) = (rack.host(0), rack.host_memory(0, 1));
    let schedule = Schedule::builder(&rack, 0).faults(Faults::NONE).task(0, "victim", move || {
        memory.store(0, 5);
        host.store(word(1), 6);
        host.load(word(1));
        unreachable!("crashed before its third operation");
    });
    let report = crash(schedule).run();
    (rack.host_memory(0, 1).load(0), rack.dirty_lines(0).len() as u64, report)
}

#[test]
fn the_crash_of_a_process_leaves_its_host_as_it_is() {
    let (memory, dirty, report) =
        what_a_crash_leaves(|schedule| schedule.crash_process_at("victim", 3));
    assert_eq!((memory, dirty), (5, 1));
    assert_eq!((report.host_crashes, report.process_crashes), (0, 1));
    assert_eq!(report.task("victim").unwrap().outcome, Outcome::Crashed);
}

#[test]
fn the_crash_of_a_host_leaves_nothing_of_it() {
    let (memory, dirty, report) = what_a_crash_leaves(|schedule| schedule.crash_host_at(0, 3));
    assert_eq!((memory, dirty), (0, 0));
    assert_eq!((report.host_crashes, report.process_crashes), (1, 0));
    assert_eq!(report.task("victim").unwrap().outcome, Outcome::Crashed);
}

#[test]
fn unfenced_flushes_of_a_dead_process_happen_or_do_not() {
    let mut arrived = [false; 2];
    for seed in 0..SEEDS {
        let settings = Settings { seed, posted_writes: false, ..Settings::sticky(1, BYTES) };
        let rack = SimulatedRack::with(settings);
        let host = rack.host(0);
        Schedule::builder(&rack, seed)
            .crash_process_at("victim", 3)
            .task(0, "victim", move || {
                host.store(word(1), 1);
                host.publish(line(1));
            })
            .run();
        let value = rack.device_word(word(1));
        arrived[usize::try_from(value).unwrap()] = true;
        assert_eq!(rack.host(0).load(word(1)), 1, "the host still has it");
    }
    assert_eq!(arrived, [true; 2]);
}

#[test]
fn a_host_can_crash_at_each_of_its_steps() {
    let run = |step: Option<u64>| {
        let rack = SimulatedRack::sticky(2, BYTES);
        let (host, lives) = (rack.host(1), Diary::default());
        let told = lives.clone();
        let mut schedule = Schedule::builder(&rack, 9).faults(Faults::NONE);
        if let Some(step) = step {
            schedule = schedule.crash_host_at(1, step);
        }
        let report = schedule
            .restarting(1, "process", move |crashes| {
                told.write(crashes.to_string());
                host.refresh(line(1));
                let next = host.load(word(1)) + 1;
                host.store(word(1), next);
                host.publish(line(1));
            })
            .run();
        (rack.device_word(word(1)), lives.read(), report)
    };
    let (value, lives, report) = run(None);
    assert_eq!((value, lives), (1, vec!["0".to_owned()]));
    let steps = report.host_steps[1];
    assert_eq!(steps, 7, "refresh 2, load, store, publish 3");
    for step in 1..=steps {
        let (value, lives, report) = run(Some(step));
        assert_eq!(lives, ["0", "1"]);
        assert_eq!(report.task("process").unwrap().crashes, 1);
        // Done once or, when the first life's store had survived, twice.
        let at_most = if step > 4 { 2 } else { 1 };
        assert!((1..=at_most).contains(&value), "{value} after a crash at {step}");
    }
}

#[test]
fn tests_are_told_of_crashes_when_the_loss_has_happened() {
    let rack = SimulatedRack::sticky(2, BYTES);
    let (a, b) = (rack.host(0), rack.host(1));
    let (told, seen) = (Diary::default(), rack.clone());
    let diary = told.clone();
    Schedule::builder(&rack, 4)
        .faults(Faults::NONE)
        .task(0, "a", move || (0..5).for_each(|value| a.store(word(1), value)))
        .task(1, "b", move || (0..5).for_each(|value| b.store(word(2), value)))
        .crash_host_at(0, 4)
        .crash_process_at("b", 4)
        .on_crash(move |crash| match crash {
            Crash::Host { host } => {
                diary.write(format!("host {host} {:?}", seen.dirty_lines(*host)));
            }
            Crash::Process { host, task } => {
                diary.write(format!("{task} of {host} {}", seen.dirty_lines(*host).len()));
            }
        })
        .run();
    let mut told = told.read();
    told.sort();
    assert_eq!(told, ["b of 1 1", "host 0 []"]);
}

#[test]
fn destructors_of_a_crashed_task_reach_nobody() {
    struct Unlock<F: Fn()>(F);
    impl<F: Fn()> Drop for Unlock<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    for seed in 0..SEEDS {
        let rack = SimulatedRack::adversarial(1, BYTES, seed);
        let (host, memory, clock) = (rack.host(0), rack.host_memory(0, 2), rack.clock(0));
        let report = Schedule::builder(&rack, seed)
            .faults(Faults::NONE)
            .crash_process_at("victim", 3)
            .task(0, "victim", move || {
                let (inner_host, inner_memory) = (host.clone(), memory.clone());
                let _guard = Unlock(move || {
                    inner_host.store(word(1), 9);
                    inner_host.publish(line(1));
                    inner_memory.store(0, 9);
                    let deadline_ms = clock.now_ms() + 50;
                    while clock.now_ms() < deadline_ms {
                        clock.pause(5000);
                    }
                    while inner_memory.compare_exchange(1, 7, 8).is_err() {}
                });
                memory.store(0, 1);
                host.store(word(1), 1);
                host.publish(line(1));
            })
            .run();
        assert_eq!(report.task("victim").unwrap().outcome, Outcome::Crashed);
        assert_eq!(rack.host_memory(0, 1).load(0), 1);
        assert_eq!(rack.host(0).load(word(1)), 1);
    }
}

#[test]
fn a_task_can_crash_itself_or_a_host() {
    let rack = SimulatedRack::sticky(3, BYTES);
    let (seer, murderer, victim) = (rack.clone(), rack.clone(), rack.host(1));
    let report = Schedule::builder(&rack, 0)
        .faults(Faults::NONE)
        .task(0, "suicide", || crash_this_process())
        .task(1, "victim", move || while victim.load(word(1)) == 0 {})
        .task(2, "murderer", move || {
            murderer.crash(1);
            murderer.crash(2);
            unreachable!("its own host");
        })
        .run();
    let outcomes: Vec<_> = report.tasks.iter().map(|task| task.outcome).collect();
    assert_eq!(outcomes, [Outcome::Crashed; 3]);
    assert_eq!((report.process_crashes, report.host_crashes), (1, 2));
    assert!(seer.history().iter().any(|event| event.kind == EventKind::HostCrash));
}

#[test]
fn daemons_serve_until_the_others_are_done() {
    for seed in 0..SEEDS {
        let rack = SimulatedRack::sticky(2, BYTES);
        let (server, client) = (rack.host(0), rack.host(1));
        let (server_clock, client_clock) = (rack.clock(0), rack.clock(1));
        let report = Schedule::builder(&rack, seed)
            .crash_host_at(0, 20)
            .daemon(0, "server", move |_| {
                loop {
                    server.refresh(line(1));
                    server.refresh(line(2));
                    let asked = server.load(word(1));
                    if server.load(word(2)) != asked {
                        server.store(word(2), asked);
                        server.publish(line(2));
                    }
                    server_clock.pause(300);
                }
            })
            .task(1, "client", move || {
                for request in 1..=5 {
                    client.store(word(1), request);
                    client.publish(line(1));
                    while client.load(word(2)) != request {
                        client_clock.pause(300);
                        client.refresh(line(2));
                    }
                }
            })
            .run();
        assert_eq!(report.task("client").unwrap().outcome, Outcome::Finished);
        let server = report.task("server").unwrap();
        assert_eq!((server.outcome, server.crashes), (Outcome::Dismissed, 1));
        assert_eq!(rack.device_word(word(2)), 5);
    }
}
