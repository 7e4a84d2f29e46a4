//! A child that serves prompts as an engine does: look up, wait for drives, fetch, compute the rest,
//! publish it.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use cxl_shm::clock::SystemClock;
use cxl_shm::verify::simulated::Random;
use rackline::{NewBlock, Pool, RestoreOptions, Session};

use super::child::ChildOptions;
use super::event::{Event, tell};
use super::ground::{BLOCK_BYTES, PROMPT_BLOCKS, PROMPTS, content, hash, session_options};

/// How long a lookup waits for drives, one of these.
const WAITS_MS: [u64; 4] = [0, 20, 100, 400];
/// How long an engine thinks after a prompt at most.
const THINKS_MS: u64 = 4;

/// Serves prompts until its standard input ends.
pub(super) fn run(options: &ChildOptions) -> Result<()> {
    let ends = ends_with_input()?;
    let pool = Pool::attach(&options.region, options.host)?;
    let session = pool.session(session_options())?;
    tell(&Event::Up)?;
    let (mut random, clock) = (Random::new(options.seed), SystemClock::start());
    while !ends.load(Ordering::Relaxed) {
        serve(&session, &mut random)?;
        clock.sleep_ms(random.below(THINKS_MS));
    }
    Ok(())
}

fn ends_with_input() -> Result<Arc<AtomicBool>> {
    let ends = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ends);
    let wait = move || {
        let _ = std::io::stdin().read(&mut [0]);
        told.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new()
        .name("standard-input".to_owned())
        .spawn(wait)
        .context("cannot start a thread")?;
    Ok(ends)
}

/// One prompt. Some are asked for more often than others.
fn serve(session: &Session<'_>, random: &mut Random) -> Result<()> {
    let prompt = random.below(u64::from(PROMPTS)).min(random.below(u64::from(PROMPTS)));
    let first = u32::try_from(prompt)? * PROMPT_BLOCKS;
    let count = 1 + u32::try_from(random.below(PROMPT_BLOCKS.into()))?;
    let hashes: Vec<_> = (first..first + count).map(hash).collect();
    let wait_ms = WAITS_MS[random.index(WAITS_MS.len()).unwrap_or(0)];
    let wait = RestoreOptions::new(Duration::from_millis(wait_ms));
    let report = session.lookup_and_restore(&hashes, wait)?;
    let restored = report.restored() as u64;
    if let Some(stop) = report.stop() {
        tell(&Event::Missed(stop.label().to_owned()))?;
    }
    let held = report.into_held();
    let blocks = held.blocks();
    let mut bytes = vec![vec![0; BLOCK_BYTES]; blocks.len()];
    let places = bytes.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
    let read = session.fetch(&blocks, places)?.valid_blocks();
    session.release(held);
    for (number, bytes) in (first..).zip(&bytes[..read]) {
        if *bytes != content(number) {
            tell(&Event::Fault(format!("block {number} was read with wrong bytes")))?;
        }
    }
    let contents: Vec<_> = (first..first + count).skip(read).map(content).collect();
    let new = hashes.iter().zip(0..).skip(read).zip(&contents);
    let new: Vec<_> = new
        .map(|((hash, depth), bytes)| NewBlock { hash: *hash, depth, bytes: [bytes.as_slice()] })
        .collect();
    let published = session.publish(&new)?.published() as u64;
    tell(&Event::Served { read: read as u64, restored, published })
}
