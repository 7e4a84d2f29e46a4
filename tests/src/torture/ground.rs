//! What parent and children know alike: sizes, places in the region, contents of blocks. What they
//! know of objects is in `named`.

use anyhow::{Context, Result};
use cxl_shm::fabric::{Fabric, FlushKind};
use cxl_shm::layout::{
    FIRST_FREE_LOCK, FenceEvidence, Geometry, Layout, LockProtocol, PayloadPolicy, Platform,
    PlatformProfile, Superblock,
};
use cxl_shm::region::RegionKind;
use cxl_shm::units::{ChunkId, Extent, LINE_BYTES, LINE_WORDS, LineRange, LockId, WordOffset};
use cxl_shm::verify::simulated::Random;
use kv_cache::{BlockHash, BlockKey, CacheGeometry, KeySpace, Model, ModelFingerprint, Namespace};

/// What stands for the memory between hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub enum Memory {
    /// One mapping for all: processes share caches, as on one host.
    Mapped,
    /// A host a process, whose private lines go stale, and move by themselves.
    Shadowed,
    /// A host a process, whose private lines stay until they are flushed.
    Sticky,
}

impl Memory {
    /// Whether every process is a host of its own.
    pub(super) fn is_private(self) -> bool {
        self != Self::Mapped
    }
}

/// Locks under which workers count.
pub(super) const COUNTERS: u32 = 3;
/// Length of most blocks: two pages a payload slot, eight slots a chunk.
const BLOCK_BYTES: u64 = 6144;
/// Length of one block in so many: four pages a payload slot, four slots a chunk.
const LARGE_BYTES: u64 = 14_336;
const LARGE_ONE_IN: u64 = 16;

const CHUNK_BYTES: u64 = 64 << 10;
const REGION_BYTES: u64 = 24 << 20;
/// Chunks, at least, of a region in which they run out, one of them the ground.
const CHUNKS_SCARCE: u64 = 32;
const DESCRIPTOR_SLOTS: u32 = 512;
/// Short, so that readers are overrun now and then.
const LOG_ENTRIES: u32 = 64;
/// "TORT" in the upper half of a chunk's purpose word.
const PURPOSE: u64 = 0x544f_5254 << 32;
/// Most workers of a rack.
pub const WORKERS_MAX: u32 = 24;
/// Lines of the ground from which on each worker has one.
const WORKER_LINES: u64 = 16;
const GIFT_LINES: u64 = 64;
const TAKEN_LINES: u64 = 96;
const _: () = assert!(2 * COUNTERS as u64 <= WORKER_LINES, "the counters fit before them");
const _: () = assert!(WORKER_LINES + WORKERS_MAX as u64 <= GIFT_LINES, "a line for each worker");
const _: () = assert!(GIFT_LINES + WORKERS_MAX as u64 <= TAKEN_LINES, "a line for each worker");

/// The region of a rack of `nodes`, in which chunks run out or do not.
pub(super) fn superblock(
    nodes: u16,
    locks: LockProtocol,
    uuid: [u64; 2],
    scarce: bool,
) -> Result<Superblock> {
    let cache = CacheGeometry::new(DESCRIPTOR_SLOTS, LOG_ENTRIES)?;
    let mut geometry = Geometry {
        region_bytes: REGION_BYTES,
        nodes,
        locks: 16,
        chunk_bytes: CHUNK_BYTES,
        area_lines: cache.area_lines(nodes),
        host_words: 0,
    };
    let layout = Layout::new(geometry)?;
    geometry.host_words = u64::try_from(cache.host_words(&layout))?;
    if scarce {
        geometry.region_bytes = layout.chunk(ChunkId(0)).offset() + CHUNKS_SCARCE * CHUNK_BYTES;
    }
    let superblock = Superblock::new(uuid, geometry, cache.encode());
    Ok(Superblock { lock_protocol: locks, ..superblock })
}

/// The lock of counter `index`.
pub(super) fn lock(index: u32) -> LockId {
    LockId(FIRST_FREE_LOCK + index)
}

/// Whether chunks run out.
pub(super) fn is_scarce(layout: &Layout) -> bool {
    // The table of fewer chunks leaves room for some more.
    u64::from(layout.chunks()) < 2 * CHUNKS_SCARCE
}

/// A profile to store in the superblock, as `rackline qualify` does; of every third number none.
pub(super) fn profile(number: u64) -> Option<PlatformProfile> {
    let platform = Platform {
        vendor: *b"TortureChild",
        signature: u32::try_from(number % 1000).unwrap_or(0),
        hypervisor: 0,
        flush: FlushKind::Clflushopt,
        memory: RegionKind::File,
        bytes: REGION_BYTES,
    };
    let (fence, payload) = (FenceEvidence::Unproven, PayloadPolicy::FlushBoth);
    let profile =
        PlatformProfile { platform, fence, payload, strict: false, measured_unix_s: number };
    (!number.is_multiple_of(3)).then_some(profile)
}

