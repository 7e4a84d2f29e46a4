//! Blocks through sessions, one by one: what a publish and a fetch do beside the copy.
//!
//! `cargo bench -p rackline-benches --bench blocks`. Each figure is the ratio to a plain copy of the
//! same size in the same run: to non-temporal stores for a publish, to memcpy for a fetch. Every
//! block is timed by itself, and the figures are first quartiles: other work of the machine hits
//! some blocks, and those count for nothing.

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use cxl_shm::clock::SystemClock;
use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::region::Region;
use kv_cache::CacheGeometry;
use rackline::{
    AsyncOptions, AsyncPool, AsyncSession, Attention, BlockHash, Destination, Dtype, KvGeometry,
    NewBlock, Pool, ScratchRegion, Session, SessionOptions, Source,
};
use rackline_benches::{Batch, Bed, Floor, memcpy_out, stream_in};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SIZES: [usize; 3] = [64 << 10, 512 << 10, 2 << 20];
/// Rounds of a size, and one to warm up.
const ROUNDS: usize = 11;
/// Room for the blocks of all rounds below the watermark at which eviction starts.
const REGION_BYTES: u64 = 1280 << 20;
const CHUNK_BYTES: u64 = 16 << 20;
const BATCH: usize = 32 << 20;
const PAGE: usize = 4096;
/// More buffers than a cache holds.
const RING: usize = 4 * BATCH;
const FILLING_MS: u64 = 2000;
const PREFIX: usize = 256;
const LOOKUPS: usize = 201;
/// The first number of the blocks of sessions whose calling thread works.
const BY_CALLER: usize = 1 << 40;

/// A buffer that begins on a page, as those of the plain copies do, and the memory of an engine.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        let memory = vec![0x5a; bytes + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start, bytes }
    }
}

impl Source for Buffer {
    fn parts(&self) -> Vec<&[u8]> {
        vec![&self.memory[self.start..][..self.bytes]]
    }
}

impl Destination for Buffer {
    fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        vec![&mut self.memory[self.start..][..self.bytes]]
    }
}

/// Buffers that transfers own for a while.
struct Ring {
    buffers: Vec<Option<Buffer>>,
    next: usize,
}

impl Ring {
    fn new(bytes: usize) -> Self {
        let buffers = (0..RING / bytes).map(|_| Some(Buffer::new(bytes))).collect();
        Self { buffers, next: 0 }
    }

    fn take(&mut self) -> Buffer {
        self.buffers[self.next].take().expect("every buffer was given back")
    }

    fn give_back(&mut self, buffer: Buffer) {
        self.buffers[self.next] = Some(buffer);
        self.next = (self.next + 1) % self.buffers.len();
    }
}

fn options(bytes: usize) -> Outcome<SessionOptions> {
    let heads = Attention::Heads { kv_heads: 1, head_dim: u32::try_from(bytes / 4)? };
    let kv = KvGeometry::new(1, heads, Dtype::F16, 1)?;
    Ok(SessionOptions::new(kv.model("blocks", "1", 1), kv.rank_block_bytes()))
}

fn hashes(first: usize, count: usize) -> Vec<BlockHash> {
    let hash = |number: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        BlockHash::new(bytes)
    };
    (first..first + count).map(hash).collect()
}

/// Nanoseconds of each block.
type Times = Vec<u64>;

fn timed(times: &mut Times, work: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
    let clock = SystemClock::start();
    work()?;
    times.push(clock.now_ns());
    Ok(())
}

