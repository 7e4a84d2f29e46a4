//! The simulator finds what it is there to find: in a message-passing program every flush and
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
//! every fence is removed in turn, and each removal shows.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::units::{LineOffset, LineRange, WordOffset};
use cxl_shm::verify::simulated::{
    Faults, Schedule, ScheduleError, ScheduleFailure, Settings, SimulatedHost, SimulatedRack, Site,
    SiteOp,
};

const SEEDS: u64 = 100;
const ROUNDS: u64 = 2;
/// About fifty times what a run takes that comes to its end.
const STEPS_MAX: u64 = 5_000;

fn line(number: u64) -> LineRange {
    LineRange::one(LineOffset::new(number * 64).unwrap())
}

fn word(number: u64) -> WordOffset {
    line(number).start().word(0).unwrap()
}

const PAYLOAD: u64 = 1;
const FLAG: u64 = 2;
const ANSWER: u64 = 3;

/// What a program does once it has stored the payload and the flag, and once it waits for a flag.
#[derive(Clone, Copy)]
struct Program {
    send: fn(&SimulatedHost, u64),
    receive: fn(&SimulatedHost, &dyn Clock, u64) -> u64,
}

/// By the rules: publish the payload, then the flag; see the flag, then refresh the payload.
const RIGHT: Program = Program {
    send: |host, round| {
        host.store(word(PAYLOAD), round * 100);
        host.publish(line(PAYLOAD));
        host.store(word(FLAG), round);
        host.publish(line(FLAG));
    },
    receive: |host, clock, round| {
        await_word(host, clock, FLAG, round);
        host.refresh(line(PAYLOAD));
        host.load(word(PAYLOAD))
    },
};

/// Breaks MEM-M2: payload and flag in one batch, so that the flag may arrive first.
const ONE_BATCH: Program = Program {
    send: |host, round| {
        host.store(word(PAYLOAD), round * 100);
        host.store(word(FLAG), round);
        host.publish(LineRange::new(line(PAYLOAD).start(), 2).unwrap());
    },
    ..RIGHT
};

/// Breaks MEM-M4: refreshes the payload before it has seen the flag.
const REFRESH_UP_FRONT: Program = Program {
    receive: |host, clock, round| {
        let mut tries = 0;
        loop {
            host.refresh(LineRange::new(line(PAYLOAD).start(), 2).unwrap());
            if host.load(word(FLAG)) == round {
                return host.load(word(PAYLOAD));
            }
            clock.pause(tries);
            tries += 1;
        }
    },
    ..RIGHT
};

fn await_word(host: &SimulatedHost, clock: &dyn Clock, number: u64, value: u64) {
    let mut tries = 0;
    loop {
        host.refresh(line(number));
        if host.load(word(number)) == value {
            return;
        }
        clock.pause(tries);
        tries += 1;
    }
}

fn run(
    program: Program,
    settings: Settings,
    seed: u64,
    removed: &[Site],
) -> (SimulatedRack, Result<(), Box<ScheduleError>>) {
    let rack = SimulatedRack::with(settings);
    removed.iter().for_each(|site| rack.suppress(*site));
    let (writer, reader) = (rack.host(0), rack.host(1));
    let (writer_clock, reader_clock) = (rack.clock(0), rack.clock(1));
    // What the reader holds before is stale later.
    assert_eq!(reader.load(word(PAYLOAD)) + reader.load(word(FLAG)), 0);
    assert_eq!(writer.load(word(ANSWER)), 0);
    let result = Schedule::builder(&rack, seed)
        .faults(Faults::NONE)
        .steps_max(STEPS_MAX)
        .task(0, "writer", move || {
            for round in 1..=ROUNDS {
                (program.send)(&writer, round);
                await_word(&writer, &writer_clock, ANSWER, round);
            }
        })
        .task(1, "reader", move || {
            for round in 1..=ROUNDS {
                let payload = (program.receive)(&reader, &reader_clock, round);
                assert_eq!(payload, round * 100, "old payload");
                reader.store(word(ANSWER), round);
                reader.publish(line(ANSWER));
            }
        })
        .try_run();
    (rack, result.map(|_| ()))
}

fn sticky() -> Settings {
    Settings::sticky(2, 4096)
}

