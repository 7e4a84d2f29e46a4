//! Two publishing processes of one host and a reader on another, in any order of their steps, on
//! caches that do what they like, with one of the publishers, or their
//! host, dying anywhere.

use cxl_shm::verify::simulated::schedule::Crash;
use cxl_shm::verify::simulated::{Faults, Schedule};

use super::*;

const KEYS: u8 = 6;
/// Blocks that each publisher tries to publish.
const ROUNDS: u8 = 8;
const SEEDS: u64 = 25;

/// Publishes, removes and drops blocks for a while.
fn work(member: &TestMember, clock: &SimulatedClock, rounds: u8, shift: u8) {
    let cache = Cache::attach(member, clock).unwrap();
    for round in 0..rounds {
        let number = (round * 5 + shift) % KEYS;
        match cache.reserve(clock, &[spec(number)], CHUNK_TIMEOUT_MS).remove(0) {
            Reservation::Writing(block) if round % 4 == 3 => drop(block),
            Reservation::Writing(block) => {
                let bytes = content(number);
                store(&cache, block.payload(), &bytes);
                assert!(cache.commit(clock, vec![(block, checksum(&bytes))])[0].is_ok());
            }
            Reservation::AlreadyThere => {
                if let Some(handle) = find(&cache, number) {
                    cache.retire(clock, &[handle]);
                }
            }
            Reservation::Refused(refusal) => panic!("{refusal}"),
        }
    }
}

/// Fetches what it finds. Checksums are not compared: the two looks alone must do.
/// Returns how many fetches succeeded, and how many did not.
fn read(member: &TestMember, clock: &SimulatedClock) -> (u64, u64) {
    let cache = Cache::attach(member, clock).unwrap();
    for round in 0..4 * ROUNDS {
        let number = round % KEYS;
        let Some(handle) = find(&cache, number) else { continue };
        let Ok(ticket) = open(&cache, number, handle) else { continue };
        // A copy that takes its time.
        for tries in 0..u32::from(round % 3) * 4 {
            clock.pause(256 + tries);
        }
        let bytes = load(&cache, ticket.payload());
        if cache.close(&[(ticket, None)]) == [Ok(())] {
            assert_eq!(bytes, content(number), "bytes of another block");
        }
    }
    let metrics = cache.process_state().metrics();
    (metrics.fetched_blocks, metrics.all_misses().map(|(_, count)| count).sum())
}

/// Everything adds up once all is quiet.
fn check(rig: &Rig, a: &TestMember, b: &TestMember) {
    let clock = rig.serve(&[a, b]);
    let (a, b) = (Cache::attach(a, &clock).unwrap(), Cache::attach(b, &clock).unwrap());
    a.reap(&clock);
    let mut blocks = Vec::new();
    a.segment(a.member().node()).unwrap().scan(a.member().fabric(), |_, content| match content {
        Ok(SlotContent::Block(block)) => blocks.push(block),
        Ok(SlotContent::Blank | SlotContent::Free { .. }) => {}
        Err(error) => panic!("{error}"),
    });
    assert!(blocks.iter().all(|block| block.state == BlockState::Ready), "{blocks:?}");
    let heap = a.heap_use(&clock);
    assert_eq!(heap.blocks, blocks.len() as u64);
    let chunks = a.member().owned_chunks().len() as u64;
    assert_eq!(heap.free_bytes + heap.blocks * 8192, chunks * CHUNK_BYTES);
    for number in 0..KEYS {
        let there = blocks.iter().any(|block| block.key == key(number));
        for cache in [&a, &b] {
            assert_eq!(find(cache, number).is_some(), there, "block {number}");
            assert_eq!(find_and_fetch(cache, number), there, "block {number}");
        }
    }
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
}

/// A member that goes into a task and comes back when that ends well.
type Lent = Arc<Mutex<Option<TestMember>>>;

fn lend(member: TestMember) -> Lent {
    Arc::new(Mutex::new(Some(member)))
}

fn with_lent(lent: &Lent, body: impl FnOnce(&TestMember)) {
    let member = lent.lock().unwrap().take().unwrap();
    body(&member);
    *lent.lock().unwrap() = Some(member);
}

