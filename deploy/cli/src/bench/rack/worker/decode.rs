//! A decode worker: reads the KV of one prompt after the other, and beside that gives each request of
//! its batch a token in each iteration.

use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context as _, Result, bail};
use rackline_serving::Profile;

use super::super::protocol::{Event, Fetched, Prompt, Task};
use super::super::time::{Speed, machine_ns, sleep_until};
use super::Worker;
use crate::rack::{carry_out_queued_tasks, say};

/// A request whose KV is there.
#[derive(Clone, Copy, Debug)]
struct Running {
    request: usize,
    prompt_tokens: u64,
    output_tokens: u64,
    /// Tokens of its answer.
    tokens: u64,
    /// What the first iteration computes of its prompt.
    computing_ns: u64,
    /// When its KV was there.
    ready_ns: u64,
}

pub(super) fn serve(worker: &Worker<'_>) -> Result<()> {
    let (ready, joining) = channel();
    let (profile, speed) = (worker.profile.clone(), worker.speed);
    let thread = std::thread::Builder::new().name("batch".to_owned());
    let batch = thread.spawn(move || decode(&profile, speed, &joining));
    let batch = batch.context("cannot start a thread")?;
    let read = carry_out_queued_tasks(|task| match task {
        Task::Decode { prompt, output_tokens, told_ns } => {
            read(worker, &prompt, output_tokens, told_ns, &ready)
        }
        Task::Prefill(_) | Task::Release { .. } => bail!("a decode worker only decodes"),
    });
    drop(ready);
    match batch.join() {
        Ok(decoded) => decoded.and(read),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn read(
    worker: &Worker<'_>,
    prompt: &Prompt,
    output_tokens: u64,
    told_ns: u64,
    ready: &Sender<Running>,
) -> Result<()> {
    let mut since_ns = told_ns;
    let mut done = Fetched { request: prompt.request, ..Fetched::default() };
    let mut buffer = worker.buffer(prompt)?;
    let (hashes, found, restored) = worker.look_up(prompt)?;
    done.from_drives = restored;
    done.lookup_ns = worker.lap(&mut since_ns);
    let valid = worker.read(&found.blocks(), &mut buffer, &mut done.late)?;
    worker.session.release(found);
    done.lost = (hashes.len() - valid) as u64;
    done.read_ns = worker.lap(&mut since_ns);
    done.cpu_ns = worker.cpu_ns.take();
    let tokens = worker.tokens_of(prompt, valid);
    // The last token is computed by the iteration.
    if tokens + 1 < prompt.tokens {
        done.compute_ns = worker.profile.prefill_ns(prompt.tokens, tokens);
    }
    let computing_ns = done.compute_ns;
    say(&Event::Fetched(done))?;
    let running = Running {
        request: prompt.request,
        prompt_tokens: prompt.tokens,
        output_tokens,
        tokens: 0,
        computing_ns,
        ready_ns: since_ns,
    };
    ready.send(running).ok().context("the batch has ended")?;
    // An engine checks nothing here, so no request waits for it.
    worker.check(&hashes[..valid], &buffer)
}

/// Iterates until no more requests come and all are answered.
fn decode(profile: &Profile, speed: Speed, joining: &Receiver<Running>) -> Result<()> {
    let mut batch: Vec<Running> = Vec::new();
    let mut now_ns = machine_ns();
    loop {
        if batch.is_empty() {
            let Ok(first) = joining.recv() else { return Ok(()) };
            batch.push(first);
            now_ns = machine_ns();
        }
        batch.extend(joining.try_iter());
        let computing = batch.iter().filter(|it| it.tokens == 0).map(|it| it.computing_ns);
        let computing_ns: u64 = computing.sum();
        let context = batch.iter().map(|it| it.prompt_tokens + it.tokens).sum();
        // From when the last iteration was due: what a sleep is late adds up otherwise.
        let takes_ns = computing_ns + profile.iteration_ns(batch.len(), context);
        now_ns += speed.on_machine(takes_ns);
        sleep_until(now_ns);
        for running in &mut batch {
            running.tokens += 1;
            if running.tokens == 1 {
                let waited_ns = speed.in_bench(now_ns.saturating_sub(running.ready_ns));
                let waited_ns = waited_ns.saturating_sub(running.computing_ns);
                say(&Event::FirstToken { request: running.request, waited_ns })?;
            }
            if running.tokens == running.output_tokens {
                say(&Event::Answered { request: running.request })?;
            }
        }
        batch.retain(|running| running.tokens < running.output_tokens);
    }
}
