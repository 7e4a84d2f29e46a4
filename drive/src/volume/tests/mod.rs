//! A folder in a test: blocks with known bytes, on a drive that records or fails.

mod crash;
mod damage;
mod encoded;
mod faults;
mod rebuilt;
mod room;
mod silent;
mod uses;

use std::sync::Mutex;

use crossbeam_channel::bounded;
use kv_cache::{BlockKey, NamespaceTag};

use super::*;
use crate::encoding::{Encoder, EncodingChoice, EncodingOptions, Plain};
use crate::format::{ALL_LAYERS, Encoding, Page};
use crate::io::Buffer;
use crate::io::recorded::RecordedDrive;

pub(super) const PAGE: u32 = PAGE_BYTES;

/// A clock that a test moves.
#[derive(Debug, Default)]
pub(super) struct HandClock(Mutex<u64>);

impl HandClock {
    pub(super) fn advance(&self, ms: u64) {
        *self.0.lock().unwrap() += ms;
    }
}

impl Clock for HandClock {
    fn now_ms(&self) -> u64 {
        *self.0.lock().unwrap()
    }

    fn pause(&self, _tries: u32) {}
}

pub(super) fn options() -> VolumeOptions {
    VolumeOptions {
        capacity_bytes: 1 << 20,
        segment_bytes: Some(SEGMENT_BYTES_MIN),
        host: [3; 16],
        take_over: false,
        clock: Arc::new(HandClock::default()),
    }
}

pub(super) fn key(number: u64) -> BlockKey {
    bytemuck::cast([number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number, 77])
}

/// Length of block `number`: one to three pages, whole or not. Some have layers.
pub(super) fn length(number: u64) -> u32 {
    [5000, 4096, 100, 12_288, 8000][usize::try_from(number % 5).unwrap()]
}

/// Two fifths of it are random, the rest repeats eight bytes.
pub(super) fn payload(number: u64) -> Vec<u8> {
    let seed = number.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let words = u64::from(length(number)).div_ceil(8);
    let words = (1..=words).map(|at| seed.wrapping_mul(at.min(words * 2 / 5 + 1)));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length(number) as usize);
    bytes
}

