//! An update of several lines is done, or is not, wherever its host dies.

use proptest::prelude::*;

use super::*;
use crate::clock::SystemClock;
use crate::host::{HostIdentity, HostTier, ProcLiveness, ProcessIdentity};
use crate::layout::{ChunkState, Geometry, Superblock, format_superblock};
use crate::node::Member;
use crate::units::Incarnation;
use crate::verify::SimulatedBackend;
use crate::verify::simulated::{Schedule, Settings, SimulatedHost, SimulatedRack};

const LINES: u32 = 5;

fn rack(seed: u64) -> (SimulatedRack, Geometry) {
    let geometry = Geometry {
        region_bytes: 2 << 20,
        nodes: 2,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    };
    let settings = match seed % 2 {
        0 => Settings { seed, ..Settings::sticky(2, geometry.region_bytes) },
        _ => Settings::adversarial(2, geometry.region_bytes, seed),
    };
    let rack = SimulatedRack::with(settings);
    let superblock = Superblock::new([1, 2], geometry, [0; 6]);
    format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
    (rack, geometry)
}

fn entry(number: u32) -> ChunkEntry {
    let owner = NodeId(0);
    ChunkEntry::new(ChunkState::Owned {
        owner,
        incarnation: Incarnation(number),
        purpose: u64::from(number),
    })
}

fn join(rack: &SimulatedRack, geometry: &Geometry, host: u16) -> Member<SimulatedBackend> {
    let memory = rack.host_memory(usize::from(host), HostTier::words_of(geometry));
    let identity = HostIdentity::simulated(u64::from(host));
    let me = ProcessIdentity::current().unwrap();
    let fabric = rack.host(usize::from(host));
    let clock = SystemClock::start();
    Member::join(fabric, memory, host, &identity, me, ProcLiveness, &clock).unwrap()
}

fn update(layout: &Layout, fabric: &SimulatedHost) -> Update {
    (0..LINES).fold(Update::new(layout, CHUNK_LOCK), |update, chunk| {
        update.line(fabric, layout.chunk_entry(ChunkId(chunk)), &entry(chunk))
    })
}

/// How many of the entries host 1 sees written; the others are as they were.
fn written(layout: &Layout, fabric: &SimulatedHost) -> u32 {
    let seen = |chunk| layout.chunk_entry(ChunkId(chunk)).fresh(fabric).unwrap();
    let done = (0..LINES).filter(|chunk| seen(*chunk) == entry(*chunk)).count();
    let not = (0..LINES).filter(|chunk| seen(*chunk).state() == Some(ChunkState::Free)).count();
    assert_eq!(done + not, LINES as usize, "a line is neither as it was nor as it was to be");
    u32::try_from(done).unwrap()
}

#[test]
fn an_update_is_whole_or_undone_wherever_its_host_dies() {
    let mut outcomes = [0; 2];
    for step in 1.. {
        for seed in 0..6 {
            let (rack, geometry) = rack(seed);
            let layout = Layout::new(geometry).unwrap();
            let member = join(&rack, &geometry, 0);
            let fabric = rack.host(0);
            // Warm caches: the recoverer has seen what was there before.
            assert_eq!(written(&layout, &rack.host(1)), 0);
            rack.host(1).read_line(layout.intents(NodeId(0)).range().start());
            let report = Schedule::builder(&rack, seed)
                .crash_host_at(0, step)
                .task(0, "writer", move || {
                    let layout = *member.layout();
                    update(&layout, &fabric).commit(member.node_handle(), &fabric);
                })
                .run();
            let died = report.tasks.iter().any(|task| task.crashes > 0);
            let redone = redo_of_dead(&layout, &rack.host(1), NodeId(0));
            let whole = written(&layout, &rack.host(1));
            assert!(whole == 0 || whole == LINES, "{whole} lines at step {step}, seed {seed}");
            assert!(redone == 0 || whole == LINES, "redone at step {step}, seed {seed}");
            assert_eq!(redo_of_dead(&layout, &rack.host(1), NodeId(0)), 0, "closed");
            outcomes[usize::from(whole == LINES)] += 1;
            if !died {
                assert!(outcomes.iter().all(|count| *count > 10), "both happen: {outcomes:?}");
                return;
            }
        }
    }
}

#[test]
fn a_recoverer_that_dies_is_followed_by_another() {
    for step in 1..40 {
        let (rack, geometry) = rack(step);
        let layout = Layout::new(geometry).unwrap();
        let member = join(&rack, &geometry, 0);
        let fabric = rack.host(0);
        let (targets, images) = {
            let Update { targets, images, .. } = update(&layout, &fabric);
            (targets, images)
        };
        open(&member.node_handle().intent(CHUNK_LOCK), &fabric, CHUNK_LOCK, &targets, &images);
        let recoverer = rack.host(1);
        Schedule::builder(&rack, step)
            .crash_host_at(1, step)
            .task(1, "recoverer", move || {
                redo_of_dead(&layout, &recoverer, NodeId(0));
            })
            .run();
        redo_of_dead(&layout, &rack.host(1), NodeId(0));
        assert_eq!(written(&layout, &rack.host(1)), LINES, "step {step}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_intent_reaches_outside_of_what_its_lock_guards(
        lock in 0u32..10, images in 0u32..12, targets: [u32; INTENT_IMAGES], crc: u32, fits: bool,
        words: [u64; 8],
    ) {
        let (rack, geometry) = rack(0);
        let layout = Layout::new(geometry).unwrap();
        let fabric = rack.host(0);
        let intents = layout.intents(NodeId(0)).claim();
        let first = u64::from(lock % 8) * INTENT_LINES;
        let intent = intents.part(first, INTENT_LINES).unwrap();
        for line in image_lines(&intent) {
            fabric.write_line(line, &words);
        }
        let count = usize::try_from(images).unwrap().min(INTENT_IMAGES);
        let crc = if fits { crc_of(&vec![words; count]) } else { crc };
        let targets = &targets.map(|target| if fits { target % 40 } else { target })[..count];
        let head = IntentRecord::opened(LockId(lock), targets, crc);
        head_of(&intent).claim().publish(&fabric, &head);

        let outside = |line: &LineOffset| {
            let inside = |range: LineRange| {
                (range.start().bytes()..range.end_bytes()).contains(&line.bytes())
            };
            !guarded(&layout, LockId(lock)).is_some_and(inside)
                && !inside(layout.intents(NodeId(0)).range())
        };
        let all = LineRange::new(LineOffset::new(0).unwrap(), geometry.region_bytes / 64).unwrap();
        let before: Vec<_> =
            all.iter().filter(outside).map(|line| fabric.read_line(line)).collect();
        redo_of_dead(&layout, &fabric, NodeId(0));
        let after: Vec<_> =
            all.iter().filter(outside).map(|line| fabric.read_line(line)).collect();
        prop_assert!(before == after);
        prop_assert_eq!(redo_of_dead(&layout, &fabric, NodeId(0)), 0);
    }

    #[test]
    fn no_pattern_of_bytes_in_an_intent_stops_a_recovery(lines: Vec<[u64; 8]>) {
        let (rack, geometry) = rack(0);
        let layout = Layout::new(geometry).unwrap();
        let fabric = rack.host(0);
        for (at, words) in layout.intents(NodeId(0)).range().iter().zip(lines) {
            fabric.write_line(at, &words);
        }
        prop_assert_eq!(redo_of_dead(&layout, &fabric, NodeId(0)), 0);
    }
}
