//! A pool that is always full: two publishing processes of one host that evict, and a reader on
//! another that holds what it finds, in any order of their steps, on caches that do what they like,
//! with a publisher, the publishers' host or the reader dying anywhere.

use cxl_shm::verify::simulated::schedule::Crash;
use cxl_shm::verify::simulated::{Faults, Schedule};

use super::*;
use crate::evict::Decision;
use crate::upkeep::Watermarks;

const KEYS: u8 = 12;
/// Blocks that each publisher publishes: into a segment that holds six.
const ROUNDS: u8 = 12;
const SEEDS: u64 = 20;

/// Publishes without end into a full segment: it never fails.
fn work(member: &TestMember, clock: &SimulatedClock, shift: u8) {
    let cache = Cache::attach(member, clock).unwrap();
    for round in 0..ROUNDS {
        let number = (round * 5 + shift) % KEYS;
        match cache.reserve(clock, &[spec(number)], CHUNK_TIMEOUT_MS).remove(0) {
            Reservation::Writing(block) => {
                let bytes = content(number);
                store(&cache, block.payload(), &bytes);
                assert!(cache.commit(clock, vec![(block, checksum(&bytes))])[0].is_ok());
            }
            Reservation::AlreadyThere => {}
            // The reader holds two, the other publisher writes one.
            Reservation::Refused(refusal) => panic!("{refusal}"),
        }
        if round % 4 == 3 {
            cache.upkeep(clock, Watermarks::new(70, 50).unwrap(), CHUNK_TIMEOUT_MS);
        }
    }
}

/// Holds what it finds, and fetches it some time later: it is still there, and right. Returns how
/// many. A publisher that dies may leave a descriptor half written: then it may be gone.
fn read(member: &TestMember, clock: &SimulatedClock, publishers_live: bool) -> u64 {
    let cache = Cache::attach(member, clock).unwrap();
    let mut fetched = 0;
    for round in 0..3 * ROUNDS {
        let number = round % KEYS;
        let Some(handle) = find(&cache, number) else { continue };
        let Ok(held) = cache.hold(clock, &[wanted(number, handle)], HOLD_MS).remove(0) else {
            continue;
        };
        for tries in 0..u32::from(round % 3) * 6 {
            clock.pause(256 + tries);
        }
        let outcome = fetch(&cache, number, held.handle());
        assert!(outcome.is_ok() || !publishers_live, "block {number} was held: {outcome:?}");
        fetched += u64::from(outcome.is_ok());
        // At most two at a time.
        if round % 2 == 0 {
            drop(held)
        } else {
            cache.release(clock, vec![held])
        }
        if round % 5 == 4 {
            cache.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        }
    }
    fetched
}