/// The seeds with which `program` fails in the adversarial mode.
fn adversarial_failures(program: Program, removed: &[Site]) -> u64 {
    let fails =
        |seed: u64| run(program, Settings::adversarial(2, 4096, seed), seed, removed).1.is_err();
    (0..SEEDS).map(|seed| u64::from(fails(seed))).sum()
}

fn sites(program: Program) -> Vec<Site> {
    let (rack, result) = run(program, sticky(), 0, &[]);
    result.unwrap();
    rack.sites()
}

#[test]
fn the_program_is_right_in_both_modes() {
    for seed in 0..SEEDS {
        run(RIGHT, sticky(), seed, &[]).1.unwrap();
        let settings = Settings { posted_writes: false, ..sticky() };
        run(RIGHT, settings, seed, &[]).1.unwrap();
    }
    assert_eq!(adversarial_failures(RIGHT, &[]), 0);
}

#[test]
fn sites_are_the_places_of_the_program() {
    let sites = sites(RIGHT);
    assert!(sites.iter().all(|site| site.file.ends_with("simulated_mutation.rs")), "{sites:?}");
    let count = |op| sites.iter().filter(|site| site.op == op).count();
    // Three publishes, two refreshes.
    assert_eq!(
        [SiteOp::WriteBack, SiteOp::Invalidate, SiteOp::Fence, SiteOp::ReadBack].map(count),
        [3, 2, 5, 3]
    );
    let of_one_publish = sites.iter().filter(|site| site.same_place(&sites[0])).count();
    assert_eq!(of_one_publish, 3);
}

#[test]
fn sticky_caches_find_every_removed_flush_and_fence_in_every_seed() {
    for site in sites(RIGHT) {
        for seed in 0..SEEDS {
            let (rack, result) = run(RIGHT, sticky(), seed, &[site]);
            let error = result.expect_err(&format!("nobody missed {site}"));
            assert!(rack.executions(site) > 0, "{site} was reached");
            assert!(error.to_string().contains(&format!("seed {seed}")), "{error}");
        }
    }
}

#[test]
fn sticky_caches_find_every_removed_publish_and_refresh_in_every_seed() {
    let sites = sites(RIGHT);
    for place in &sites {
        let whole: Vec<_> = sites.iter().filter(|site| site.same_place(place)).copied().collect();
        for seed in 0..SEEDS {
            assert!(run(RIGHT, sticky(), seed, &whole).1.is_err(), "nobody missed {place}");
        }
    }
}

#[test]
fn busy_caches_hide_a_removed_publish_in_some_seeds() {
    // Why the sticky mode exists.
    let sites = sites(RIGHT);
    let write_back = sites.iter().find(|site| site.op == SiteOp::WriteBack).unwrap();
    let failures = adversarial_failures(RIGHT, &[*write_back]);
    assert!((1..SEEDS).contains(&failures), "{failures}");
}

#[test]
fn only_adversarial_caches_find_a_flag_that_overtakes_its_payload() {
    // Why the adversarial mode exists.
    for program in [ONE_BATCH, REFRESH_UP_FRONT] {
        let failures = adversarial_failures(program, &[]);
        assert!((1..SEEDS).contains(&failures), "{failures}");
    }
    for seed in 0..SEEDS {
        run(ONE_BATCH, sticky(), seed, &[]).1.unwrap();
    }
}

#[test]
fn without_posted_writes_a_read_back_is_not_missed() {
    let removed: Vec<_> =
        sites(RIGHT).into_iter().filter(|site| site.op == SiteOp::ReadBack).collect();
    for seed in 0..SEEDS {
        let settings = Settings { posted_writes: false, ..sticky() };
        run(RIGHT, settings, seed, &removed).1.unwrap();
        assert!(run(RIGHT, sticky(), seed, &removed).1.is_err());
    }
}

#[test]
fn a_flag_that_never_arrives_is_a_run_that_never_ends() {
    let flag = sites(RIGHT).into_iter().filter(|site| site.op == SiteOp::WriteBack).nth(1).unwrap();
    let error = run(RIGHT, sticky(), 1, &[flag]).1.unwrap_err();
    assert_eq!(error.failure, ScheduleFailure::OutOfSteps { steps: STEPS_MAX });
    assert!(error.tasks.iter().all(|task| task.steps > 0));
    assert!(!error.history.is_empty());
}
