//! A worker process of a live replay: serves requests as an engine would, but for the computing.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use bytesize::ByteSize;
use clap::Args;
use connector::dma::HostDma;
use connector::session::{PublishBlock, PublishOutcome, Session, SessionOptions};
use cxl_shm::alloc::AllocateError;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::{Fabric, MappedFabric, MappedHostMemory};
use cxl_shm::layout::ChunkState;
use cxl_shm::member::{Attachment, ProcLiveness};
use cxl_shm::units::ChunkId;
use kv_cache::evict::Watermarks;
use kv_cache::{BlockHash, Cache, MatchedBlock, Model, Namespace, Refusal, reclaim_dead_processes};

use super::bytes;
use super::protocol::{Event, Served, Task};
use crate::rack::{carry_out_tasks, say};

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
}

/// How long a publish waits for the lock of the chunk table, on a busy machine; or for a chunk, when
/// it takes the last one and finds that it needs another.
const LOCK_TIMEOUT_MS: u64 = 5000;
/// How long it waits once there is no chunk left: nobody gives one back, so it is of no use.
const FULL_TIMEOUT_MS: u64 = 0;
/// How long what was found is held: for one request.
const HOLD_MS: u64 = 600_000;
/// Slots that a turn of upkeep takes in when a process is new.
const SLOTS_A_TURN: u32 = 4096;

type WorkerCache<'a> = Cache<'a, MappedFabric, MappedHostMemory, ProcLiveness>;
type WorkerSession<'a> =
    Session<'a, MappedFabric, MappedHostMemory, ProcLiveness, HostDma, SystemClock>;

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
    let session = |chunk_timeout_ms| {
        let session_options = SessionOptions {
            model: model.fingerprint(),
            namespace: Namespace::new("rackline replay", options.salt.as_bytes()),
            block_bytes,
            chunk_timeout_ms,
        };
        Session::new(&cache, &dma, &clock, session_options).with_hold_ms(HOLD_MS)
    };
    let mut worker = Worker {
        cache: &cache,
        clock,
        session: session(LOCK_TIMEOUT_MS),
        once_full: Some(session(FULL_TIMEOUT_MS)),
        // Nothing is evicted but by a publish that finds no room: when a thread does it in the
        // background, what is hit depends on when it happens to run.
        watermarks: Watermarks::new(1000, 999)?,
        block_bytes: usize::try_from(block_bytes)?,
        buffer: Vec::new(),
        published: Vec::new(),
        tidy: options.tidy,
    };
    for _ in 0..=cache.geometry().descriptor_slots() / SLOTS_A_TURN {
        worker.upkeep();
    }
    say(&Event::Ready)?;
    carry_out_tasks(|task| match task {
        Task::Serve { blocks } => say(&Event::Served(worker.serve(&blocks)?)),
    })?;
    worker.remove_own();
    Ok(())
}

struct Worker<'a> {
    cache: &'a WorkerCache<'a>,
    clock: SystemClock,
    session: WorkerSession<'a>,
    /// The session to go on with once the pool has no chunk left.
    once_full: Option<WorkerSession<'a>>,
    watermarks: Watermarks,
    block_bytes: usize,
    /// The bytes of a request's blocks, one after the other.
    buffer: Vec<u8>,
    /// What this process published, to be removed at the end.
    published: Vec<BlockHash>,
    tidy: bool,
}

impl Worker<'_> {
    fn serve(&mut self, blocks: &[u32]) -> Result<Served> {
        let hashes: Vec<BlockHash> = blocks.iter().map(|block| bytes::hash(*block)).collect();
        self.buffer.resize(blocks.len() * self.block_bytes, 0);
        let mut served = Served::default();
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
        self.publish(&hashes, hits, &mut served)?;
        self.session.release(held);
        self.upkeep();
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
            ensure!(bytes::are_of(hash, bytes), "block {depth} came with wrong bytes");
        }
        Ok(valid)
    }

    /// Publishes what the pool does not have: `hashes` from number `first` on.
    fn publish(&mut self, hashes: &[BlockHash], first: usize, served: &mut Served) -> Result<()> {
        let missing = &hashes[first..];
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(session) = self.once_full.take_if(|_| !has_free_chunk(self.cache)) {
            self.session = session;
        }
        for (hash, part) in missing.iter().zip(self.buffer.chunks_exact_mut(self.block_bytes)) {
            bytes::fill(hash, part);
        }
        let parts = self.buffer.chunks_exact(self.block_bytes).map(|part| [part]);
        let parts: Vec<[&[u8]; 1]> = parts.take(missing.len()).collect();
        let depth = u32::try_from(first).context("a request of 2^32 blocks")?;
        let blocks = (depth..).zip(missing.iter().zip(&parts));
        let blocks: Vec<_> = blocks
            .map(|(depth, (hash, parts))| PublishBlock { hash: *hash, depth, parts })
            .collect();
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
                outcome @ (PublishOutcome::Failed(_) | PublishOutcome::TakenAway) => {
                    bail!("a block was not published: {outcome:?}")
                }
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

fn has_free_chunk(cache: &WorkerCache<'_>) -> bool {
    let (layout, fabric) = (cache.member().layout(), cache.member().fabric());
    fabric.refresh(layout.chunk_table());
    (0..layout.chunks()).map(ChunkId).any(|chunk| {
        let entry = layout.chunk_entry(chunk).cached(fabric);
        entry.is_ok_and(|entry| entry.state() == Some(ChunkState::Free))
    })
}
