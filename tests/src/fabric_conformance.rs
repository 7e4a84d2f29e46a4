//! What every fabric guarantees, whatever is below it. Simulated racks, mappings of one file and
//! two hosts with one device obey the same contract.
//!
//! Each check panics, and says what it saw, when a guarantee is broken.

use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::units::{LineOffset, LineRange, WordOffset};

/// Lines from the start of the memory that the checks use, besides its last line.
pub const LINES_USED: u64 = 64;

/// Words that [`host_memory`] expects.
pub const HOST_WORDS: usize = 8;

/// Hand-overs that the two halves [`send`] and [`receive`] make.
pub const ROUNDS: u64 = 200;

fn line(number: u64) -> LineOffset {
    LineOffset::new(number * 64).expect("a multiple of 64")
}

fn lines(first: u64, count: u64) -> LineRange {
    LineRange::new(line(first), count).expect("far below the end of the address space")
}

fn word(number: u64, index: usize) -> WordOffset {
    line(number).word(index).expect("a line has eight words")
}

/// The guarantees that one thread can see, with two hosts' views of one blank memory.
///
/// # Panics
/// When one is broken.
pub fn one_thread(writer: &impl Fabric, reader: &impl Fabric) {
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
    assert_eq!(writer.bytes(), reader.bytes());
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
    writer.refresh(lines(writer.bytes() / 64, 0));
    writer.read_back(lines(0, 0));
}

fn the_last_word_can_be_used(writer: &impl Fabric, reader: &impl Fabric) {
    let last = writer.bytes() / 64 - 1;
    writer.store(word(last, 7), 9);
    writer.publish(lines(last, 1));
    reader.refresh(lines(last, 1));
    assert_eq!(reader.load(word(last, 7)), 9);
}

fn nothing_outside_is_touched(fabric: &impl Fabric) {
    let outside = fabric.bytes() / 64;
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

/// The guarantees that take two threads to see: [`send`] and [`receive`] at once.
///
/// # Panics
/// When one is broken.
pub fn two_threads<F: Fabric + Send + 'static>(writer: F, reader: F) {
    let sender = std::thread::spawn(move || send(&writer));
    receive(&reader);
    if let Err(panic) = sender.join() {
        std::panic::resume_unwind(panic);
    }
}

const PAYLOAD: u64 = 32;
const FLAG: u64 = 33;
const REPLY: u64 = 34;

/// The flag of a round: a torn one would be no flag of any round.
fn flag(round: u64) -> u64 {
    round << 32 | round
}

/// One half of a conversation with another thread, process or host: hands over a payload
/// [`ROUNDS`] times, each after the other half has taken the one before.
///
/// # Panics
/// When a word shows a value that it never had, or one older than the last.
pub fn send(fabric: &impl Fabric) {
    for round in 1..=ROUNDS {
        // MEM-M2: the payload is published in full before the flag is stored.
        fabric.write_line(line(PAYLOAD), &[round; 8]);
        fabric.publish(lines(PAYLOAD, 1));
        fabric.store(word(FLAG, 0), flag(round));
        fabric.publish(lines(FLAG, 1));
        await_value(fabric, word(REPLY, 0), round);
    }
}

/// The other half of [`send`].
///
/// # Panics
/// When a payload is not that of its flag, or a word shows a value that it never had.
pub fn receive(fabric: &impl Fabric) {
    for round in 1..=ROUNDS {
        // MEM-M4: the payload is refreshed after the flag was seen.
        await_value(fabric, word(FLAG, 0), flag(round));
        fabric.refresh(lines(PAYLOAD, 1));
        assert_eq!(fabric.read_line(line(PAYLOAD)), [round; 8]);
        fabric.store(word(REPLY, 0), round);
        fabric.publish(lines(REPLY, 1));
    }
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

/// What a host's memory guarantees, with two processes' views of [`HOST_WORDS`] blank words.
///
/// # Panics
/// When a guarantee is broken.
pub fn host_memory(one: &impl HostMemory, other: &impl HostMemory) {
    assert_eq!((one.words(), other.words()), (HOST_WORDS, HOST_WORDS));
    assert!((0..HOST_WORDS).all(|index| one.load(index) == 0));
    one.store(3, 5);
    assert_eq!(other.load(3), 5);
    assert_eq!(other.compare_exchange(3, 4, 9), Err(5));
    assert_eq!(one.load(3), 5);
    assert_eq!(other.compare_exchange(3, 5, 9), Ok(5));
    assert_eq!((one.load(3), one.load(2), one.load(4)), (9, 0, 0));
    refuses("load", || one.load(HOST_WORDS));
    refuses("store", || one.store(HOST_WORDS, 1));
    refuses("compare_exchange", || one.compare_exchange(HOST_WORDS, 0, 1));
}
