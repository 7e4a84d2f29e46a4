//! KV blocks that one host publishes and others read, also when that host is gone.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand};
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::lifecycle::Attachment;
use cxl_shm::node::MappedBackend;
use cxl_shm::units::{Extent, LineRange, NodeId};
use kv_cache::tier::{Found, RestoreState};
use kv_cache::{
    BlockHash, BlockKey, BlockSpec, Cache, KeySpace, Model, ModelFingerprint, Namespace,
    Reservation, RestoreRequest, Wanted,
};
use rackline::dma::Checksum;

const TIMEOUT_MS: u64 = 60_000;
const BLOCK_BYTES: u64 = 16 << 10;
/// Blocks that are asked for at once.
const AT_ONCE: usize = 8;

/// Publish blocks as a node, read those of any node, remove those of a node.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    region: PathBuf,

    #[arg(long)]
    node: u16,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Publish blocks 0 to COUNT.
    Publish { count: u64 },
    /// Find and read blocks 0 to COUNT of a node: every byte is right.
    Read {
        count: u64,
        /// Who published them.
        #[arg(long)]
        of: u16,
    },
    /// Ask for blocks 0 to COUNT of a node that are on a drive, and wait for the answers. The agent of
    /// this host has to run. Says how many are in the pool then.
    Restore {
        count: u64,
        /// Who published them.
        #[arg(long)]
        of: u16,
        /// How long each may take.
        #[arg(long)]
        wait_ms: u32,
        /// Between two times of asking, each for 8 blocks.
        #[arg(long, default_value_t = 0)]
        pause_ms: u64,
    },
    /// Remove blocks 0 to COUNT of this node.
    Retire { count: u64 },
}

type LocalCache<'m> = Cache<'m, MappedBackend>;

pub(crate) fn run(options: &Options) -> Result<String> {
    let attachment = Attachment::attach(&options.region, options.node)?;
    let clock = SystemClock::start();
    let cache = Cache::attach(attachment.member(), &clock)?;
    match options.action {
        Action::Publish { count } => publish(&cache, &clock, options.node, count),
        Action::Read { count, of } => read(&cache, of, count),
        Action::Restore { count, of, wait_ms, pause_ms } => {
            restore(&cache, &clock, (of, count), wait_ms, pause_ms)
        }
        Action::Retire { count } => {
            let retired: u64 = (0..count)
                .map(|number| {
                    let found = cache.lookup(&[key(options.node, number)]);
                    let handles: Vec<_> = found.blocks().iter().map(|block| block.handle).collect();
                    cache.retire(&clock, &handles)
                })
                .sum();
            ensure!(retired == count, "{retired} of {count} blocks were there to be removed");
            Ok(format!("retired={retired}"))
        }
    }
}

fn publish(cache: &LocalCache<'_>, clock: &SystemClock, node: u16, count: u64) -> Result<String> {
    let spec = |number| BlockSpec { key: key(node, number), bytes: BLOCK_BYTES, depth: 0 };
    let specs: Vec<_> = (0..count).map(spec).collect();
    let mut writing = Vec::new();
    for (number, reserved) in (0..).zip(cache.reserve(clock, &specs, TIMEOUT_MS)) {
        let Reservation::Writing(block) = reserved else {
            bail!("block {number} is not available: {reserved:?}");
        };
        let words = content(node, number);
        let Checksum(crc) = Checksum::of(&[&bytes_of(&words)]);
        store(cache.member().fabric(), block.payload(), &words);
        writing.push((block, crc));
    }
    for outcome in cache.commit(clock, writing) {
        outcome?;
    }
    Ok(format!("published={count} us={}", clock.now_us()))
}

