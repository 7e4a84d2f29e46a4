//! What is free can be used again: at the end of a run the pool is emptied, and filled anew.

use anyhow::{Result, ensure};
use cxl_shm::clock::SystemClock;
use cxl_shm::layout::ChunkState;
use cxl_shm::layout::HEAP_PURPOSE;
use cxl_shm::lifecycle::LocalMember;
use cxl_shm::node::MappedBackend;
use cxl_shm::units::ChunkId;
use kv_cache::Cache;
use kv_cache::{BlockSpec, Reservation, SlotContent};
use rackline::dma::Checksum;

use super::blocks::{Fetched, fetch};
use super::ground::{block_bytes, bytes_of, content, key, store};

/// Nothing of it is contended.
const CHUNK_TIMEOUT_MS: u64 = 60_000;
/// Blocks of a usual size in a chunk.
const CHUNK_BLOCKS: u64 = 8;
/// Most blocks that are published: fewer than descriptors.
const BLOCKS_MAX: u64 = 248;
/// No worker of a rack.
const NOBODY: u32 = 1 << 20;

/// Removes all blocks of all nodes, and has the first fill the free chunks of the region, or as
/// many as it has descriptors for, without evicting anything: every block is found from the last
/// one, byte for byte.
///
/// # Errors
/// What is not free, or cannot be used.
pub(super) fn use_again(members: &[LocalMember]) -> Result<()> {
    let clock = SystemClock::start();
    for member in members {
        empty(&Cache::attach(member, &clock)?, &clock)?;
    }
    let (Some(first), Some(last)) = (members.first(), members.last()) else { return Ok(()) };
    let blocks = (free_chunks(first) * CHUNK_BLOCKS).min(BLOCKS_MAX);
    let cache = Cache::attach(first, &clock)?;
    let sizes = (0..).filter(|number| block_bytes(*number) == block_bytes(0));
    let numbers: Vec<u64> = sizes.take(usize::try_from(blocks)?).collect();
    for numbers in numbers.chunks(16) {
        publish(&cache, &clock, numbers)?;
    }
    let evicted = cache.process_state().metrics().evicted_blocks;
    ensure!(evicted == 0, "{evicted} blocks were evicted where all had been free");
    let cache = Cache::attach(last, &clock)?;
    for number in &numbers {
        let found = matches!(fetch(&cache, NOBODY, *number), Fetched::Right);
        ensure!(found, "block {number} of {blocks} in free chunks is not found, or not right");
    }
    Ok(())
}

fn empty(cache: &Cache<'_, MappedBackend>, clock: &SystemClock) -> Result<()> {
    let (member, mut handles) = (cache.member(), Vec::new());
    let node = member.node();
    if let Some(segment) = cache.segment(node) {
        segment.scan(member.fabric(), |_, content| {
            if let Ok(SlotContent::Block(block)) = content {
                handles.push(block.handle);
            }
        });
    }
    let removed = cache.retire(clock, &handles);
    ensure!(removed == handles.len() as u64, "{removed} of {} blocks went", handles.len());
    let usage = cache.heap_use(clock);
    let chunks = member.owned_chunks();
    let of_cache = chunks.iter().filter(|(_, purpose)| purpose >> 32 != HEAP_PURPOSE >> 32);
    let bytes = of_cache.count() as u64 * member.layout().geometry().chunk_bytes;
    ensure!(
        (usage.blocks, usage.free_bytes) == (0, bytes),
        "of the {bytes} bytes of node {node}, which is empty, not all are free: {usage:?}"
    );
    Ok(())
}

fn free_chunks(member: &LocalMember) -> u64 {
    let layout = member.layout();
    let is_free = |chunk: &ChunkId| {
        let entry = layout.chunk_entry(*chunk).fresh(member.fabric());
        entry.is_ok_and(|entry| entry.state() == Some(ChunkState::Free))
    };
    (0..layout.chunks()).map(ChunkId).filter(is_free).count() as u64
}

fn publish(cache: &Cache<'_, MappedBackend>, clock: &SystemClock, numbers: &[u64]) -> Result<()> {
    let spec = |number: &u64| BlockSpec {
        key: key(NOBODY, *number),
        bytes: block_bytes(*number),
        depth: 0,
    };
    let specs: Vec<_> = numbers.iter().map(spec).collect();
    let mut writing = Vec::new();
    let reserved = cache.reserve(clock, &specs, CHUNK_TIMEOUT_MS);
    for (number, reserved) in numbers.iter().zip(reserved) {
        let Reservation::Writing(block) = reserved else {
            anyhow::bail!(
                "there is no room for block {number} where chunks are free: {reserved:?}"
            );
        };
        let words = content(NOBODY, *number);
        store(cache.member().fabric(), block.payload(), &words)?;
        let Checksum(crc) = Checksum::of(&[&bytes_of(&words)]);
        writing.push((block, crc));
    }
    for committed in cache.commit(clock, writing) {
        committed?;
    }
    Ok(())
}
