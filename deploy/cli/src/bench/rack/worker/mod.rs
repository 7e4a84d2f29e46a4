//! A worker process: moves the bytes of KV blocks through the pool, and sleeps where an engine would
//! compute.

mod decode;
mod link;
mod prefill;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use rackline::{
    BlockHash, HoldReport, MatchedBlock, Model, Namespace, Pool, RestoreOptions, Session,
    SessionOptions,
};
use rackline_serving::{Device, Profile};

use self::link::Link;
use super::protocol::{Event, Late, Prompt};
use super::time::{Speed, machine_ns, thread_cpu_ns};
use crate::rack::{block_bytes, say};

/// A worker of `rackline bench rack`. Started by it; takes tasks on its standard input.
#[derive(Args, Debug)]
pub(crate) struct WorkerOptions {
    /// The region.
    #[arg(long)]
    region: PathBuf,
    /// The node.
    #[arg(long)]
    node: u16,
    /// What it is for.
    #[arg(long)]
    role: Role,
    /// What computing takes, as the text of a profile.
    #[arg(long)]
    profile: String,
    /// Length of a block in the pool.
    #[arg(long)]
    block_bytes: ByteSize,
    /// Tokens of a block.
    #[arg(long)]
    block_tokens: u64,
    /// How many times as fast as the machine's the time of the bench passes.
    #[arg(long)]
    speed: f64,
    /// The file of the host's link; without one nothing is imposed.
    #[arg(long, requires = "bytes_per_s")]
    link: Option<PathBuf>,
    /// The link's bytes of these blocks in a second of the machine.
    #[arg(long, requires = "link")]
    bytes_per_s: Option<f64>,
    /// The link's latency in nanoseconds of the machine.
    #[arg(long, default_value_t = 0)]
    latency_ns: u64,
    /// How long a lookup waits for blocks on drives; 0 without drives.
    #[arg(long, default_value_t = 0)]
    restore_wait_ms: u64,
}

/// What a worker is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, ValueEnum)]
pub(super) enum Role {
    Prefill,
    Decode,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// How long a publish waits for a chunk, or for the lock of the chunk table. It is refused after that,
/// and said.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long blocks are held at most. A request that waits longer is computed again.
const HOLD: Duration = Duration::from_secs(1800);

pub(crate) fn run_worker(options: &WorkerOptions) -> Result<()> {
    let block_bytes = options.block_bytes.as_u64();
    let pool = Pool::attach(&options.region, options.node)?;
    let model = Model {
        name: "rackline bench",
        revision: "1",
        dtype: "bytes",
        layout_version: 1,
        block_tokens: u32::try_from(options.block_tokens)?,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
    };
    let chosen = SessionOptions::new(model, block_bytes)
        .with_namespace(Namespace::new("rackline bench", b""))
        .with_hold(HOLD);
    let speed = Speed(options.speed);
    let imposed = match (&options.link, options.bytes_per_s) {
        (Some(path), Some(rate)) => {
            Some((Device::of_bytes(rate, options.latency_ns), path.as_path()))
        }
        _ => None,
    };
    let worker = Worker {
        pool: &pool,
        session: pool.session(chosen.with_chunk_timeout(CHUNK_TIMEOUT))?,
        once_full: pool.session(chosen.with_chunk_timeout(Duration::ZERO))?,
        restore: RestoreOptions::new(Duration::from_millis(options.restore_wait_ms)),
        link: Link::open(imposed, speed)?,
        speed,
        profile: Profile::read(&options.profile)?,
        block_bytes: usize::try_from(block_bytes)?,
        block_tokens: options.block_tokens,
        cpu_ns: Cell::new(0),
    };
    say(&Event::Ready)?;
    match options.role {
        Role::Prefill => prefill::serve(&worker),
        Role::Decode => decode::serve(&worker),
    }
}

/// What both kinds of workers have.
struct Worker<'p> {
    pool: &'p Pool,
    session: Session<'p>,
    /// Publishes once the pool has no free chunk: nobody gives one back.
    once_full: Session<'p>,
    restore: RestoreOptions,
    link: Link,
    speed: Speed,
    profile: Profile,
    block_bytes: usize,
    block_tokens: u64,
    /// Processor time of the pool's calls, since it was reported last.
    cpu_ns: Cell<u64>,
}

impl Worker<'_> {
    /// Calls the pool.
    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        let before_ns = thread_cpu_ns();
        let answer = call();
        self.cpu_ns.update(|cpu_ns| cpu_ns + thread_cpu_ns() - before_ns);
        answer
    }

    /// Looks a prompt up, waits for what drives have of it, and holds what is found. Also how many
    /// blocks came from drives.
    fn look_up(&self, prompt: &Prompt) -> Result<(Vec<BlockHash>, HoldReport, u64)> {
        let hashes: Vec<_> = prompt.blocks.iter().map(|it| block_bytes::hash(*it)).collect();
        let found = self.call(|| self.session.lookup_and_restore(&hashes, self.restore))?;
        if let Some(stop) = found.stop() {
            tracing::warn!(reason = stop.label(), "a block did not come back from a drive: {stop}");
        }
        let restored = found.restored() as u64;
        let held = found.into_held();
        if let Some(stop) = held.stop() {
            tracing::warn!(reason = stop.label(), "a block was found and not held: {stop}");
        }
        Ok((hashes, held, restored))
    }

    /// Reads blocks into `buffer`, one after the other. Returns how many were valid.
    fn read(&self, found: &[MatchedBlock], buffer: &mut [u8], late: &mut Late) -> Result<usize> {
        if found.is_empty() {
            return Ok(0);
        }
        let parts = buffer.chunks_exact_mut(self.block_bytes).take(found.len());
        let parts = parts.map(|part| vec![part]).collect();
        let bytes = (found.len() * self.block_bytes) as u64;
        let fetch = || Ok(self.call(|| self.session.fetch(found, parts))?);
        let report = self.link.pass(bytes, late, fetch)?;
        if let Some(stop) = report.stop() {
            tracing::warn!(reason = stop.label(), "a block was not read: {stop}");
        }
        Ok(report.valid_blocks())
    }

    /// Every byte of a block follows from its name.
    fn check(&self, hashes: &[BlockHash], buffer: &[u8]) -> Result<()> {
        let parts = buffer.chunks_exact(self.block_bytes);
        for (depth, (hash, part)) in hashes.iter().zip(parts).enumerate() {
            ensure!(block_bytes::are_of(hash, part), "block {depth} came with wrong bytes");
        }
        Ok(())
    }

    /// Tokens of the first `blocks` blocks of a prompt.
    fn tokens_of(&self, prompt: &Prompt, blocks: usize) -> u64 {
        (blocks as u64 * self.block_tokens).min(prompt.tokens)
    }

    /// The time of the bench since the machine's clock said `since_ns`, which then says what it says now.
    fn lap(&self, since_ns: &mut u64) -> u64 {
        let now_ns = machine_ns();
        let passed_ns = now_ns - std::mem::replace(since_ns, now_ns);
        self.speed.in_bench(passed_ns)
    }

    fn buffer(&self, prompt: &Prompt) -> Result<Vec<u8>> {
        let bytes = prompt.blocks.len().checked_mul(self.block_bytes);
        Ok(vec![0; bytes.context("a prompt of more bytes than memory can have")?])
    }
}
