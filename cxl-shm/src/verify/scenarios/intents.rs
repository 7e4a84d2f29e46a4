//! A holder dies within an update of several lines, and its host, and the process that redoes it.

use super::racks::{OBSERVER, Racks, layout};
use crate::fabric::refresh_all;
use crate::host::HostTier;
use crate::intent::{Update, redo_of_dead, redo_own};
use crate::layout::{CHUNK_LOCK, ChunkEntry, ChunkState, INTENT_LINES, IntentRecord, LockProtocol};
use crate::node::NodeHandle;
use crate::units::{ChunkId, Incarnation, LineRange, NodeId};
use crate::verify::SimulatedBackend;
use crate::verify::simulated::{Faults, Schedule, SimulatedHost, SimulatedRack};

const DEAD: NodeId = NodeId(0);
const LINES: u32 = 4;

fn entry(number: u32) -> ChunkEntry {
    let incarnation = Incarnation(number + 1);
    ChunkEntry::new(ChunkState::Owned { owner: DEAD, incarnation, purpose: 7 })
}

fn node_handle(rack: &SimulatedRack) -> NodeHandle<SimulatedBackend> {
    let layout = layout();
    let memory = rack.host_memory(0, HostTier::words_of(&layout.geometry()));
    NodeHandle::new(layout, LockProtocol::Bakery, DEAD, HostTier::new(memory, layout.locks()))
}

fn update(handle: &NodeHandle<SimulatedBackend>, fabric: &SimulatedHost) {
    let layout = handle.layout();
    let lines = (0..LINES).map(|chunk| (layout.chunk_entry(ChunkId(chunk)), entry(chunk)));
    // LOCK-L1.
    refresh_all(fabric, lines.clone().map(|(line, _)| line.range()));
    let update = lines.fold(Update::new(layout, CHUNK_LOCK), |update, (line, entry)| {
        update.line(fabric, line, &entry)
    });
    update.commit(handle, fabric);
}

/// That the update was made or not made, and that nothing is left open.
fn check(rack: &SimulatedRack, when: &str) {
    let (layout, fabric) = (layout(), rack.host(OBSERVER));
    let made = (0..LINES).map(|chunk| {
        let found = layout.chunk_entry(ChunkId(chunk)).fresh(&fabric);
        let found = found.unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(found == entry(chunk) || found.state() == Some(ChunkState::Free), "{when}");
        u32::from(found == entry(chunk))
    });
    let made: u32 = made.sum();
    assert!(made == 0 || made == LINES, "{when}: {made} lines of {LINES}");
    let head = layout.intents(DEAD).line::<IntentRecord>(u64::from(CHUNK_LOCK.0) * INTENT_LINES);
    let head = head.and_then(|head| head.fresh(&fabric).ok());
    assert!(head.is_none_or(|head| head.open(CHUNK_LOCK).is_none()), "{when}: left open");
}

fn schedule(rack: &SimulatedRack) -> Schedule {
    Schedule::builder(rack, rack.settings().seed).faults(Faults::NONE)
}

fn holder(rack: &SimulatedRack) -> Schedule {
    let (handle, fabric) = (node_handle(rack), rack.host(0));
    schedule(rack).task(0, "holder", move || update(&handle, &fabric))
}

/// The recoverer's caches know the lines from before.
fn redo_elsewhere(rack: &SimulatedRack, layout: &crate::layout::Layout) {
    redo_of_dead(layout, &rack.host(1), DEAD);
}

/// A host loses power at each operation of an update; a host whose caches know all lines from
/// before redoes it.
pub(super) fn holders_are_redone(racks: &Racks<'_>) {
    for loss in 0..2 {
        let mut step = 1;
        loop {
            let rack = racks.formatted(step * 2 + loss);
            rack.warm(1, LineRange::covering(layout().metadata()));
            let report = holder(&rack).crash_host_at(0, step).run();
            redo_elsewhere(&rack, &layout());
            check(&rack, &format!("host dies at {step}"));
            if report.host_crashes == 0 {
                break;
            }
            step += 1;
        }
    }
}

/// A process dies at each operation of an update, and the host at each operation of the redo by
/// another of its processes; then another host redoes it.
pub(super) fn holders_and_hosts_die(racks: &Racks<'_>) {
    let mut first = 1;
    let mut died = true;
    while died {
        let mut second = 1;
        loop {
            let rack = racks.formatted(first << 16 | second);
            died = holder(&rack).crash_process_at("holder", first).run().process_crashes > 0;
            let (handle, fabric) = (node_handle(&rack), rack.host(0));
            let report = schedule(&rack)
                .task(0, "next", move || redo_own(&handle, &fabric, CHUNK_LOCK))
                .crash_host_at(0, second)
                .run();
            if report.host_crashes == 0 {
                // What its host has redone is done for all others, whatever its caches do later.
                rack.crash(0);
            }
            redo_elsewhere(&rack, &layout());
            check(&rack, &format!("process dies at {first}, host at {second}"));
            if report.host_crashes == 0 {
                break;
            }
            second += 1;
        }
        first += 1;
    }
}
