//! A worker process of a live replay: serves requests as an engine would, except for the computing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::chunk::AllocateError;
use cxl_shm::clock::SystemClock;
use cxl_shm::lifecycle::Attachment;
use kv_cache::{Cache, reclaim_dead_processes};
use rackline::dma::HostDma;
use rackline::session::SessionCore;
use rackline::{
    BlockHash, LocalCache, MatchedBlock, Model, Namespace, NewBlock, PublishOutcome, Refusal,
    Session, SessionOptions, Watermarks,
};

use super::drive::{DriveArguments, WorkerDrive};
use super::protocol::{Event, Served, Task};
use crate::rack::block_bytes;
use crate::rack::{carry_out_tasks, has_free_chunk, say};

/// A worker of a live replay. Started by it; takes tasks on its standard input.
#[derive(Args, Debug)]
pub(crate) struct WorkerOptions {
    /// The region.
    #[arg(long)]
    region: PathBuf,
    /// The node.
    #[arg(long)]
    node: u16,
    /// Length of a block.
    #[arg(long)]
    block_bytes: ByteSize,
    /// What tells the blocks of this replay from those of others.
    #[arg(long)]
    salt: String,
    /// The pool is not this replay's own: its blocks are removed at the end.
    #[arg(long)]
    tidy: bool,
    /// The drive behind the pool.
    #[command(flatten)]
    drive: DriveArguments,
}

/// How long a publish waits for the lock of the chunk table, on a busy machine; or for a chunk,
/// when it takes the last one and finds that it needs another.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it waits once there is no chunk left: nobody gives one back, so it is of no use.
const FULL_TIMEOUT_MS: u64 = 0;
/// How long what was found is held: for one request.
const HOLD: Duration = Duration::from_secs(600);
/// Slots that a turn of upkeep takes in when a process is new.
const SLOTS_A_TURN: u32 = 4096;

pub(crate) fn run_worker(options: &WorkerOptions) -> Result<()> {
    let attachment = Attachment::attach(&options.region, options.node)?;
    let clock = SystemClock::start();
    reclaim_dead_processes(attachment.member(), &clock);
    let cache = Cache::attach(attachment.member(), &clock)?;
    let dma = HostDma::new(attachment.region().fabric().clone());
    let block_bytes = options.block_bytes.as_u64();
    let model = Model {
        name: "rackline replay",
        revision: "1",
        dtype: "bytes",
        layout_version: 1,
        block_tokens: 1,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
    };
    let namespace = Namespace::new("rackline replay", options.salt.as_bytes());
    let chosen = SessionOptions::new(model, block_bytes).with_namespace(namespace).with_hold(HOLD);
    let session =
        |timeout| SessionCore::new(&cache, &dma, &clock, chosen.with_chunk_timeout(timeout));
    let mut worker = Worker {
        cache: &cache,
        dma: &dma,
        clock,
        session: session(LOCK_TIMEOUT),
        once_full: Some(session(Duration::from_millis(FULL_TIMEOUT_MS))),
        // Nothing is evicted but by a publish that finds no room: when a thread does it in the
        // background, what is hit depends on when it happens to run.
        watermarks: Watermarks::new(100, 99)?,
        block_bytes: usize::try_from(block_bytes)?,
        buffer: Vec::new(),
        published: Vec::new(),
        tidy: options.tidy,
        drive: WorkerDrive::open(&options.drive, &model, namespace, block_bytes)?,
    };
    for _ in 0..=cache.geometry().descriptor_slots() / SLOTS_A_TURN {
        worker.upkeep();
    }
    say(&Event::Ready)?;
    carry_out_tasks(|task| match task {
        Task::Serve { blocks, now_ms } => say(&Event::Served(worker.serve(&blocks, now_ms)?)),
    })?;
    worker.remove_own();
    Ok(())
}

struct Worker<'a> {
    cache: &'a LocalCache<'a>,
    dma: &'a HostDma,
    clock: SystemClock,
    session: Session<'a>,
    /// The session to continue with once the pool has no chunk left.
    once_full: Option<Session<'a>>,
    watermarks: Watermarks,
    block_bytes: usize,
    /// The bytes of a request's blocks, one after the other.
    buffer: Vec<u8>,
    /// What this process published, to be removed at the end.
    published: Vec<BlockHash>,
    tidy: bool,
    drive: Option<WorkerDrive>,
}

