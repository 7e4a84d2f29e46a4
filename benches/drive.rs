//! Blocks of a drive: reads beside a plain loop of `io_uring` over the same files, reads while writes
//! wait, and the time to open a large store.
//!
//! `cargo bench -p rackline-benches --bench drive`. The folder is `RACKLINE_BENCH_FOLDER`, else one in
//! the build's folder: it has to lie on the drive that is to be measured.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};
use cxl_shm::clock::SystemClock;
use kv_cache::{BlockKey, Namespace};
use kv_drive::encoding::{Encoder, EncodingChoice, EncodingOptions, Expected, Plain, decode};
use kv_drive::io::{Buffer, EngineKind};
use kv_drive::store::{Access, FolderOptions, Store, StoreOptions};
use kv_drive::volume::{BlockSpec, Unverified, Volume, checksum};
use kv_drive::{ALL_LAYERS, Encoding, Page};
use rackline_benches::{RingLoop, median, processor_seconds};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SIZES: [usize; 2] = [2 << 20, 64 << 10];
/// Bytes of the blocks of a size, and of what a round reads.
const STORED: usize = 512 << 20;
const DEPTH: usize = 16;
const ROUNDS: usize = 9;
/// Reads whose latency is measured, and how many are under way.
const TIMED_READS: usize = 3000;
const TIMED_DEPTH: usize = 2;
const WRITES_QUEUED: usize = 16;
/// Blocks of the store whose opening is timed.
const MANY: u64 = 1_000_000;

fn main() -> Outcome<()> {
    let folder = std::env::var_os("RACKLINE_BENCH_FOLDER")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    for bytes in SIZES {
        encodings(bytes)?;
        reads(tempfile::tempdir_in(&folder)?.path(), bytes)?;
    }
    latencies(tempfile::tempdir_in(&folder)?.path())?;
    reopen(tempfile::tempdir_in(&folder)?.path())
}

fn open(folder: &Path) -> Outcome<(Store, Arc<Volume>)> {
    let folders = [FolderOptions { path: folder.to_owned(), capacity_bytes: 16 << 30 }];
    let (engine, access) = (EngineKind::Uring, Access::Write);
    let store =
        Store::open(&folders, StoreOptions { engine, host: [1; 16], take_over: false, access })?;
    let volume = store.volumes().next().map(|(_, volume)| volume);
    Ok((store, volume.ok_or("the store has no folder")?))
}

fn key(number: u64) -> BlockKey {
    bytemuck::cast([number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number, 77])
}

fn buffer(bytes: usize) -> Outcome<Buffer> {
    let mut buffer = Buffer::zeroed(bytes)?;
    buffer.bytes_mut().ok_or("a buffer without bytes")?.fill(0x5a);
    Ok(buffer)
}

/// Writes the blocks `numbers`, with several on their way, and commits them.
fn fill(volume: &Arc<Volume>, bytes: usize, numbers: std::ops::Range<u64>) -> Outcome<()> {
    let crc = checksum(&vec![0x5a; bytes]);
    let (tell, told) = unbounded();
    let mut free = (0..WRITES_QUEUED).map(|_| buffer(bytes)).collect::<Outcome<Vec<_>>>()?;
    for number in numbers {
        let buffer = match free.pop() {
            Some(buffer) => buffer,
            None => told.recv()?,
        };
        write(volume, number, buffer, crc, &tell)?;
        if number % 65_536 == 65_535 {
            volume.commit()?;
        }
    }
    (free.len()..WRITES_QUEUED).try_for_each(|_| told.recv().map(drop))?;
    volume.commit()?;
    Ok(())
}

fn write(
    volume: &Arc<Volume>,
    number: u64,
    buffer: Buffer,
    crc: u32,
    tell: &Sender<Buffer>,
) -> Outcome<()> {
    let bytes = u32::try_from(buffer.capacity())?;
    let page = Page {
        fingerprint: 1,
        layout_version: 1,
        layer: ALL_LAYERS,
        first_token: 0,
        last_token: 15,
        encoding: Encoding::Raw,
        offset_bytes: 0,
        bytes,
        crc,
    };
    let tag = Namespace::default().tag();
    let spec = BlockSpec {
        key: key(number),
        tag,
        depth: 0,
        bytes,
        stored_bytes: bytes,
        crc,
        pages: &[page],
    };
    let tell = tell.clone();
    let ended = move |buffer: Option<Buffer>, outcome: Result<(), _>| {
        outcome.expect("the drive takes what it has reserved room for");
        drop(buffer.map(|buffer| tell.send(buffer)));
    };
    volume.reserve(&spec)?.write(buffer, Box::new(ended));
    Ok(())
}

