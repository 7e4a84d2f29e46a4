//! Reading without a lock: sealed records, and blocks behind a descriptor that is looked at twice.

use std::rc::Rc;

use bytemuck::{Pod, Zeroable};

use super::ground::word;
use crate::fabric::{Fabric, LineError, OwnedArea, PublishBatch, Record, refresh_all};
use crate::mutant::{self, Mutant};
use crate::units::{LineOffset, LineRange};
use crate::verify::explored::{Model, Step, Task, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
struct Numbered {
    words: [u64; 7],
}

impl Record for Numbered {
    const KIND: u32 = u32::from_le_bytes(*b"PROF");
}

/// The record of round `n`: every word tells it.
fn record(n: u64) -> Numbered {
    // Two words change: that is enough to be torn between them, and from the seal.
    Numbered { words: [n, n, 0, 0, 0, 0, 0] }
}

fn area() -> OwnedArea {
    let first = LineOffset::new(4096).expect("a page starts with a line");
    OwnedArea::new(LineRange::new(first, 8).expect("a few lines"))
}

/// A writer or a reader.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum RecordTask {
    /// Publishes records 1, 2 and so on, `left` more of them.
    RecordWriter { written: u64, left: u64 },
    /// Reads the record, `left` more times; `last` is the newest it has seen.
    RecordReader { last: u64, left: u64 },
    /// Publishes blocks 1, 2 and so on at one place: no descriptor, payload, descriptor.
    BlockWriter { written: u64, left: u64, lines: u64 },
    /// Reads a block: descriptor, payload, descriptor.
    BlockReader { left: u64, lines: u64 },
}

impl Task for RecordTask {
    fn step(&mut self, world: World) -> Step {
        match self {
            Self::RecordWriter { left: 0, .. }
            | Self::RecordReader { left: 0, .. }
            | Self::BlockWriter { left: 0, .. }
            | Self::BlockReader { left: 0, .. } => return Step::Ends,
            Self::RecordWriter { written, left } => {
                *written += 1;
                *left -= 1;
                let line = area().line::<Numbered>(0).expect("the area has lines");
                line.publish(&world.fabric(), &record(*written));
            }
            Self::RecordReader { last, left } => {
                *left -= 1;
                *last = read_record(world, *last);
            }
            Self::BlockWriter { written, left, lines } => {
                *written += 1;
                *left -= 1;
                write_block(world, *written, *lines);
            }
            Self::BlockReader { left, lines } => {
                *left -= 1;
                read_block(world, *lines);
            }
        }
        Step::Goes
    }

    fn view(&self) -> u64 {
        match self {
            Self::RecordWriter { left, .. }
            | Self::RecordReader { left, .. }
            | Self::BlockWriter { left, .. }
            | Self::BlockReader { left, .. } => u64::from(*left == 0),
        }
    }
}

fn read_record(world: World, last: u64) -> u64 {
    let line = area().line::<Numbered>(0).expect("the area has lines").peer();
    match line.fresh(&world.fabric()) {
        Ok(found) if found != record(found.words[0]) => {
            world.refute(format!("a torn record is taken for a whole one: {found:?}"))
        }
        Ok(found) if found.words[0] < last => {
            world.refute(format!("record {} comes after {last}", found.words[0]))
        }
        Ok(found) => found.words[0],
        Err(LineError::Blank { .. }) if last > 0 => world.refute("a record has gone"),
        Err(LineError::Blank { .. } | LineError::Corrupt { .. }) => last,
    }
}

/// Line 0 is the descriptor: the number of the block, or 0 while there is none. The payload is
/// on the lines after it.
fn write_block(world: World, number: u64, lines: u64) {
    let (fabric, area) = (world.fabric(), area());
    let descriptor = area.word(0).expect("the area has lines");
    descriptor.publish(&fabric, 0);
    let mut batch = PublishBatch::new(&fabric);
    for line in 1..=lines {
        batch.word(area.word(line * 8).expect("the area has lines"), number);
    }
    batch.publish();
    descriptor.publish(&fabric, number);
}

fn read_block(world: World, lines: u64) {
    let (fabric, area) = (world.fabric(), area().peer());
    let descriptor = area.word(0).expect("the area has lines");
    let payload = area.part(1, lines).expect("the area has lines").range();
    let number = if mutant::is(Mutant::RefreshesUpFront) {
        refresh_all(&fabric, [descriptor.range(), payload]);
        descriptor.cached(&fabric)
    } else {
        descriptor.fresh(&fabric)
    };
    if number == 0 {
        return;
    }
    if !mutant::is(Mutant::RefreshesUpFront) {
        fabric.refresh(payload);
    }
    let found: Vec<u64> = payload.iter().map(|line| fabric.load(word(line, 0))).collect();
    let is_still = mutant::is(Mutant::SkipsSecondLook) || descriptor.fresh(&fabric) == number;
    if is_still && found.iter().any(|value| *value != number) {
        world.refute(format!("block {number} was accepted with the payload {found:?}"));
    }
}

fn model(tasks: [RecordTask; 2]) -> Model<RecordTask> {
    let mut model = Model::new(2, 1 << 20);
    let [writer, reader] = tasks;
    model.run("writer", 0, writer);
    model.run("reader", 1, reader);
    model.ended = Rc::new(|views| views == [1, 1]);
    model.names.push((area().range(), "area".to_owned()));
    model
}

/// One host publishes `rounds` records, another reads as many times.
pub(super) fn read_records(rounds: u64) -> Model<RecordTask> {
    model([
        RecordTask::RecordWriter { written: 0, left: rounds },
        RecordTask::RecordReader { last: 0, left: rounds },
    ])
}

/// One host publishes `rounds` blocks of `lines` lines at one place, another reads as many times.
pub(super) fn read_blocks(rounds: u64, lines: u64) -> Model<RecordTask> {
    model([
        RecordTask::BlockWriter { written: 0, left: rounds, lines },
        RecordTask::BlockReader { left: rounds, lines },
    ])
}
