//! A process dies between the two lines of a double-buffered record, and then its host.

use super::racks::{OBSERVER, Racks};
use crate::fabric::refresh_all;
use crate::layout::{Case, RecoveryRecord, RecoveryStep};
use crate::layout::{OwnedDoubleBuffer, PeerDoubleBuffer};
use crate::units::{Incarnation, NodeId};
use crate::verify::simulated::{EventKind, Faults, Schedule, SimulatedRack};

use super::racks::layout;

const WRITER: NodeId = NodeId(0);
const ABOUT: NodeId = NodeId(1);
/// Each with other losses.
const ROUNDS: u64 = 96;
/// Operations of the first writes: two of them, so that both lines are dirty at some of them.
const STEPS: std::ops::Range<u64> = 8..32;

/// A process writes one value after the other and dies at any operation; another process of its
/// host continues and writes the next; the host loses power in the middle of that, where it leaves
/// a line torn. What had reached the device before is still there, or something newer.
pub(super) fn double_buffers_are_never_forgotten(racks: &Racks<'_>) {
    for round in 0..ROUNDS {
        for process_dies in STEPS {
            let run = round * STEPS.end + process_dies;
            let tears = write_on(&racks.formatted(run), process_dies, None);
            for host_dies in tears {
                write_on(&racks.formatted(run), process_dies, Some(host_dies));
            }
        }
    }
}

/// The operations of the second process, from 1, at which a line is half written.
fn write_on(rack: &SimulatedRack, process_dies: u64, host_dies: Option<u64>) -> Vec<u64> {
    let seed = rack.settings().seed;
    let schedule = || Schedule::builder(rack, seed).faults(Faults::NONE);
    let host = rack.host(0);
    schedule()
        .task(0, "first", move || {
            let double_buffer = OwnedDoubleBuffer::of(layout().recoveries(WRITER).claim(), ABOUT);
            (1..=4).for_each(|number| double_buffer.publish(&host, value(number)));
        })
        .crash_process_at("first", process_dies)
        .run();
    let before = read(rack);
    let host = rack.host(0);
    let next = schedule().task(0, "next", move || {
        let double_buffer =
            OwnedDoubleBuffer::<RecoveryRecord>::of(layout().recoveries(WRITER).claim(), ABOUT);
        double_buffer.flush_both(&host);
        let last = double_buffer.own(&host).ok().flatten().map_or(0, number_of);
        double_buffer.publish(&host, value(last + 1));
    });
    let events = rack.history().len();
    match host_dies {
        Some(step) => next.crash_host_at(0, step).run(),
        None => next.run(),
    };
    let history = rack.history().into_iter().skip(events);
    // What caches do by themselves takes no operation.
    let operations = history.filter(|event| event.task.is_some() && event.kind.is_operation());
    let after = read(rack);
    assert!(after >= before, "{before} had reached the device, {after} is left");
    // The second part of a line is noted with the word that it begins with.
    let tears = operations
        .zip(1..)
        .filter(|(event, _)| event.kind == EventKind::WriteLine && event.value > 0);
    tears.map(|(_, step)| step).collect()
}

fn value(number: u32) -> RecoveryRecord {
    let case = Case { incarnation: Incarnation(1), appointment: number };
    RecoveryRecord::new(case, Incarnation(1), RecoveryStep::Fenced)
}

fn number_of(record: RecoveryRecord) -> u32 {
    record.case().appointment
}

/// What a host reads that has not looked since; 0 before the first value.
fn read(rack: &SimulatedRack) -> u32 {
    let fabric = rack.host(OBSERVER);
    let double_buffer = PeerDoubleBuffer::<RecoveryRecord>::of(layout().recoveries(WRITER), ABOUT);
    refresh_all(&fabric, double_buffer.ranges());
    let found = double_buffer.cached(&fabric);
    found.unwrap_or_else(|_| panic!("neither line can be read")).map_or(0, number_of)
}
