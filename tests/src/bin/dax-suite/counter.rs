//! A pair of counters in a chunk, guarded by a lock between hosts, and how often each process has
//! added.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, read_superblock};
use cxl_shm::lifecycle::Attachment;
use cxl_shm::region::Region;
use cxl_shm::units::{ChunkId, WordOffset};

use crate::chunk_lines::ChunkLines;

/// What the counter's chunk is used for, in the chunk table.
const PURPOSE: u64 = 0xC0;
/// Most workers there can be.
pub(crate) const WORKERS_MAX: u64 = 32;
const TIMEOUT_MS: u64 = 30_000;

/// Make, read or remove the counter of `torture`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Take a chunk for it and set it to zero.
    New {
        #[arg(long)]
        region: PathBuf,
        #[arg(long)]
        node: u16,
        /// How long to wait for the chunk table.
        #[arg(long, default_value_t = TIMEOUT_MS)]
        timeout_ms: u64,
    },
    /// Show it, and how many additions each worker has acknowledged. Needs no membership.
    Read {
        #[arg(long)]
        region: PathBuf,
        #[arg(long)]
        chunk: u32,
    },
    /// Give its chunk back.
    Remove {
        #[arg(long)]
        region: PathBuf,
        #[arg(long)]
        node: u16,
        #[arg(long)]
        chunk: u32,
    },
}

/// Where its words are. The first three lines belong to the holder of the lock, each line after
/// them to one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    lines: ChunkLines,
}

impl Counter {
    /// Lines that the holder of the lock writes, and all of them.
    const GUARDED: u64 = 3;
    const ALL: u64 = Self::GUARDED + WORKERS_MAX;

    pub(crate) fn in_chunk(layout: &Layout, chunk: u32) -> Result<Self> {
        let chunk = layout.chunk_id(chunk).with_context(|| format!("there is no chunk {chunk}"))?;
        Ok(Self { lines: ChunkLines::of(layout, chunk) })
    }

    /// The first of the pair: published before the second.
    pub(crate) fn first(self) -> WordOffset {
        self.lines.word(0, 0)
    }

    /// The second of the pair, in a line of its own.
    pub(crate) fn second(self) -> WordOffset {
        self.lines.word(1, 0)
    }

    /// The node that held the lock last, plus one.
    pub(crate) fn holder(self) -> WordOffset {
        self.lines.word(2, 0)
    }

    /// How often the lock passed from one node to another.
    pub(crate) fn handed_over(self) -> WordOffset {
        self.lines.word(2, 1)
    }

    /// How many workers have arrived.
    pub(crate) fn arrived(self) -> WordOffset {
        self.lines.word(2, 2)
    }

    /// How many additions `worker` has made and released the lock after.
    pub(crate) fn acknowledged(self, worker: u64) -> WordOffset {
        self.lines.word(Self::GUARDED + worker, 0)
    }

    /// Drops from our caches what the lock guards (LOCK-L1).
    pub(crate) fn refresh(self, fabric: &impl Fabric) {
        fabric.refresh(self.lines.lines(0, Self::GUARDED));
    }
}

pub(crate) fn run(options: &Options) -> Result<String> {
    match &options.action {
        Action::New { region, node, timeout_ms } => {
            let attachment = Attachment::attach(region, *node)?;
            let (member, clock) = (attachment.member(), SystemClock::start());
            let chunk = member.allocate_chunk(&clock, *timeout_ms, PURPOSE)?;
            let lines = ChunkLines::of(member.layout(), chunk);
            for number in 0..Counter::ALL {
                member.fabric().write_line(lines.line(number), &[0; 8]);
            }
            member.fabric().publish(lines.lines(0, Counter::ALL));
            Ok(format!("chunk={}", chunk.0))
        }
        Action::Read { region, chunk } => {
            let region = Region::open(region, None)?;
            let fabric = region.fabric();
            let (_, layout) = read_superblock(fabric)?;
            let counter = Counter::in_chunk(&layout, *chunk)?;
            fabric.refresh(counter.lines.lines(0, Counter::ALL));
            let acknowledged: Vec<_> = (0..WORKERS_MAX)
                .map(|worker| fabric.load(counter.acknowledged(worker)).to_string())
                .collect();
            Ok(format!(
                "first={} second={} handed_over={} acknowledged={}",
                fabric.load(counter.first()),
                fabric.load(counter.second()),
                fabric.load(counter.handed_over()),
                acknowledged.join(",")
            ))
        }
        Action::Remove { region, node, chunk } => {
            let attachment = Attachment::attach(region, *node)?;
            let (member, clock) = (attachment.member(), SystemClock::start());
            member.free_chunk(&clock, TIMEOUT_MS, ChunkId(*chunk))?;
            ensure!(member.owned_chunks().iter().all(|(owned, _)| owned.0 != *chunk), "still ours");
            Ok(String::new())
        }
    }
}
