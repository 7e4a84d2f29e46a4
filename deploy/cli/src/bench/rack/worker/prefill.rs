//! A prefill worker: one prompt after the other.

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail};
use rackline::{BlockHash, HoldReport, NewBlock, PublishOutcome};

use super::super::protocol::{Event, Late, Prefilled, Prompt, Task};
use super::super::time::{machine_ns, sleep_until};
use super::Worker;
use crate::rack::{block_bytes, carry_out_queued_tasks, has_free_chunk, say};

pub(super) fn serve(worker: &Worker<'_>) -> Result<()> {
    // Of prompts that no decode worker has read.
    let mut held = HashMap::new();
    carry_out_queued_tasks(|task| match task {
        Task::Prefill(prompt) => {
            let (prefilled, hold) = prefill(worker, &prompt)?;
            held.insert(prompt.request, hold);
            say(&Event::Prefilled(prefilled))
        }
        Task::Release { request } => {
            let hold: HoldReport = held.remove(&request).context("it is not held")?;
            worker.session.release(hold);
            Ok(())
        }
        Task::Decode { .. } => bail!("a prefill worker does not decode"),
    })
}

fn prefill(worker: &Worker<'_>, prompt: &Prompt) -> Result<(Prefilled, HoldReport)> {
    let mut since_ns = machine_ns();
    let mut done = Prefilled { request: prompt.request, ..Prefilled::default() };
    let mut buffer = worker.buffer(prompt)?;
    let (hashes, found, restored) = worker.look_up(prompt)?;
    done.from_drives = restored;
    done.lookup_ns = worker.lap(&mut since_ns);

    let hits = worker.read(&found.blocks(), &mut buffer, &mut done.late)?;
    done.hits = hits as u64;
    done.read_ns = worker.lap(&mut since_ns);

    compute(worker, prompt, &hashes, hits, &mut buffer, since_ns, &mut done.late)?;
    done.compute_ns = worker.lap(&mut since_ns);

    // What others have written meanwhile is held before the rest is published.
    let there = hold(worker, &hashes)?;
    let first = there.blocks().len().max(hits);
    write(worker, &hashes, first, &buffer, &mut done)?;
    let hold = hold(worker, &hashes)?;
    // Only now: no block leaves in between.
    worker.session.release(there);
    worker.session.release(found);
    let kept = hashes.len() as u64 - done.refused;
    done.not_held = kept.saturating_sub(hold.blocks().len() as u64);
    done.write_ns = worker.lap(&mut since_ns);
    done.cpu_ns = worker.cpu_ns.take();
    Ok((done, hold))
}

/// Holds what the pool has of a prompt.
fn hold(worker: &Worker<'_>, hashes: &[BlockHash]) -> Result<HoldReport> {
    let hold = || {
        let found = worker.session.lookup(hashes)?;
        worker.session.hold(found.blocks())
    };
    Ok(worker.call(hold)?)
}

/// Takes as long as computing does. Meanwhile what was read is checked, and the rest is made.
fn compute(
    worker: &Worker<'_>,
    prompt: &Prompt,
    hashes: &[BlockHash],
    hits: usize,
    buffer: &mut [u8],
    since_ns: u64,
    late: &mut Late,
) -> Result<()> {
    let found = worker.tokens_of(prompt, hits);
    let takes_ns = worker.profile.prefill_ns(prompt.tokens, found);
    let due_ns = since_ns + worker.speed.on_machine(takes_ns);
    worker.check(&hashes[..hits], buffer)?;
    let missing = buffer.chunks_exact_mut(worker.block_bytes).zip(hashes).skip(hits);
    for (part, hash) in missing {
        block_bytes::fill(hash, part);
    }
    let now_ns = machine_ns();
    if now_ns > due_ns {
        late.prompts += 1;
        late.prompts_ns += worker.speed.in_bench(now_ns - due_ns);
    } else {
        sleep_until(due_ns);
    }
    Ok(())
}

/// Publishes the blocks behind the first `first`.
fn write(
    worker: &Worker<'_>,
    hashes: &[BlockHash],
    first: usize,
    buffer: &[u8],
    done: &mut Prefilled,
) -> Result<()> {
    if first == hashes.len() {
        return Ok(());
    }
    let parts = buffer.chunks_exact(worker.block_bytes).skip(first).map(|part| [part]);
    let depth = u32::try_from(first)?;
    let blocks = NewBlock::chain(depth, hashes[first..].iter().copied(), parts);
    let bytes = (blocks.len() * worker.block_bytes) as u64;
    let has_room = has_free_chunk(&worker.pool.cache());
    let session = if has_room { &worker.session } else { &worker.once_full };
    let publish = || Ok(worker.call(|| session.publish(&blocks))?);
    let report = worker.link.pass(bytes, &mut done.late, publish)?;
    done.published = report.published() as u64;
    done.refused = (blocks.len() - report.available()) as u64;
    done.why_refused = report.outcomes().iter().find_map(PublishOutcome::why_missing);
    Ok(())
}
