//! The lemma that all protocols rest on, tried on the simulator: under MEM-M1 to MEM-M3 a word with
//! one
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
//! writing host is a linearizable register, and without any one of them it is not.

use std::sync::{Arc, Mutex};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::units::{LineOffset, LineRange, WordOffset};
use cxl_shm::verify::simulated::{
    Faults, Schedule, ScheduleError, Settings, SimulatedHost, SimulatedRack,
};

const SEEDS: u64 = 200;
const WRITES: u64 = 30;
const READERS: usize = 3;

fn line() -> LineRange {
    LineRange::one(LineOffset::new(128).unwrap())
}

fn word() -> WordOffset {
    line().start().word(3).unwrap()
}

/// What an observer outside knows: the writer writes 1, 2, 3 and so on.
#[derive(Default)]
struct Known {
    /// No write of more than this has begun.
    begun: u64,
    /// Every read that begins now gives at least this: it was published, or read by somebody.
    completed: u64,
}

#[derive(Clone, Copy)]
struct Register {
    publish: fn(&SimulatedHost),
    refresh: fn(&SimulatedHost),
}

const BY_THE_RULES: Register =
    Register { publish: |host| host.publish(line()), refresh: |host| host.refresh(line()) };

/// One writer that may crash and start again, readers on other hosts.
fn run(
    register: Register,
    settings: Settings,
    seed: u64,
    crashes: u32,
) -> Result<(), Box<ScheduleError>> {
    let rack = SimulatedRack::with(settings);
    let known = Arc::new(Mutex::new(Known::default()));
    let faults = Faults {
        host_crash_one_in: 100,
        host_crashes_max: crashes,
        process_crash_one_in: 100,
        process_crashes_max: crashes,
        ..Faults::default()
    };
    let (host, model) = (rack.host(0), Arc::clone(&known));
    let mut schedule = Schedule::builder(&rack, seed).faults(faults).steps_max(50_000).restarting(
        0,
        "writer",
        move |_| {
            // The last life may have stored something that is on the device or is not (MEM-M8).
            (register.refresh)(&host);
            let mut value = host.load(word());
            while value < WRITES {
                value += 1;
                {
                    let mut model = model.lock().unwrap();
                    model.begun = model.begun.max(value);
                }
                host.store(word(), value);
                (register.publish)(&host);
                let mut model = model.lock().unwrap();
                model.completed = model.completed.max(value);
            }
        },
    );
    for reader in 1..=READERS {
        // What a reader holds before is stale later.
        assert_eq!(rack.host(reader).load(word()), 0);
        let (host, clock, model) = (rack.host(reader), rack.clock(reader), Arc::clone(&known));
        schedule = schedule.spare(reader).task(reader, format!("reader {reader}"), move || {
            let (mut value, mut tries) = (0, 0);
            while value < WRITES {
                let least = model.lock().unwrap().completed;
                (register.refresh)(&host);
                value = host.load(word());
                let mut model = model.lock().unwrap();
                assert!((least..=model.begun).contains(&value), "{value}, not {least} or more");
                model.completed = model.completed.max(value);
                drop(model);
                clock.pause(tries);
                tries += 1;
            }
        });
    }
    schedule.try_run().map(|_| assert_eq!(rack.conflicts(), []))
}

fn sticky() -> Settings {
    Settings::sticky(READERS + 1, 4096)
}

fn adversarial(seed: u64) -> Settings {
    Settings::adversarial(READERS + 1, 4096, seed)
}

#[test]
fn a_word_with_one_writer_is_a_linearizable_register() {
    for seed in 0..SEEDS {
        for posted_writes in [false, true] {
            for crashes in [0, 3] {
                let settings = Settings { posted_writes, ..adversarial(seed) };
                run(BY_THE_RULES, settings, seed, crashes).unwrap();
                let settings = Settings { posted_writes, seed, ..sticky() };
                run(BY_THE_RULES, settings, seed, crashes).unwrap();
            }
        }
    }
}

/// The numbers of seeds that fail in the sticky and in the adversarial mode.
fn failures(register: Register) -> (u64, u64) {
    let fails = |settings: Settings, seed| u64::from(run(register, settings, seed, 0).is_err());
    let sticky_failures = (0..SEEDS).map(|seed| fails(sticky(), seed)).sum();
    let adversarial_failures = (0..SEEDS).map(|seed| fails(adversarial(seed), seed)).sum();
    (sticky_failures, adversarial_failures)
}

#[test]
fn without_a_part_of_publish_or_refresh_it_is_none() {
    let all = SEEDS;
    let broken: [(&str, Register); 5] = [
        (
            "no write-back",
            Register {
                publish: |host| {
                    host.fence();
                    host.read_back(line());
                },
                ..BY_THE_RULES
            },
        ),
        (
            "no fence after the write-back",
            Register {
                publish: |host| {
                    host.write_back(line());
                    host.read_back(line());
                },
                ..BY_THE_RULES
            },
        ),
        (
            "no read-back",
            Register {
                publish: |host| {
                    host.write_back(line());
                    host.fence();
                },
                ..BY_THE_RULES
            },
        ),
        ("no invalidation", Register { refresh: SimulatedHost::fence, ..BY_THE_RULES }),
        (
            "no fence after the invalidation",
            Register { refresh: |host| host.invalidate(line()), ..BY_THE_RULES },
        ),
    ];
    for (name, register) in broken {
        let (sticky, adversarial) = failures(register);
        assert_eq!(sticky, all, "{name}: sticky caches miss it never");
        assert!(adversarial > all / 2, "{name}: adversarial caches find it in {adversarial}");
    }
}
