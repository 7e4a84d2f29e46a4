//! A process dies and leaves unpublished stores in the caches of a host that lives on; then the
//! lines pass to another host, and the stores must not arrive after the writes of that host
//! (MEM-M1).

use super::racks::{OBSERVER, Racks, layout};
use crate::fabric::Fabric;
use crate::host::HostTier;
use crate::intent::{Update, redo_of_dead};
use crate::layout::HEAP_PURPOSE;
use crate::layout::header;
use crate::layout::{
    CHUNK_LOCK, ChunkEntry, ChunkState, HeapHeader, INTENT_LINES, IntentRecord, Layout,
    LockProtocol,
};
use crate::lifecycle::{flush_killed, flush_recovery};
use crate::lock::clear_requests_of;
use crate::node::NodeHandle;
use crate::units::{ChunkId, Incarnation, LineOffset, LineRange, NodeId};
use crate::verify::SimulatedBackend;
use crate::verify::simulated::{Faults, Schedule, SimulatedRack};

const DEAD: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);
/// Chunks that the dead was taking for its heap.
const TAKEN: [ChunkId; 2] = [ChunkId(0), ChunkId(3)];

fn schedule(rack: &SimulatedRack) -> Schedule {
    Schedule::builder(rack, rack.settings().seed).faults(Faults::NONE)
}

fn entry(owner: NodeId, purpose: u64) -> ChunkEntry {
    ChunkEntry::new(ChunkState::Owned { owner, incarnation: Incarnation(1), purpose })
}

fn check_writers(rack: &SimulatedRack, when: &str) {
    let conflicts = rack.conflicts();
    assert!(conflicts.is_empty(), "{when}: lines with two writing hosts (MEM-M1): {conflicts:?}");
}

/// A host loses power within an update that gives chunks to its heap, holding the lock. The process
/// that recovers it dies at each operation, and its host gives the recovery up: the next recoverer,
/// on another host, is the only one that writes.
pub(super) fn a_recovery_passes_on(racks: &Racks<'_>) {
    let layout = layout();
    let opened = (1..).find(|step| is_open(&dead_at(racks, *step, 0), &layout));
    let opened = opened.expect("an update opens an intent");
    for step in 1.. {
        let rack = dead_at(racks, opened, step);
        let recoverer = rack.host(1);
        let report = schedule(&rack)
            .task(1, "recoverer", move || {
                redo_of_dead(&layout, &recoverer, DEAD);
                clear_requests_of(LockProtocol::Bakery, &layout, &recoverer, DEAD);
            })
            .crash_process_at("recoverer", step)
            .run();
        flush_recovery(&layout, &rack.host(1), DEAD, || ());
        let next = rack.host(OBSERVER);
        redo_of_dead(&layout, &next, DEAD);
        clear_requests_of(LockProtocol::Bakery, &layout, &next, DEAD);
        for chunk in TAKEN {
            let built = HeapHeader::built_by(OTHER, Incarnation(2));
            header(layout.chunk(chunk)).claim().publish(&next, &built);
        }
        check_writers(&rack, &format!("the recoverer dies at {step}"));
        let request = layout.request(DEAD, CHUNK_LOCK).fresh(&rack.host(0));
        assert_eq!(request, 0, "the recoverer dies at {step}: the dead still asks for the lock");
        if report.process_crashes == 0 {
            break;
        }
    }
}

/// A rack on which host 0 lost power at operation `step` of its update.
fn dead_at(racks: &Racks<'_>, step: u64, run: u64) -> SimulatedRack {
    let rack = racks.formatted(step << 16 | run);
    let layout = layout();
    let memory = rack.host_memory(0, HostTier::words_of(&layout.geometry()));
    let tier = HostTier::new(memory, layout.locks());
    let handle = NodeHandle::<SimulatedBackend>::new(layout, LockProtocol::Bakery, DEAD, tier);
    let fabric = rack.host(0);
    // Its recoverer knows its lines from before.
    [1, OBSERVER]
        .into_iter()
        .for_each(|host| rack.warm(host, LineRange::covering(layout.metadata())));
    let update = move || {
        handle.request(CHUNK_LOCK).publish(&fabric, 1);
        let update = Update::new(&layout, CHUNK_LOCK);
        let given = |update: Update, chunk: ChunkId| {
            update.line(&fabric, layout.chunk_entry(chunk), &entry(DEAD, HEAP_PURPOSE))
        };
        TAKEN.into_iter().fold(update, given).commit(&handle, &fabric);
    };
    schedule(&rack).task(0, "dies", update).crash_host_at(0, step).run();
    rack
}

fn is_open(rack: &SimulatedRack, layout: &Layout) -> bool {
    let head = layout.intents(DEAD).line::<IntentRecord>(u64::from(CHUNK_LOCK.0) * INTENT_LINES);
    let head = head.and_then(|head| head.fresh(&rack.host(OBSERVER)).ok());
    head.is_some_and(|head| head.open(CHUNK_LOCK).is_some())
}

/// The processes of a node are killed with stores in everything that they may write: their own
/// lines, those of a node that they recover, and chunks. After the fence others write all of it.
pub(super) fn the_killed_leave_nothing(racks: &Racks<'_>) {
    for run in 0..4 {
        let (rack, layout) = (racks.formatted(run), layout());
        // Their machine knows the chunk table as it was when all chunks were free.
        (0..3).for_each(|host| rack.warm(host, LineRange::covering(layout.metadata())));
        let [own, heap, unreadable, free] = [1, 2, 4, 5].map(ChunkId);
        let table = rack.host(1);
        for (chunk, entry) in [(own, entry(DEAD, 7)), (heap, entry(OTHER, HEAP_PURPOSE))] {
            layout.chunk_entry(chunk).claim().publish(&table, &entry);
        }
        let damaged = layout.chunk_entry(unreadable);
        table.write_line(damaged.at(), &[5; 8]);
        table.publish(damaged.range());

        let inside = |chunk| {
            let page = layout.chunk(chunk).offset() + 4096;
            LineOffset::new(page).expect("chunks are aligned")
        };
        let written = [
            layout.node_line(DEAD).at(),
            layout.node_line(OTHER).at(),
            layout.area(DEAD).range().start(),
            layout.area(OTHER).range().start(),
            layout.lock_table().range().start(),
            layout.intents(OTHER).range().start(),
            header(layout.chunk(free)).at(),
            inside(own),
            inside(heap),
            inside(unreadable),
        ];
        let killed = rack.host(0);
        schedule(&rack)
            .task(0, "killed", move || {
                written.iter().for_each(|line| killed.write_line(*line, &[1; 8]));
            })
            .run();
        flush_killed(&layout, &rack.host(0), DEAD);
        let next = rack.host(OBSERVER);
        for line in written {
            next.write_line(line, &[2; 8]);
            next.publish(LineRange::one(line));
        }
        check_writers(&rack, "after the fence");
    }
}