/// What came of a run.
struct Run {
    /// Operations of the second publisher.
    steps: u64,
    /// Operations of both.
    host_steps: u64,
    /// Fetches that succeeded, and that failed.
    fetches: (u64, u64),
}

/// Who dies, and before which of its operations.
#[derive(Clone, Copy)]
enum Death {
    Nobody,
    /// The second publisher.
    Process(u64),
    /// Both publishers, with their caches and their DRAM.
    Host(u64),
}

fn run(rack: SimulatedRack, seed: u64, death: Death) -> Run {
    let rig = Rig::on(rack, 2, 8, 8);
    let (first, second, reader) = (rig.join(0), rig.join(0), rig.join(1));
    {
        // A chunk is there already: no lock between hosts is needed.
        let clock = rig.serve(&[&first, &reader]);
        let cache = Cache::attach(&first, &clock).unwrap();
        let handle = publish(&cache, &clock, 0);
        cache.retire(&clock, &[handle]);
    }
    let identities = first.processes().into_iter();
    let identity_of = |member: &TestMember| {
        let mut found = identities.clone().filter(|(slot, _)| *slot == member.process());
        found.next().unwrap().1
    };
    let (both, deaths) = ([identity_of(&first), identity_of(&second)], rig.deaths.clone());
    let (first, second, reader) = (lend(first), lend(second), lend(reader));
    let fetches = Arc::new(Mutex::new((0, 0)));
    let publisher = |member: &Lent, shift| {
        let (member, clock) = (Arc::clone(member), rig.rack.clock(0));
        move || with_lent(&member, |member| work(member, &clock, ROUNDS, shift))
    };
    let fetcher = {
        let (member, clock) = (Arc::clone(&reader), rig.rack.clock(1));
        let fetches = Arc::clone(&fetches);
        move || with_lent(&member, |member| *fetches.lock().unwrap() = read(member, &clock))
    };
    let mut schedule = Schedule::builder(&rig.rack, seed)
        .faults(Faults::NONE)
        .task(0, "first", publisher(&first, 0))
        .task(0, "second", publisher(&second, 3))
        .task(1, "reader", fetcher)
        .on_crash(move |crash| {
            let dead = match crash {
                Crash::Process { .. } => &both[1..],
                Crash::Host { .. } => &both,
            };
            deaths.0.lock().unwrap().extend(dead);
        });
    schedule = match death {
        Death::Nobody => schedule,
        Death::Process(step) => schedule.crash_process_at("second", step),
        Death::Host(step) => schedule.crash_host_at(0, step),
    };
    let report = schedule.run();
    let take = |lent: &Lent| lent.lock().unwrap().take();
    let first = if report.host_crashes > 0 {
        rig.join(0)
    } else {
        if let Some(second) = take(&second) {
            // The last block that it dropped is found when it has gone.
            assert_eq!(second.leave(), LeaveOutcome::OthersRemain);
        }
        take(&first).unwrap()
    };
    check(&rig, &first, &take(&reader).unwrap());
    let fetches = *fetches.lock().unwrap();
    let steps = report.task("second").unwrap().steps;
    Run { steps, host_steps: report.host_steps[0], fetches }
}

#[test]
fn readers_never_take_one_block_for_another() {
    let (mut hits, mut misses) = (0, 0);
    for seed in 0..SEEDS {
        let racks = [
            SimulatedRack::sticky(2, REGION_BYTES),
            SimulatedRack::adversarial(2, REGION_BYTES, seed),
        ];
        for rack in racks {
            let run = run(rack, seed, Death::Nobody);
            (hits, misses) = (hits + run.fetches.0, misses + run.fetches.1);
        }
    }
    assert!(hits > SEEDS && misses > 0, "{hits} hits, {misses} misses: nothing was tried");
}

#[test]
fn publishers_may_die_anywhere() {
    for seed in 0..SEEDS {
        let rack = || SimulatedRack::adversarial(2, REGION_BYTES, seed);
        let quiet = run(rack(), seed, Death::Nobody);
        // Spread over the run, at other steps in each.
        let step = |steps: u64, part| 1 + (steps * part + steps * seed / SEEDS) / 4;
        for part in 0..4 {
            run(rack(), seed, Death::Process(step(quiet.steps, part)));
            run(rack(), seed, Death::Host(step(quiet.host_steps, part)));
        }
    }
}