/// Everything adds up once all is quiet: no slot, chunk or hold is lost, and what the log announced
/// and nobody evicted is there.
fn check(rig: &Rig, a: &TestMember, b: &TestMember) {
    let clock = rig.serve(&[a, b]);
    let (a, b) = (Cache::attach(a, &clock).unwrap(), Cache::attach(b, &clock).unwrap());
    for cache in [&a, &b] {
        cache.reap(&clock);
        cache.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
    }
    let mut blocks = Vec::new();
    a.segment(a.member().node()).unwrap().scan(a.member().fabric(), |slot, content| {
        let reader_words = b.areas().own_reader_words(b.member().area());
        let reader_word = reader_words.own(b.member().fabric(), a.member().node(), slot);
        assert!(!reader_word.held, "slot {slot}: {reader_word:?}");
        match content {
            Ok(SlotContent::Block(block)) => blocks.push(block),
            Ok(SlotContent::Blank | SlotContent::Free { .. }) => {}
            Err(error) => panic!("{error}"),
        }
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
    // And it is all evictable again.
    a.evict(&clock, None, usize::MAX);
    assert_eq!(a.heap_use(&clock).blocks, 0);
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
}

/// A member that goes into a task and comes back when that ends well.
type Lent = Arc<Mutex<Option<TestMember>>>;

fn with_lent(lent: &Lent, body: impl FnOnce(&TestMember)) {
    let member = lent.lock().unwrap().take().unwrap();
    body(&member);
    *lent.lock().unwrap() = Some(member);
}

/// Who dies, and before which of its operations.
#[derive(Clone, Copy)]
enum Death {
    Nobody,
    Task(&'static str, u64),
    Host(usize, u64),
}

/// What came of a run: operations of each task, of the publishers' host, and fetches.
struct Run {
    steps: [u64; 2],
    host_steps: u64,
    fetched: u64,
}

fn run(rack: SimulatedRack, seed: u64, death: Death) -> Run {
    let rig = Rig::on(rack, 2, 8, 16);
    let (first, second, reader) = (rig.join(0), rig.join(0), rig.join(1));
    {
        // A chunk is there already: no lock between hosts is needed.
        let clock = rig.serve(&[&first, &reader]);
        let cache = Cache::attach(&first, &clock).unwrap();
        publish(&cache, &clock, 0);
    }
    let identity = |member: &TestMember| {
        let mut found = member.processes().into_iter();
        found.find(|(slot, _)| *slot == member.process()).unwrap().1
    };
    let identities = [&first, &second, &reader].map(identity);
    let deaths = rig.deaths.clone();
    let lent = [first, second, reader].map(|member| Arc::new(Mutex::new(Some(member))));
    let fetched = Arc::new(Mutex::new(0));
    let publisher = |index: usize, shift| {
        let (member, clock): (Lent, _) = (Arc::clone(&lent[index]), rig.rack.clock(0));
        move || with_lent(&member, |member| work(member, &clock, shift))
    };
    let fetcher = {
        let (member, clock) = (Arc::clone(&lent[2]), rig.rack.clock(1));
        let fetched = Arc::clone(&fetched);
        let publishers_live =
            matches!(death, Death::Nobody | Death::Task("reader", _) | Death::Host(1, _));
        move || {
            with_lent(&member, |member| {
                *fetched.lock().unwrap() = read(member, &clock, publishers_live);
            });
        }
    };
    let mut schedule = Schedule::builder(&rig.rack, seed)
        .faults(Faults::NONE)
        .task(0, "first", publisher(0, 0))
        .task(0, "second", publisher(1, 3))
        .task(1, "reader", fetcher)
        .on_crash(move |crash| {
            let dead = match crash {
                Crash::Process { task, .. } if *task == "second" => &identities[1..2],
                Crash::Process { .. } | Crash::Host { host: 1 } => &identities[2..],
                Crash::Host { .. } => &identities[..2],
            };
            deaths.0.lock().unwrap().extend(dead);
        });
    schedule = match death {
        Death::Nobody => schedule,
        Death::Task(task, step) => schedule.crash_process_at(task, step),
        Death::Host(host, step) => schedule.crash_host_at(host, step),
    };
    let report = schedule.run();
    let take = |index: usize| lent[index].lock().unwrap().take();
    let second = take(1);
    let first = take(0).unwrap_or_else(|| rig.join(0));
    if let Some(second) = second {
        assert_eq!(second.leave(), LeaveOutcome::OthersRemain);
    }
    check(&rig, &first, &take(2).unwrap_or_else(|| rig.join(1)));
    let steps = |task| report.task(task).unwrap().steps;
    let fetched = *fetched.lock().unwrap();
    Run { steps: [steps("second"), steps("reader")], host_steps: report.host_steps[0], fetched }
}

#[test]
fn what_is_held_is_never_evicted() {
    let mut fetched = 0;
    for seed in 0..SEEDS {
        for rack in [
            SimulatedRack::sticky(2, REGION_BYTES),
            SimulatedRack::adversarial(2, REGION_BYTES, seed),
        ] {
            fetched += run(rack, seed, Death::Nobody).fetched;
        }
    }
    assert!(fetched > 4 * SEEDS, "{fetched} fetches: nothing was tried");
}

#[test]
fn everybody_may_die_anywhere() {
    for seed in 0..SEEDS {
        let rack = || SimulatedRack::adversarial(2, REGION_BYTES, seed);
        let quiet = run(rack(), seed, Death::Nobody);
        // Spread over the run, at other steps in each.
        let step = |steps: u64, part| 1 + (steps * part + steps * seed / SEEDS) / 3;
        for part in 0..3 {
            run(rack(), seed, Death::Task("second", step(quiet.steps[0], part)));
            run(rack(), seed, Death::Task("reader", step(quiet.steps[1], part)));
            run(rack(), seed, Death::Host(0, step(quiet.host_steps, part)));
            run(rack(), seed, Death::Host(1, step(quiet.steps[1], part)));
        }
    }
}

/// All that eviction and holds do at once; also run with flushes and fences removed.
pub(super) fn held_and_evicted(rack: SimulatedRack) {
    for seed in 0..4 {
        run(rack.clone(), seed, Death::Nobody);
    }
}

/// Step by step, with caches that hold everything as it was before; also run with flushes and
/// fences removed.
pub(super) fn nobody_looks_at_what_was(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 64);
    let first = rig.join(0);
    let handles: Vec<Handle>;
    {
        let clock = rig.serve(&[&first]);
        let a = Cache::attach(&first, &clock).unwrap();
        handles = (1..=6).map(|number| publish(&a, &clock, number)).collect();
        // The owner has seen that nobody else is there, and what nobody has marked.
        look(&a, &clock, &handles);
    }
    let second = rig.join(1);
    let clock = rig.serve(&[&first, &second]);
    let (a, b) = (Cache::attach(&first, &clock).unwrap(), Cache::attach(&second, &clock).unwrap());
    let evict = |want| a.evict(&clock, None, want);
    // Each is held when it was to go, and goes when it is not: the reader, whose caches hold all
    // descriptors, finds out.
    let held = hold(&b, &clock, 1).unwrap();
    let slots = [handles[0].slot()];
    let now_ms = clock.now_ms();
    let evicted =
        a.locked(&clock, |heap| heap.evict_all(&mut a.process_state().order(), now_ms, &slots));
    assert_eq!(evicted, 0, "somebody is there now");
    b.release(&clock, vec![held]);
    let held = b.hold(&clock, &[wanted(1, handles[0])], HOLD_MS).remove(0).unwrap();
    let keys: Vec<_> = (1..=6).map(|number| find(&b, number).unwrap()).collect();
    assert_eq!(keys, handles);
    for (number, handle) in (1..).zip(&handles) {
        assert_eq!(fetch(&b, number, *handle), Ok(()));
    }
    b.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
    assert_eq!(evict(2), 2);
    let error = b.hold(&clock, &[wanted(2, handles[1])], HOLD_MS).remove(0).unwrap_err();
    assert_eq!(error, Miss::Evicted.into());
    // Spared, it is READY for the next one who holds it.
    let again = b.hold(&clock, &[wanted(1, handles[0])], HOLD_MS).remove(0).unwrap();
    b.release(&clock, vec![held, again]);
    // EVICT-H1, with the reader between the owner's look and its decision: it does not take READY
    // for granted.
    a.locked(&clock, |heap| {
        let writer = heap.writer();
        let announced = writer.announce(heap.ready(&[handles[5].slot()]));
        let decision = writer.decide(&mut crate::evict::HoldWatch::default(), announced, 0);
        assert_eq!((decision.stay.len(), decision.leave.len()), (0, 1));
        let error = hold(&b, &clock, 6).unwrap_err();
        assert_eq!(error, Miss::NotReady.into());
        // It changes its mind, and nothing was lost.
        let Decision { stay, leave } = decision;
        writer.commit(&Decision { stay: leave, leave: stay }, |_| panic!("nothing leaves"));
    });
    b.release(&clock, vec![hold(&b, &clock, 6).unwrap()]);
    // What was used goes last.
    assert!(find_and_fetch(&b, 4));
    b.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
    assert_eq!(evict(1), 1);
    assert!(find_and_fetch(&b, 4), "it was used");
    while evict(1) > 0 {}
    let segment = b.segment(first.node()).unwrap();
    segment.scan(b.member().fabric(), |slot, content| {
        let ends = SlotContent::Blank == content.unwrap()
            || matches!(content, Ok(SlotContent::Free { ends_search: true, .. }));
        assert!(ends, "slot {slot}: {content:?}");
    });

    // The region is full, then it is not; who has seen the one finds out about the other.
    let chunks = first.layout().chunks();
    let mut taken = Vec::new();
    while let Ok(chunk) = second.allocate_chunk(&clock, CHUNK_TIMEOUT_MS, 5) {
        taken.push(chunk);
    }
    assert!(taken.len() + 2 >= chunks as usize);
    assert!(!a.has_free_chunk());
    second.free_chunk(&clock, CHUNK_TIMEOUT_MS, taken[0]).unwrap();
    assert!(a.has_free_chunk());

    // A block whose owner lives, and then does not.
    let writing = reserve(&b, &clock, 9);
    let handle = writing.descriptor.handle;
    assert_eq!(open(&a, 9, handle), Err(Miss::NotReady));
    std::mem::forget(writing);
    drop(b);
    drop(clock);
    assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    assert_eq!(open(&a, 9, handle), Err(Miss::OwnerDead));
    assert_eq!(rig.rack.conflicts(), []);
}

/// The owner's caches hold what all hosts say of its blocks.
fn look(owner: &TestCache<'_>, clock: &impl Clock, handles: &[Handle]) {
    let slots: Vec<_> = handles.iter().map(|handle| handle.slot()).collect();
    let mut watch = crate::evict::HoldWatch::default();
    let now_ms = clock.now_ms();
    let seen = owner.locked(clock, |heap| heap.look_at_reader_words(&mut watch, &slots, now_ms));
    assert!(seen.iter().all(|seen| !seen.held && seen.used.is_none()));
    // Those of nodes that are not there are not looked at.
    for node in owner.areas().layout().nodes() {
        for slot in &slots {
            owner
                .areas()
                .reader_words(node)
                .word(owner.member().node(), *slot)
                .cached(owner.member().fabric());
        }
    }
}

#[test]
fn everybody_looks_freshly() {
    nobody_looks_at_what_was(SimulatedRack::sticky(2, REGION_BYTES));
}
