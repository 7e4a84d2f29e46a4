//! The chunk table under two hosts that take all they can get.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use cxl_shm::chunk::{AllocateError, ChunkError};
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{ChunkState, Layout, read_superblock};
use cxl_shm::lifecycle::{Attachment, LocalMember};
use cxl_shm::region::Region;
use cxl_shm::units::{ChunkId, LineRange};

use crate::chunk_lines::ChunkLines;

/// What these chunks are used for, in the chunk table.
const PURPOSE: u64 = 0xA11;
const TIMEOUT_MS: u64 = 60_000;

/// Take, look at or give back chunks of the region.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Take chunks until there are none, and mark each as this node's.
    Take {
        #[arg(long)]
        region: PathBuf,
        #[arg(long)]
        node: u16,
        /// Take no more than this many.
        #[arg(long)]
        at_most: Option<usize>,
    },
    /// Check the marks in the chunks of a node. Needs no membership.
    Check {
        #[arg(long)]
        region: PathBuf,
        /// Whose chunks.
        #[arg(long)]
        of: u16,
        /// How many there must be.
        #[arg(long)]
        chunks: usize,
    },
    /// Give all chunks of this node back that `take` took, and one of them twice; and one that
    /// belongs to another node.
    GiveBack {
        #[arg(long)]
        region: PathBuf,
        #[arg(long)]
        node: u16,
        /// A chunk of another node.
        #[arg(long)]
        foreign: Option<u32>,
    },
}

pub(crate) fn run(options: &Options) -> Result<String> {
    match &options.action {
        Action::Take { region, node, at_most } => {
            take(&Attachment::attach(region, *node)?, at_most.unwrap_or(usize::MAX))
        }
        Action::Check { region, of, chunks } => check(&Region::open(region, None)?, *of, *chunks),
        Action::GiveBack { region, node, foreign } => {
            give_back(&Attachment::attach(region, *node)?, *foreign)
        }
    }
}

fn take(attachment: &Attachment, at_most: usize) -> Result<String> {
    let (member, clock) = (attachment.member(), SystemClock::start());
    let mut taken = Vec::new();
    while taken.len() < at_most {
        match member.allocate_chunk(&clock, TIMEOUT_MS, PURPOSE) {
            Ok(chunk) => {
                mark(member, chunk);
                taken.push(chunk.0.to_string());
            }
            Err(AllocateError::Exhausted { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let us = clock.now_us();
    Ok(format!("taken={} us={us} chunks={}", taken.len(), taken.join(",")))
}

/// What the first and the last line of a chunk say while it is a node's.
fn mark_of(node: u16, chunk: ChunkId, line: u64) -> [u64; 8] {
    let seed = u64::from(node) << 48 | u64::from(chunk.0) << 16 | (line & 0xFFFF);
    [1, 2, 3, 4, 5, 6, 7, 8].map(|word| seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ word)
}

fn mark(member: &LocalMember, chunk: ChunkId) {
    let lines = ChunkLines::of(member.layout(), chunk);
    for number in [0, lines.last()] {
        let line = lines.line(number);
        member.fabric().write_line(line, &mark_of(member.node().0, chunk, number));
        member.fabric().publish(LineRange::one(line));
    }
}

fn check(region: &Region, node: u16, expected: usize) -> Result<String> {
    let fabric = region.fabric();
    let (_, layout) = read_superblock(fabric)?;
    let chunks = chunks_of(fabric, &layout, node);
    ensure!(chunks.len() == expected, "node {node} has {} chunks, not {expected}", chunks.len());
    for chunk in &chunks {
        let lines = ChunkLines::of(&layout, *chunk);
        for number in [0, lines.last()] {
            let line = lines.line(number);
            fabric.refresh(LineRange::one(line));
            if fabric.read_line(line) != mark_of(node, *chunk, number) {
                bail!("line {number} of chunk {chunk} is not as node {node} wrote it");
            }
        }
    }
    Ok(format!("chunks={}", chunks.len()))
}

/// The chunks that `take` took for `node`, by the chunk table.
fn chunks_of(fabric: &impl Fabric, layout: &Layout, node: u16) -> Vec<ChunkId> {
    fabric.refresh(layout.chunk_table());
    let taken = |chunk: &ChunkId| {
        let entry = layout.chunk_entry(*chunk).cached(fabric).ok();
        matches!(
            entry.and_then(|entry| entry.state()),
            Some(ChunkState::Owned { owner, purpose: PURPOSE, .. }) if owner.0 == node
        )
    };
    (0..layout.chunks()).map(ChunkId).filter(taken).collect()
}

fn give_back(attachment: &Attachment, foreign: Option<u32>) -> Result<String> {
    let (member, clock) = (attachment.member(), SystemClock::start());
    let free = |chunk| member.free_chunk(&clock, TIMEOUT_MS, chunk);
    if let Some(chunk) = foreign.map(ChunkId) {
        ensure!(free(chunk) == Err(ChunkError::NotOurs { chunk }), "freed another node's {chunk}");
    }
    let beyond = ChunkId(member.layout().chunks());
    ensure!(matches!(free(beyond), Err(ChunkError::Unknown { .. })), "freed chunk {beyond}");
    let ours = chunks_of(member.fabric(), member.layout(), member.node().0);
    for chunk in &ours {
        free(*chunk)?;
    }
    let chunk = *ours.first().context("there is no chunk to give back")?;
    ensure!(free(chunk) == Err(ChunkError::NotOurs { chunk }), "freed chunk {chunk} twice");
    Ok(format!("given_back={} us={}", ours.len(), clock.now_us()))
}