thread_local! {
    /// Whether blocks are written encoded, where that saves a page.
    static ENCODES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs a test with raw blocks, and with encoded ones.
pub(super) fn raw_and_encoded(test: impl Fn()) {
    test();
    ENCODES.set(true);
    test();
    ENCODES.set(false);
}

/// What is written of a block. Every second one that is encoded is so by planes.
fn stored(number: u64) -> (Encoding, Vec<u8>) {
    thread_local! {
        static ENCODERS: std::cell::RefCell<[Encoder; 2]> =
            std::cell::RefCell::new([EncodingChoice::Lz4, EncodingChoice::Lz4Planes].map(|choice| {
                Encoder::new(EncodingOptions { choice, least_saving_percent: 0 })
            }));
    }
    let bytes = payload(number);
    let plain = Plain { key: key(number), payload: &bytes, crc: checksum(&bytes) };
    let mut into = Buffer::zeroed(bytes.len()).unwrap();
    let encoded = ENCODERS.with_borrow_mut(|encoders| {
        encoders[usize::try_from(number % 2).unwrap()].encode(&plain, !ENCODES.get(), &mut into)
    });
    match encoded.encoding {
        Encoding::Raw => (Encoding::Raw, bytes),
        other => (other, into.bytes().unwrap()[..encoded.stored_bytes as usize].to_vec()),
    }
}

pub(super) fn layers_of(number: u64) -> Vec<Page> {
    let (bytes, encoding) = (payload(number), stored(number).0);
    let page = |layer: u16, offset: u32, length: u32| Page {
        fingerprint: 9,
        layout_version: 1,
        layer,
        first_token: 16,
        last_token: 31,
        encoding,
        offset_bytes: offset,
        bytes: length,
        crc: checksum(&bytes[offset as usize..(offset + length) as usize]),
    };
    match number % 5 {
        4 => (0..100).map(|layer| page(layer, u32::from(layer) * 80, 80)).collect(),
        _ => vec![page(ALL_LAYERS, 0, length(number))],
    }
}

/// Writes a block, and says whether it was written.
pub(super) fn write(volume: &Arc<Volume>, number: u64) -> Result<(), String> {
    let (tell, told) = bounded(1);
    begin(volume, number, Box::new(move |_, outcome| tell.send(outcome).unwrap()))
        .map_err(|error| error.to_string())?;
    told.recv().unwrap().map_err(|error| error.to_string())
}

/// Begins to write a block.
pub(super) fn begin(
    volume: &Arc<Volume>,
    number: u64,
    done: WriteDone,
) -> Result<WriteTicket, ReserveError> {
    let (pages, (_, bytes)) = (layers_of(number), stored(number));
    let spec = BlockSpec {
        key: key(number),
        tag: NamespaceTag::from_bits(2),
        depth: 4,
        bytes: length(number),
        stored_bytes: u32::try_from(bytes.len()).unwrap(),
        crc: checksum(&payload(number)),
        pages: &pages,
    };
    let reservation = volume.reserve(&spec)?;
    let buffer = Buffer::of(&bytes).unwrap();
    assert!(buffer.capacity() >= reservation.buffer_bytes());
    let ticket = reservation.ticket();
    reservation.write(buffer, done);
    Ok(ticket)
}

thread_local! {
    /// Buffers of earlier reads: making one takes longer than reading to it.
    static SPARE: std::cell::RefCell<Vec<Buffer>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Reads a block. Bytes that come back are those of the block.
pub(super) fn read(volume: &Arc<Volume>, key: BlockKey) -> Result<Vec<u8>, ReadMiss> {
    let (tell, told) = bounded(1);
    let done = Box::new(move |unverified| tell.send(unverified).unwrap());
    let spare = SPARE.with_borrow_mut(Vec::pop);
    let buffer = spare.unwrap_or_else(|| Buffer::zeroed(8 * PAGE as usize).unwrap());
    volume.read(key, buffer, done).map_err(|(_, miss)| miss)?;
    let unverified = told.recv().unwrap();
    assert_eq!(unverified.key(), key);
    let (buffer, bytes) = unverified.verify().map_err(|(_, miss)| miss)?;
    let read = buffer.bytes().unwrap()[..bytes as usize].to_vec();
    SPARE.with_borrow_mut(|spare| spare.push(buffer));
    Ok(read)
}

pub(super) fn number_of(key: BlockKey) -> u64 {
    let words: [u64; 3] = bytemuck::cast(key);
    words[1]
}

pub(super) fn open(drive: &RecordedDrive) -> Arc<Volume> {
    open_with(drive, options())
}

pub(super) fn open_with(drive: &RecordedDrive, options: VolumeOptions) -> Arc<Volume> {
    let volume = Volume::open(Box::new(drive.clone()), options, [8; 16]).unwrap();
    volume.scan(|_, _| true).unwrap();
    volume.check().unwrap();
    volume
}

/// All blocks that are found, in order.
pub(super) fn found(volume: &Volume) -> Vec<u64> {
    let mut numbers: Vec<_> =
        (0..).map_while(|part| volume.keys(part)).flatten().map(number_of).collect();
    numbers.sort_unstable();
    numbers
}

/// That the folder has exactly these blocks, whole.
#[track_caller]
pub(super) fn assert_has(volume: &Arc<Volume>, numbers: impl IntoIterator<Item = u64>) {
    let numbers: Vec<_> = numbers.into_iter().collect();
    assert_eq!(found(volume), numbers);
    for number in numbers {
        assert_eq!(read(volume, key(number)).unwrap(), payload(number), "block {number}");
    }
}