/// The lock under which a worker frees the object that another gave it.
pub(super) fn gift_lock() -> LockId {
    lock(COUNTERS)
}

/// The chunk that carries counters: the last.
pub(super) fn ground(layout: &Layout) -> ChunkId {
    ChunkId(layout.chunks() - 1)
}

/// Takes the ground out of the reach of those who take chunks: an entry of the table that says
/// nothing stays out of use. The caller is the formatter.
pub(super) fn reserve_ground<F: Fabric>(fabric: &F, layout: &Layout) {
    let entry = layout.chunk_entry(ground(layout)).at();
    fabric.write_line(entry, &[0; LINE_WORDS]);
    fabric.publish(LineRange::one(entry));
}

fn ground_word(layout: &Layout, line: u64) -> WordOffset {
    let start = layout.chunk(ground(layout)).offset();
    WordOffset::new(start + line * LINE_BYTES).expect("chunks start on a line")
}

/// The word in which a worker says which block it published last.
pub(super) fn last_published(layout: &Layout, worker: u32) -> WordOffset {
    ground_word(layout, WORKER_LINES + u64::from(worker))
}

/// The word in which a worker says which object the next worker is to free.
pub(super) fn gift(layout: &Layout, worker: u32) -> WordOffset {
    ground_word(layout, GIFT_LINES + u64::from(worker))
}

/// The word in which a worker says which object of the worker before it has taken on.
pub(super) fn gift_taken(layout: &Layout, worker: u32) -> WordOffset {
    ground_word(layout, TAKEN_LINES + u64::from(worker))
}

/// The purpose word of the chunks that a worker takes.
pub(super) fn purpose(worker: u32) -> u64 {
    PURPOSE | u64::from(worker)
}

/// Whether a chunk was taken by any worker for itself.
pub(super) fn is_purpose(purpose: u64) -> bool {
    purpose & PURPOSE == PURPOSE && purpose >> 32 == PURPOSE >> 32
}

/// A counter on two lines. The first is written and published before the second, so that a reader
/// that finds them one apart knows that a holder died in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair([WordOffset; 2]);

impl Pair {
    pub(super) fn new(layout: &Layout, index: u32) -> Self {
        let first = 2 * u64::from(index);
        Self([ground_word(layout, first), ground_word(layout, first + 1)])
    }

    /// LOCK-L1, then a read of both.
    pub(super) fn read<F: Fabric>(&self, fabric: &F) -> [u64; 2] {
        for word in self.0 {
            fabric.invalidate(LineRange::one(word.line()));
        }
        fabric.fence();
        self.0.map(|word| fabric.load(word))
    }

    pub(super) fn write<F: Fabric>(&self, fabric: &F, half: usize, value: u64) {
        fabric.store(self.0[half], value);
        fabric.publish(LineRange::one(self.0[half].line()));
    }
}

/// The model of all blocks.
pub(super) fn model() -> ModelFingerprint {
    let model = Model {
        name: "torture",
        revision: "1",
        dtype: "u64",
        layout_version: 1,
        block_tokens: 16,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
    };
    model.fingerprint()
}

/// Under which a worker's block is found.
pub(super) fn key(worker: u32, number: u64) -> BlockKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&worker.to_le_bytes());
    hash[8..16].copy_from_slice(&number.to_le_bytes());
    KeySpace::new(model(), Namespace::default(), block_bytes(number)).key(&BlockHash::new(hash))
}

/// The first number from `number` on of a large block.
pub(super) fn next_large(number: u64) -> u64 {
    (number + 1).next_multiple_of(LARGE_ONE_IN) - 1
}

/// Its length.
pub(super) fn block_bytes(number: u64) -> u64 {
    if number == next_large(number) { LARGE_BYTES } else { BLOCK_BYTES }
}

/// Its bytes, as words.
pub(super) fn content(worker: u32, number: u64) -> Vec<u64> {
    let mut random = Random::new(u64::from(worker) << 48 ^ number);
    (0..block_bytes(number) / 8).map(|_| random.next_u64()).collect()
}

/// The bytes of `words` in the order of the memory.
pub(super) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Writes the payload of a block, and gets it to the device.
pub(super) fn store<F: Fabric>(fabric: &F, payload: Extent, words: &[u64]) -> Result<()> {
    let lines = LineRange::covering(payload);
    for (line, words) in lines.iter().zip(words.chunks_exact(8)) {
        fabric.write_line(line, words.try_into().context("a chunk of eight words")?);
    }
    fabric.publish(lines);
    Ok(())
}

/// Reads the payload of a block from the device.
pub(super) fn load<F: Fabric>(fabric: &F, payload: Extent) -> Vec<u64> {
    let lines = LineRange::covering(payload);
    fabric.refresh(lines);
    lines.iter().flat_map(|line| fabric.read_line(line)).collect()
}