impl Worker<'_> {
    fn serve(&mut self, blocks: &[u32], now_ms: u64) -> Result<Served> {
        let hashes: Vec<BlockHash> = blocks.iter().map(|block| block_bytes::hash(*block)).collect();
        self.buffer.resize(blocks.len() * self.block_bytes, 0);
        let mut served = Served::default();
        if let Some(drive) = &mut self.drive {
            served.drive = drive.back_up(self.cache, self.dma, &self.session, now_ms)?;
        }
        let evicted_before = self.session.metrics().evicted_blocks;

        let start_ns = self.clock.now_ns();
        let found = self.session.lookup(&hashes)?;
        served.lookup_ns = self.clock.now_ns() - start_ns;

        // As from prefill to decode: what a request builds on stays until it is done.
        let start_ns = self.clock.now_ns();
        let held = self.session.hold(found.blocks())?;
        served.hold_ns = self.clock.now_ns() - start_ns;

        let hits = self.fetch(&hashes, &held.blocks(), &mut served)?;
        served.hits = hits as u64;
        let ready = self.restore(blocks, &hashes, hits, &mut served)?;
        self.publish(&hashes, hits, ready, &mut served)?;
        self.session.release(held);
        self.upkeep();
        if let Some(drive) = &mut self.drive {
            drive.seen(&self.session, blocks, &hashes, now_ms)?;
        }
        served.evicted = self.session.metrics().evicted_blocks - evicted_before;
        Ok(served)
    }

    /// Fetches what was found and checks its bytes. Returns how many blocks that were.
    fn fetch(
        &mut self,
        hashes: &[BlockHash],
        found: &[MatchedBlock],
        served: &mut Served,
    ) -> Result<usize> {
        if found.is_empty() {
            return Ok(0);
        }
        let start_ns = self.clock.now_ns();
        let parts = self.buffer.chunks_exact_mut(self.block_bytes).take(found.len());
        let report = self.session.fetch(found, parts.map(|part| vec![part]).collect());
        served.fetch_ns = self.clock.now_ns() - start_ns;
        let valid = report?.valid_blocks();
        let fetched = self.buffer.chunks_exact(self.block_bytes).take(valid);
        for (depth, (hash, bytes)) in hashes.iter().zip(fetched).enumerate() {
            ensure!(block_bytes::are_of(hash, bytes), "block {depth} came with wrong bytes");
        }
        Ok(valid)
    }

    /// Brings the blocks behind the first `hits` to the buffer, as far as the drive has them, or the
    /// pool behind a gap. Returns how many blocks are in the buffer then.
    fn restore(
        &mut self,
        blocks: &[u32],
        hashes: &[BlockHash],
        hits: usize,
        served: &mut Served,
    ) -> Result<usize> {
        let Some(drive) = &mut self.drive else { return Ok(hits) };
        drive.used(blocks, hashes);
        for (depth, hash) in hashes.iter().enumerate().skip(hits) {
            let part = &mut self.buffer[depth * self.block_bytes..][..self.block_bytes];
            let found = self.session.lookup(std::slice::from_ref(hash))?;
            if let [block] = found.blocks() {
                let report = self.session.fetch(&[*block], vec![vec![&mut *part]])?;
                ensure!(report.valid_blocks() == 1, "block {depth} was not fetched");
                served.drive.pool_hits += 1;
            } else if drive.get(hash, part, &mut served.drive)? {
                served.drive.hits += 1;
            } else {
                return Ok(depth);
            }
            ensure!(block_bytes::are_of(hash, part), "block {depth} came with wrong bytes");
        }
        Ok(hashes.len())
    }

    /// Publishes what the pool does not have: `hashes` from number `first` on. The bytes of those
    /// below number `ready` are in the buffer.
    fn publish(
        &mut self,
        hashes: &[BlockHash],
        first: usize,
        ready: usize,
        served: &mut Served,
    ) -> Result<()> {
        let missing = &hashes[first..];
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(session) = self.once_full.take_if(|_| !has_free_chunk(self.cache)) {
            self.session = session;
        }
        let parts = self.buffer.chunks_exact_mut(self.block_bytes);
        for (hash, part) in hashes.iter().zip(parts).skip(ready) {
            block_bytes::fill(hash, part);
        }
        let parts = self.buffer.chunks_exact(self.block_bytes).skip(first).map(|part| [part]);
        let depth = u32::try_from(first).context("a request of 2^32 blocks")?;
        let blocks = NewBlock::chain(depth, missing.iter().copied(), parts);
        let start_ns = self.clock.now_ns();
        let report = self.session.publish(&blocks);
        served.publish_ns = self.clock.now_ns() - start_ns;
        for (hash, outcome) in missing.iter().zip(report?.outcomes()) {
            match outcome {
                PublishOutcome::Published => {
                    served.published += 1;
                    if self.tidy {
                        self.published.push(*hash);
                    }
                }
                // Behind a gap.
                PublishOutcome::AlreadyThere => {}
                // All that this node has is held, or new itself.
                PublishOutcome::Refused(Refusal::NoChunk(AllocateError::Exhausted { .. })) => {
                    served.refused += 1;
                }
                PublishOutcome::Refused(refusal) => {
                    served.refused += 1;
                    served.trouble.get_or_insert_with(|| refusal.to_string());
                }
                outcome => bail!("a block was not published: {outcome:?}"),
            }
        }
        Ok(())
    }

    /// Tells the owners what was used, and takes in what was published: after each request, so that
    /// what is evicted next depends on nothing but the requests so far.
    fn upkeep(&self) {
        self.cache.upkeep(&self.clock, self.watermarks, FULL_TIMEOUT_MS);
    }

    fn remove_own(&self) {
        let own = |hash: &BlockHash| {
            let found = self.session.lookup(&[*hash]).ok()?;
            found.blocks().first().map(|block| block.handle)
        };
        let handles: Vec<_> = self.published.iter().filter_map(own).collect();
        self.cache.retire(&self.clock, &handles);
    }
}