/// Numbers in an order that no drive foresees.
fn shuffled(count: u64, round: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    numbers.sort_by_key(|number| (number ^ round << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    numbers
}

/// Reads all `numbers` with `depth` under way. Each is verified. Calls `timed` with the microseconds of
/// each.
fn read(
    volume: &Arc<Volume>,
    numbers: &[u64],
    buffers: &mut Vec<Buffer>,
    mut timed: impl FnMut(u64),
) -> Outcome<()> {
    let clock = SystemClock::start();
    let (tell, told): (Sender<(u64, Unverified)>, Receiver<_>) = unbounded();
    let (mut numbers, depth) = (numbers.iter(), buffers.len());
    loop {
        while let Some(buffer) = buffers.pop() {
            let Some(number) = numbers.next() else {
                buffers.push(buffer);
                break;
            };
            let (tell, began) = (tell.clone(), clock.now_us());
            let done = move |read| drop(tell.send((began, read)));
            volume.read(key(*number), buffer, Box::new(done)).map_err(|(_, miss)| miss)?;
        }
        if buffers.len() == depth {
            return Ok(());
        }
        let (began, read) = told.recv()?;
        let (buffer, _) = read.verify().map_err(|(_, miss)| miss)?;
        timed(clock.now_us() - began);
        buffers.push(buffer);
    }
}

/// The files of the segments, and where in them whole blocks can be read.
fn segments(folder: &Path) -> Outcome<Vec<(File, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "data") {
            let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path)?;
            let bytes = file.metadata()?.len();
            files.push((file, bytes));
        }
    }
    Ok(files)
}

fn reads(folder: &Path, bytes: usize) -> Outcome<()> {
    let (_store, volume) = open(folder)?;
    let count = (STORED / bytes) as u64;
    fill(&volume, bytes, 0..count)?;
    let files = segments(folder)?;
    let places: Vec<(&File, u64)> = files
        .iter()
        .flat_map(|(file, length)| (0..length / bytes as u64).map(move |at| (file, at)))
        .map(|(file, at)| (file, at * bytes as u64))
        .take(usize::try_from(count)?)
        .collect();
    let mut ring = RingLoop::new(DEPTH, bytes)?;
    let mut buffers = (0..DEPTH).map(|_| buffer(bytes)).collect::<Outcome<Vec<_>>>()?;
    let (mut ratios, mut speeds, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        let order = shuffled(count, round);
        let plain: Vec<_> =
            order.iter().filter_map(|at| places.get(usize::try_from(*at).ok()?)).copied().collect();
        assert_eq!(plain.len() as u64, count, "the plain loop reads as much");
        let (plain_us, plain_cpu) = measured(|| Ok(ring.read(&plain)?))?;
        let (store_us, store_cpu) = measured(|| read(&volume, &order, &mut buffers, |_| {}))?;
        ratios.push(plain_us / store_us);
        speeds.push(STORED as f64 / store_us / 1e3);
        let gib = STORED as f64 / f64::from(1 << 30);
        costs.push((plain_cpu / gib, store_cpu / gib));
    }
    println!(
        "reads of {:>4} KiB, {DEPTH} under way: {:.2} of a plain loop ({:.2} GB/s); CPU seconds a GiB: \
         {:.2}, of the plain loop {:.2}",
        bytes >> 10,
        median(ratios),
        median(speeds),
        median(costs.iter().map(|cost| cost.1)),
        median(costs.iter().map(|cost| cost.0)),
    );
    Ok(())
}

/// Numbers of two bytes as KV has them in bfloat16: few exponents, any mantissa.
fn numbers(bytes: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    let mut number = || {
        let word = next();
        // Half of the numbers have the largest exponent, a quarter the next one, and so on.
        let exponent = 0x7f - (word >> 16).trailing_ones().min(12);
        let [low, high, ..] =
            (exponent << 7 | u32::try_from(word & 0x807f).unwrap_or(0)).to_le_bytes();
        [low, high]
    };
    (0..bytes / 2).flat_map(|_| number()).collect()
}

