//! What every fabric guarantees, whatever is below it: the simulated rack in all its modes and two
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
//! mappings of one file obey the same contract.

use cxl_shm::fabric::simulated::{Settings, SimulatedRack};
use cxl_shm::fabric::{Fabric, HostMemory, MappedFabric, MappedHostMemory, Mapping};
use cxl_shm::units::{LineOffset, LineRange, WordOffset};

const BYTES: u64 = 64 * 1024;

fn line(number: u64) -> LineOffset {
    LineOffset::new(number * 64).unwrap()
}

fn lines(first: u64, count: u64) -> LineRange {
    LineRange::new(line(first), count).unwrap()
}

fn word(number: u64, index: usize) -> WordOffset {
    line(number).word(index).unwrap()
}

/// The guarantees that one thread can see, with two hosts' views of one blank memory.
fn conformance(writer: &impl Fabric, reader: &impl Fabric) {
    blank_memory_is_zero(writer, reader);
    own_stores_are_seen_at_once(writer);
    what_is_published_is_seen_after_a_refresh(writer, reader);
    a_load_gives_a_value_that_the_word_had(writer, reader);
    lines_of_a_range_are_published_together(writer, reader);
    a_flush_does_not_lose_stores(writer);
    words_of_a_line_are_where_they_belong(writer, reader);
    ownership_can_be_handed_over(writer, reader);
    an_empty_range_does_nothing(writer);
    the_last_word_can_be_used(writer, reader);
    nothing_outside_is_touched(writer);
}

fn blank_memory_is_zero(writer: &impl Fabric, reader: &impl Fabric) {
    assert_eq!((writer.bytes(), reader.bytes()), (BYTES, BYTES));
    assert_eq!(writer.load(word(0, 0)), 0);
    assert_eq!(reader.read_line(line(1)), [0; 8]);
}

fn own_stores_are_seen_at_once(writer: &impl Fabric) {
    writer.store(word(2, 1), 11);
    assert_eq!(writer.load(word(2, 1)), 11);
    writer.write_line(line(3), &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(writer.read_line(line(3)), [1, 2, 3, 4, 5, 6, 7, 8]);
}

fn what_is_published_is_seen_after_a_refresh(writer: &impl Fabric, reader: &impl Fabric) {
    for value in 1..50 {
        writer.store(word(4, 2), value);
        writer.publish(lines(4, 1));
        reader.refresh(lines(4, 1));
        assert_eq!(reader.load(word(4, 2)), value);
    }
}

fn a_load_gives_a_value_that_the_word_had(writer: &impl Fabric, reader: &impl Fabric) {
    let mut least = 0;
    for value in 1..50 {
        writer.store(word(5, 0), value);
        if value % 3 == 0 {
            writer.publish(lines(5, 1));
        }
        let seen = reader.load(word(5, 0));
        assert!((least..=value).contains(&seen), "{seen} of {least} to {value}");
        least = seen;
    }
}

fn lines_of_a_range_are_published_together(writer: &impl Fabric, reader: &impl Fabric) {
    for number in 8..16 {
        reader.load(word(number, 0));
        writer.write_line(line(number), &[number; 8]);
    }
    writer.publish(lines(8, 8));
    reader.refresh(lines(8, 8));
    for number in 8..16 {
        assert_eq!(reader.read_line(line(number)), [number; 8]);
    }
}

fn a_flush_does_not_lose_stores(writer: &impl Fabric) {
    writer.store(word(16, 5), 5);
    writer.refresh(lines(16, 1));
    assert_eq!(writer.load(word(16, 5)), 5);
    writer.store(word(16, 6), 6);
    writer.invalidate(lines(16, 1));
    writer.write_back(lines(16, 1));
    writer.store(word(16, 7), 7);
    writer.fence();
    assert_eq!([5, 6, 7].map(|index| writer.load(word(16, index))), [5, 6, 7]);
}

fn words_of_a_line_are_where_they_belong(writer: &impl Fabric, reader: &impl Fabric) {
    for index in 0..8 {
        writer.store(word(17, index), index as u64 + 100);
    }
    writer.publish(lines(17, 1));
    reader.refresh(lines(17, 1));
    assert_eq!(reader.read_line(line(17)), [100, 101, 102, 103, 104, 105, 106, 107]);
    writer.write_line(line(17), &[200, 201, 202, 203, 204, 205, 206, 207]);
    writer.publish(lines(17, 1));
    reader.refresh(lines(17, 1));
    assert_eq!(reader.load(word(17, 3)), 203);
    assert_eq!(reader.load(word(18, 0)), 0, "the next line is untouched");
}

fn ownership_can_be_handed_over(one: &impl Fabric, other: &impl Fabric) {
    one.store(word(19, 0), 1);
    one.publish(lines(19, 1));
    other.refresh(lines(19, 1));
    other.store(word(19, 1), 2);
    other.publish(lines(19, 1));
    one.refresh(lines(19, 1));
    one.store(word(19, 2), 3);
    one.publish(lines(19, 1));
    other.refresh(lines(19, 1));
    assert_eq!(other.read_line(line(19)), [1, 2, 3, 0, 0, 0, 0, 0]);
}

fn an_empty_range_does_nothing(writer: &impl Fabric) {
    writer.publish(lines(0, 0));
    writer.refresh(lines(BYTES / 64, 0));
    writer.read_back(lines(0, 0));
}

fn the_last_word_can_be_used(writer: &impl Fabric, reader: &impl Fabric) {
    let last = BYTES / 64 - 1;
    writer.store(word(last, 7), 9);
    writer.publish(lines(last, 1));
    reader.refresh(lines(last, 1));
    assert_eq!(reader.load(word(last, 7)), 9);
}

fn nothing_outside_is_touched(fabric: &impl Fabric) {
    let outside = BYTES / 64;
    refuses("load", || fabric.load(word(outside, 0)));
    refuses("store", || fabric.store(word(outside, 0), 1));
    refuses("read_line", || fabric.read_line(line(outside)));
    refuses("write_line", || fabric.write_line(line(outside), &[1; 8]));
    refuses("write_back", || fabric.write_back(lines(outside - 1, 2)));
    refuses("invalidate", || fabric.invalidate(lines(outside - 1, 2)));
    refuses("read_back", || fabric.read_back(lines(outside - 1, 2)));
    refuses("publish", || fabric.publish(lines(0, outside + 1)));
}

fn refuses<T>(what: &str, access: impl FnOnce() -> T) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(access));
    assert!(outcome.is_err(), "{what} outside the memory went through");
}