fn read(cache: &LocalCache<'_>, of: u16, count: u64) -> Result<String> {
    for number in 0..count {
        let key = key(of, number);
        let found = cache.lookup(&[key]);
        let Some(block) = found.blocks().first() else {
            bail!("no lookup finds block {number} of node {of}");
        };
        let wanted = Wanted { handle: block.handle, key, bytes: BLOCK_BYTES };
        let Some(ticket) = cache.open(&[wanted]).pop() else { bail!("one was asked for") };
        let ticket = ticket?;
        let words = load(cache.member().fabric(), ticket.payload());
        let Checksum(crc) = Checksum::of(&[&bytes_of(&words)]);
        for closed in cache.close(&[(ticket, Some(crc))]) {
            closed?;
        }
        ensure!(words == content(of, number), "block {number} of node {of} has other bytes");
    }
    Ok(format!("read={count}"))
}

fn restore(
    cache: &LocalCache<'_>,
    clock: &SystemClock,
    (of, count): (u16, u64),
    wait_ms: u32,
    pause_ms: u64,
) -> Result<String> {
    let (mut found, mut answered, mut longest_us) = (0, 0, 0);
    let numbers: Vec<u64> = (0..count).collect();
    for numbers in numbers.chunks(AT_ONCE) {
        clock.sleep_ms(pause_ms);
        let keys: Vec<_> = numbers.iter().map(|number| key(of, *number)).collect();
        let on_drives = |key: &BlockKey| {
            let found = cache.find_with_drives(clock, &[*key]).behind;
            found.iter().any(|it| matches!(it, Found::OnDrive { .. }))
        };
        let wanted: Vec<_> = keys.iter().copied().filter(on_drives).collect();
        found += wanted.len();
        if wanted.is_empty() {
            continue;
        }
        let request = |key: &BlockKey| RestoreRequest {
            key: *key,
            wait_ms,
            recompute_ms: None,
            ahead: false,
        };
        let requests: Vec<_> = wanted.iter().map(request).collect();
        let began_us = clock.now_us();
        let asked = cache.ask_restore(clock, NodeId(of), &requests)?;
        loop {
            let waited_us = clock.now_us() - began_us;
            let states = cache.restore_states(&asked.tickets)?;
            let waits = |state: &RestoreState| matches!(state, RestoreState::Pending);
            if !states.iter().any(waits) || waited_us > u64::from(wait_ms) * 1000 {
                let is_answer = |state: &&RestoreState| matches!(state, RestoreState::Answered(_));
                answered += states.iter().filter(is_answer).count();
                cache.cancel_restores(clock, &asked.tickets)?;
                longest_us = longest_us.max(waited_us);
                break;
            }
            clock.sleep_ms(1);
        }
    }
    let keys: Vec<_> = (0..count).map(|number| key(of, number)).collect();
    let present = cache.present(&keys).into_iter().filter(|is_present| *is_present).count();
    let longest_ms = longest_us / 1000;
    Ok(format!("found={found} answered={answered} present={present} longest_ms={longest_ms}"))
}

fn model() -> ModelFingerprint {
    let model = Model {
        name: "dax-suite",
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

fn key(node: u16, number: u64) -> BlockKey {
    let mut hash = [0; 32];
    hash[..2].copy_from_slice(&node.to_le_bytes());
    hash[8..16].copy_from_slice(&number.to_le_bytes());
    KeySpace::new(model(), Namespace::default(), BLOCK_BYTES).key(&BlockHash::new(hash))
}

fn content(node: u16, number: u64) -> Vec<u64> {
    let seed = u64::from(node) << 32 | number << 16;
    (0..BLOCK_BYTES / 8).map(|word| (seed | word).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Writes the payload of a block, and gets it to the device.
fn store(fabric: &impl Fabric, payload: Extent, words: &[u64]) {
    let lines = LineRange::covering(payload);
    for (line, words) in lines.iter().zip(words.as_chunks().0) {
        fabric.write_line(line, words);
    }
    fabric.publish(lines);
}

/// Reads the payload of a block from the device.
fn load(fabric: &impl Fabric, payload: Extent) -> Vec<u64> {
    let lines = LineRange::covering(payload);
    fabric.refresh(lines);
    lines.iter().flat_map(|line| fabric.read_line(line)).collect()
}