/// Encoding and decoding of a block beside a copy of it.
fn encodings(bytes: usize) -> Outcome<()> {
    let (payload, key) = (numbers(bytes), key(1));
    let crc = checksum(&payload);
    let (mut copy, mut into) = (vec![1; bytes], buffer(bytes)?);
    let repeats = (64 << 20) / bytes;
    let timed = |work: &mut dyn FnMut() -> Outcome<()>| -> Outcome<f64> {
        let clock = SystemClock::start();
        (0..repeats).try_for_each(|_| work())?;
        Ok((repeats * bytes) as f64 / clock.now_ns() as f64)
    };
    for choice in [EncodingChoice::Lz4Planes, EncodingChoice::Auto] {
        let mut encoder = Encoder::new(EncodingOptions { choice, least_saving_percent: 10 });
        let (mut copies, mut encodes, mut decodes) = (vec![], vec![], vec![]);
        let mut share = 1.0;
        for _ in 0..ROUNDS {
            copies.push(timed(&mut || {
                copy.copy_from_slice(std::hint::black_box(&payload));
                Ok(())
            })?);
            let mut encoded = None;
            encodes.push(timed(&mut || {
                encoded =
                    Some(encoder.encode(&Plain { key, payload: &payload, crc }, false, &mut into));
                Ok(())
            })?);
            let encoded = encoded.ok_or("nothing was encoded")?;
            assert_ne!(encoded.encoding, Encoding::Raw, "this saves something");
            share = f64::from(encoded.stored_bytes) / bytes as f64;
            let stored = into.bytes().ok_or("a buffer without bytes")?;
            let length = u32::try_from(bytes)?;
            let expected = Expected { key, encoding: encoded.encoding, bytes: length, crc };
            decodes.push(timed(&mut || {
                decode(&stored[..encoded.stored_bytes as usize], &expected, &mut copy)?;
                assert_eq!(checksum(&copy), crc);
                Ok(())
            })?);
        }
        let (copied, encoded, decoded) = (median(copies), median(encodes), median(decodes));
        println!(
            "{choice} of {:>4} KiB: {:.1} % are written; encodes at {encoded:.2} GB/s ({:.2} of a copy), \
             decodes and checks at {decoded:.2} GB/s ({:.2} of a copy)",
            bytes >> 10,
            share * 100.0,
            encoded / copied,
            decoded / copied,
        );
    }
    Ok(())
}

/// Microseconds and processor seconds.
fn measured(work: impl FnOnce() -> Outcome<()>) -> Outcome<(f64, f64)> {
    let (clock, before) = (SystemClock::start(), processor_seconds());
    work()?;
    Ok((clock.now_us() as f64, processor_seconds() - before))
}

/// The time that 99 of 100 reads stay below, alone and while writes wait.
fn latencies(folder: &Path) -> Outcome<()> {
    let (_store, volume) = open(folder)?;
    let (small, large) = (64 << 10, 1 << 20);
    let count = (STORED / small) as u64;
    fill(&volume, small, 0..count)?;
    let mut buffers = (0..TIMED_DEPTH).map(|_| buffer(small)).collect::<Outcome<Vec<_>>>()?;
    let mut p99 = |round: u64| -> Outcome<f64> {
        let mut times = Vec::new();
        let order = shuffled(count, round);
        read(&volume, &order[..TIMED_READS], &mut buffers, |us| times.push(us))?;
        times.sort_unstable();
        Ok(times[times.len() * 99 / 100] as f64)
    };
    let (mut ratios, mut alone, mut beside, mut written) = (vec![], vec![], vec![], 0);
    for round in 0..ROUNDS as u64 {
        let before = p99(2 * round)?;
        let ends = AtomicBool::new(false);
        let with_writes = std::thread::scope(|scope| {
            let first = 1 << 20 | round << 32;
            let ends = &ends;
            let volume = &volume;
            let writes = scope.spawn(move || -> Result<u64, String> {
                let mut next = first;
                while !ends.load(Ordering::Relaxed) {
                    let more = next..next + WRITES_QUEUED as u64;
                    fill(volume, large, more).map_err(|error| error.to_string())?;
                    next += WRITES_QUEUED as u64;
                }
                let left = (first..next).filter(|number| volume.remove(&key(*number))).count();
                assert_eq!(left as u64, next - first);
                volume.commit().map_err(|error| error.to_string())?;
                Ok(next - first)
            });
            let found = p99(2 * round + 1);
            ends.store(true, Ordering::Relaxed);
            let count = writes.join().map_err(|_| "the writer ended")??;
            Ok::<_, Box<dyn Error>>((found?, count))
        })?;
        ratios.push(with_writes.0 / before);
        alone.push(before);
        beside.push(with_writes.0);
        written += with_writes.1;
    }
    println!(
        "99 of 100 reads of 64 KiB, {TIMED_DEPTH} under way, while writes of 1 MiB wait: {:.2} of alone \
         ({:.0} us of {:.0} us); {written} MiB were written meanwhile",
        median(ratios),
        median(beside),
        median(alone),
    );
    Ok(())
}

fn reopen(folder: &Path) -> Outcome<()> {
    let (store, volume) = open(folder)?;
    fill(&volume, 4096, 0..MANY)?;
    drop((store, volume));
    let clock = SystemClock::start();
    let (store, volume) = open(folder)?;
    let opened_ms = clock.now_us() / 1000;
    store.scan(|_, _| ())?;
    let scanned_ms = clock.now_us() / 1000;
    assert_eq!(volume.usage().blocks, MANY);
    println!(
        "a store of {MANY} blocks: open after {opened_ms} ms, all blocks found after {scanned_ms} ms"
    );
    Ok(())
}