const ROUNDS: u64 = 200;

/// The guarantees that take two threads to see.
fn concurrent_conformance<F: Fabric + Clone + Send + 'static>(writer: F, reader: F) {
    let (reply_to_writer, reply_from_reader) = (word(34, 0), word(34, 0));
    let sender = std::thread::spawn(move || {
        for round in 1..=ROUNDS {
            // M2: the payload is published in full before the flag is stored.
            writer.write_line(line(32), &[round; 8]);
            writer.publish(lines(32, 1));
            writer.store(word(33, 0), round << 32 | round);
            writer.publish(lines(33, 1));
            await_value(&writer, reply_to_writer, round);
        }
    });
    for round in 1..=ROUNDS {
        // M4: the payload is refreshed after the flag was seen.
        await_value(&reader, word(33, 0), round << 32 | round);
        reader.refresh(lines(32, 1));
        assert_eq!(reader.read_line(line(32)), [round; 8]);
        reader.store(reply_from_reader, round);
        reader.publish(lines(34, 1));
    }
    sender.join().unwrap();
}

/// Waits for `value`; no word ever shows half of one.
fn await_value(fabric: &impl Fabric, at: WordOffset, value: u64) {
    let mut last = 0;
    loop {
        fabric.refresh(LineRange::one(at.line()));
        let seen = fabric.load(at);
        assert!(last <= seen && seen <= value, "{seen:#x} after {last:#x}, before {value:#x}");
        if seen == value {
            return;
        }
        last = seen;
        std::thread::yield_now();
    }
}

/// What a host's memory guarantees, with two processes' views of it.
fn host_memory_conformance(one: &impl HostMemory, other: &impl HostMemory) {
    assert_eq!((one.words(), other.words()), (8, 8));
    assert!((0..8).all(|index| one.load(index) == 0));
    one.store(3, 5);
    assert_eq!(other.load(3), 5);
    assert_eq!(other.compare_exchange(3, 4, 9), Err(5));
    assert_eq!(one.load(3), 5);
    assert_eq!(other.compare_exchange(3, 5, 9), Ok(5));
    assert_eq!((one.load(3), one.load(2), one.load(4)), (9, 0, 0));
    refuses("load", || one.load(8));
    refuses("store", || one.store(8, 1));
    refuses("compare_exchange", || one.compare_exchange(8, 0, 1));
}

/// The simulated racks of one seed.
fn racks(seed: u64) -> [SimulatedRack; 4] {
    let settings = [Settings::sticky(2, BYTES), Settings::adversarial(2, BYTES, seed)];
    let posted = settings.clone().map(SimulatedRack::with);
    let direct =
        settings.map(|settings| SimulatedRack::with(Settings { posted_writes: false, ..settings }));
    let ([a, b], [c, d]) = (posted, direct);
    [a, b, c, d]
}

/// Two mappings of one file of `bytes` bytes.
fn mappings(bytes: u64) -> [Mapping; 2] {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    [(); 2].map(|()| Mapping::shared(&file, bytes).unwrap())
}

#[test]
fn the_simulated_rack_conforms() {
    for rack in (0..30).flat_map(racks) {
        conformance(&rack.host(0), &rack.host(1));
        assert_eq!(rack.conflicts(), []);
    }
}

#[test]
fn the_simulated_rack_conforms_under_threads() {
    for rack in (0..3).flat_map(racks) {
        concurrent_conformance(rack.host(0), rack.host(1));
    }
}

#[test]
fn mapped_memory_conforms() {
    let [a, b] = mappings(BYTES).map(|mapping| MappedFabric::new(mapping).unwrap());
    conformance(&a, &b);
    concurrent_conformance(a, b);
}

#[test]
fn simulated_host_memory_conforms() {
    let rack = SimulatedRack::sticky(2, BYTES);
    host_memory_conformance(&rack.host_memory(0, 8), &rack.host_memory(0, 8));
    assert_eq!(rack.host_memory(1, 8).load(3), 0, "another host's words are others");
}

#[test]
fn mapped_host_memory_conforms() {
    let [a, b] = mappings(64).map(MappedHostMemory::new);
    host_memory_conformance(&a, &b);
}