/// The same copy without a session, or what the rules of the memory add to it.
fn copy(
    mut copy: impl FnMut(&mut Batch<'_>),
    bed: &mut Bed,
    bytes: usize,
    times: &mut Times,
) -> Outcome<()> {
    let Batch { mapping, payloads, buffers } = bed.batch(bytes);
    payloads.into_iter().zip(buffers).try_for_each(|(payload, buffer)| {
        let mut one = Batch { mapping, payloads: vec![payload], buffers: vec![buffer] };
        timed(times, || {
            copy(&mut one);
            Ok(())
        })
    })
}

fn put(
    session: &Session<'_>,
    bed: &mut Bed,
    bytes: usize,
    hashes: &[BlockHash],
    times: &mut Times,
) -> Outcome<()> {
    let batch = bed.batch(bytes);
    hashes.iter().zip(&batch.buffers).try_for_each(|(hash, buffer)| {
        let block = NewBlock { hash: *hash, depth: 0, bytes: [&**buffer] };
        timed(times, || {
            assert_eq!(session.publish(&[block])?.published(), 1);
            Ok(())
        })
    })
}

fn get(
    session: &Session<'_>,
    bed: &mut Bed,
    bytes: usize,
    hashes: &[BlockHash],
    times: &mut Times,
) -> Outcome<()> {
    let mut batch = bed.batch(bytes);
    hashes.iter().zip(&mut batch.buffers).try_for_each(|(hash, buffer)| {
        timed(times, || {
            let found = session.lookup(std::slice::from_ref(hash))?;
            let into = vec![vec![&mut **buffer]];
            assert_eq!(session.fetch(found.blocks(), into)?.valid_blocks(), 1);
            Ok(())
        })
    })
}

fn put_async(
    session: &AsyncSession,
    ring: &mut Ring,
    hashes: &[BlockHash],
    times: &mut Times,
) -> Outcome<()> {
    hashes.iter().try_for_each(|hash| {
        let block = NewBlock { hash: *hash, depth: 0, bytes: ring.take() };
        timed(times, || {
            let mut done = session.publish(vec![block])?.wait()?;
            assert_eq!(done.report?.published(), 1);
            done.blocks.drain(..).for_each(|block| ring.give_back(block.bytes));
            Ok(())
        })
    })
}

fn get_async(
    session: &AsyncSession,
    ring: &mut Ring,
    hashes: &[BlockHash],
    times: &mut Times,
) -> Outcome<()> {
    hashes.iter().try_for_each(|hash| {
        let buffer = ring.take();
        timed(times, || {
            let found = session.lookup(vec![*hash])?.wait()??;
            let mut done = session.fetch(found.blocks().to_vec(), vec![buffer])?.wait()?;
            assert_eq!(done.report?.valid_blocks(), 1);
            done.destinations.drain(..).for_each(|buffer| ring.give_back(buffer));
            Ok(())
        })
    })
}

/// Microseconds that a quarter of the blocks stayed below: what a block costs where the machine did
/// nothing else meanwhile.
fn quarter_us(times: &mut Times) -> f64 {
    times.sort_unstable();
    times[times.len() / 4] as f64 / 1e3
}

/// A region of two nodes whose memory is all there, as `rackline format --create` makes it.
fn region(folder: &Path, name: &str, block_bytes: usize) -> Outcome<PathBuf> {
    let cache = CacheGeometry::suggest(REGION_BYTES, 2, block_bytes as u64);
    let mut geometry = Geometry {
        region_bytes: REGION_BYTES,
        nodes: 2,
        locks: 8,
        chunk_bytes: CHUNK_BYTES,
        area_lines: cache.area_lines(2),
        host_words: 0,
    };
    geometry.host_words = cache.host_words(&Layout::new(geometry)?) as u64;
    let superblock = Superblock {
        lock_protocol: LockProtocol::Bakery,
        ..Superblock::new([RandomState::new().hash_one(name), 1], geometry, cache.encode())
    };
    let path = folder.join(name);
    let region = Region::create_file(&path, REGION_BYTES)?;
    region.prefault(REGION_BYTES, |_, _| ())?;
    format_superblock(region.fabric(), &superblock, |_, _| ())?;
    Ok(path)
}

fn measure(bed: &mut Bed, bytes: usize, rounds: usize) -> Outcome<()> {
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let waits = region(folder.path(), "waits", bytes)?;
    let does_not = region(folder.path(), "does-not", bytes)?;
    let (writer, reader) = (Pool::attach(&waits, 0)?, Pool::attach(&waits, 1)?);
    let (from, to) = (writer.session(options(bytes)?)?, reader.session(options(bytes)?)?);
    let attach = |node| AsyncPool::attach(&does_not, node, &AsyncOptions::new());
    let (writes, reads) = (attach(0)?, attach(1)?);
    let (puts, gets) = (writes.session(options(bytes)?)?, reads.session(options(bytes)?)?);
    // While the page tables are filled.
    SystemClock::start().sleep_ms(FILLING_MS);
    let mut ring = Ring::new(bytes);
    let mut floor = Floor::new()?;
    let mut times = [const { Vec::new() }; 10];
    for round in 0..=rounds {
        let hashes = hashes(round * BATCH, BATCH / bytes);
        if round == 1 {
            // The first round warmed up.
            times.iter_mut().for_each(Vec::clear);
        }
        let [stream, memcpy, put_floor, get_floor, rest @ ..] = &mut times;
        let [put_us, get_us, async_put, async_get, own_put, own_get] = rest;
        copy(stream_in, bed, bytes, stream)?;
        copy(memcpy_out, bed, bytes, memcpy)?;
        copy(|batch| floor.put(batch), bed, bytes, put_floor)?;
        copy(|batch| floor.get(batch), bed, bytes, get_floor)?;
        put(&from, bed, bytes, &hashes, put_us)?;
        get(&to, bed, bytes, &hashes, get_us)?;
        put_async(&puts, &mut ring, &hashes, async_put)?;
        get_async(&gets, &mut ring, &hashes, async_get)?;
        let again = self::hashes(BY_CALLER + round * BATCH, BATCH / bytes);
        put_async(&puts.by_caller(), &mut ring, &again, own_put)?;
        get_async(&gets.by_caller(), &mut ring, &again, own_get)?;
    }
    let [stream, memcpy, put_floor, get_floor, put_us, get_us, rest @ ..] =
        times.each_mut().map(quarter_us);
    let [async_put, async_get, own_put, own_get] = rest;
    for (name, us, copy_us) in [
        ("least of put", put_floor, stream),
        ("least of get", get_floor, memcpy),
        ("put", put_us, stream),
        ("get", get_us, memcpy),
        ("async put", async_put, stream),
        ("async get", async_get, memcpy),
        ("put by caller", own_put, stream),
        ("get by caller", own_get, memcpy),
    ] {
        let kib = bytes >> 10;
        println!("{kib:>6} KiB {name:<13} {:.2}: {us:.1} us of {copy_us:.1} us", copy_us / us);
    }
    Ok(())
}

/// Microseconds of a lookup of blocks that are all there, through sessions that wait and that do not.
fn lookups(rounds: usize) -> Outcome<()> {
    const BYTES: usize = 4096;
    let region = ScratchRegion::create(64 << 20, 1, BYTES as u64)?;
    let pool = AsyncPool::attach(region.path(), 0, &AsyncOptions::new())?;
    let session = pool.session(options(BYTES)?)?;
    let hashes = hashes(0, PREFIX);
    let blocks = NewBlock::chain(0, hashes.clone(), vec![vec![1; BYTES]; PREFIX]);
    assert_eq!(session.publish(blocks)?.wait()?.report?.published(), PREFIX);
    let beside = Pool::attach(region.path(), 0)?;
    let waits = beside.session(options(BYTES)?)?;
    let (mut by_session, mut by_async, mut by_caller) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        timed(&mut by_session, || {
            assert_eq!(waits.lookup(&hashes)?.blocks().len(), PREFIX);
            Ok(())
        })?;
        for (session, times) in
            [(session.clone(), &mut by_async), (session.by_caller(), &mut by_caller)]
        {
            let given = hashes.clone();
            timed(times, || {
                assert_eq!(session.lookup(given)?.wait()??.blocks().len(), PREFIX);
                Ok(())
            })?;
        }
    }
    println!("lookup of {PREFIX} by a session that waits: {:.1} us", quarter_us(&mut by_session));
    println!("lookup of {PREFIX} by one that does not: {:.1} us", quarter_us(&mut by_async));
    println!("lookup of {PREFIX} by its calling thread: {:.1} us", quarter_us(&mut by_caller));
    Ok(())
}

fn main() -> Outcome<()> {
    // Under `cargo test` everything runs once, which is all that is wanted.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let (rounds, sizes) = if is_bench { (ROUNDS, &SIZES[..]) } else { (0, &SIZES[..1]) };
    let mut bed = Bed::new()?;
    for bytes in sizes {
        measure(&mut bed, *bytes, rounds)?;
    }
    lookups(if is_bench { LOOKUPS } else { 0 })
}
