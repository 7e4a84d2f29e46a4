//! Serving the conversations: prefill on one node, decode on another, every answer streamed.

use anyhow::{Context, Result, bail};
use cxl_shm::clock::SystemClock;
use demo::workload::{Dialogue, Plan, Request};
use demo::{Tokenizer, chat::Conversation};
use serde::Serialize;

use super::protocol::{Event, Moved, Task};
use super::rack::Worker;
use crate::output::{say, show};

/// One request as it was served.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Served {
    /// Which conversation.
    pub(super) conversation: usize,
    /// Which turn of it.
    pub(super) turn: usize,
    /// Name of the document it is about.
    pub(super) document: String,
    /// Tokens of the prompt.
    pub(super) prompt_tokens: usize,
    /// Tokens of the prompt that the prefill worker found in the pool.
    pub(super) cached_tokens: usize,
    /// Of those, tokens whose blocks an agent brought back from a drive.
    pub(super) drive_tokens: usize,
    /// Tokens of the answer.
    pub(super) answer: Vec<u32>,
    /// Time to first token without a pool.
    pub(super) ttft_cold_ms: f64,
    /// Time to first token through the pool: prefill, hand-over and first step of decode.
    pub(super) ttft_pool_ms: f64,
    /// Bytes that the two workers published.
    pub(super) kv_bytes_published: u64,
    /// Bytes that the two workers fetched.
    pub(super) kv_bytes_fetched: u64,
    /// The prompt, for the proof.
    #[serde(skip)]
    pub(super) prompt: Vec<u32>,
    #[serde(skip)]
    pub(super) moved: Moved,
}

/// Workers of a rack: prefill and decode, on different nodes.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) prefill: Vec<Worker>,
    pub(super) decode: Vec<Worker>,
}

impl Fleet {
    /// The workers that serve request `index`: a conversation's next turn comes to other hosts
    /// than its last one, and decode is on another node than prefill.
    pub(super) fn pair(&mut self, index: usize) -> (&mut Worker, &mut Worker) {
        let prefill = index % self.prefill.len();
        let decode = (index + 1) % self.decode.len();
        (&mut self.prefill[prefill], &mut self.decode[decode])
    }

    /// Its processes.
    pub(super) fn in_words(&self) -> String {
        let pids = |workers: &[Worker]| in_words(workers.iter().map(Worker::pid));
        format!(
            "prefill workers (pids {}), decode workers (pids {}) on {} nodes",
            pids(&self.prefill),
            pids(&self.decode),
            self.prefill.len()
        )
    }
}

/// Process ids as people read them.
pub(super) fn in_words(pids: impl IntoIterator<Item = u32>) -> String {
    let pids: Vec<_> = pids.into_iter().map(|pid| pid.to_string()).collect();
    pids.join(" and ")
}

/// An answer and how it came.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) tokens: Vec<u32>,
    pub(super) ttft_ms: f64,
    pub(super) moved: Moved,
}

/// How requests are served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service<'s> {
    pub(super) tokenizer: &'s Tokenizer,
    /// Longest answer.
    pub(super) max_tokens: usize,
    /// Whether answers are printed.
    pub(super) quiet: bool,
    /// Whether there are drives behind the pool.
    pub(super) drives: bool,
}

/// Serves every request of the plan in turn, and calls `before` with its number first. Answers are
/// printed as they stream in.
pub(super) fn serve(
    fleet: &mut Fleet,
    plan: &Plan,
    Service { tokenizer, max_tokens, quiet, drives }: Service<'_>,
    mut before: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Served>> {
    let mut conversations = plan
        .dialogues
        .iter()
        .map(|dialogue| Conversation::new(tokenizer, &dialogue.system))
        .collect::<Result<Vec<_>, _>>()?;
    let mut served = Vec::new();
    for (index, Request { dialogue, turn }) in plan.requests().into_iter().enumerate() {
        before(index)?;
        let Dialogue { document, questions, .. } = &plan.dialogues[dialogue];
        let question = &questions[turn];
        let conversation = &mut conversations[dialogue];
        let prompt = conversation.ask(question)?.to_vec();
        if !quiet {
            say!("\n[{}] {document}, turn {}: {question}", index + 1, turn + 1);
        }
        let (prefill, decode) = fleet.pair(index);
        let (prefilled, answer) = through_pool(prefill, decode, &prompt, max_tokens, quiet)
            .with_context(|| format!("request {}", index + 1))?;
        let Moved { cached_tokens, restored_tokens: drive_tokens, .. } = prefilled;
        if !quiet {
            let from = if drives {
                format!(
                    "{} from the pool, {drive_tokens} from drives",
                    cached_tokens - drive_tokens
                )
            } else {
                format!("{cached_tokens} from the pool")
            };
            let (prompt, ttft_ms) = (prompt.len(), answer.ttft_ms);
            say!("    of {prompt} prompt tokens {from}; first token after {ttft_ms:.0} ms");
        }
        conversation.answer(&answer.tokens)?;
        served.push(Served {
            conversation: dialogue,
            turn,
            document: document.clone(),
            prompt_tokens: prompt.len(),
            cached_tokens,
            drive_tokens,
            ttft_cold_ms: 0.0,
            ttft_pool_ms: answer.ttft_ms,
            kv_bytes_published: answer.moved.published_bytes,
            kv_bytes_fetched: answer.moved.fetched_bytes,
            answer: answer.tokens,
            prompt,
            moved: answer.moved,
        });
    }
    Ok(served)
}

/// Serves one prompt by a prefill and a decode worker; also what prefill moved.
pub(super) fn through_pool(
    prefill: &mut Worker,
    decode: &mut Worker,
    prompt: &[u32],
    max_tokens: usize,
    quiet: bool,
) -> Result<(Moved, Answer)> {
    let clock = SystemClock::start();
    prefill.give(&Task::Prefill { tokens: prompt.to_vec() })?;
    let Event::Prefilled { moved } = prefill.next()? else {
        bail!("the prefill worker answered out of turn");
    };
    let task = Task::Decode { tokens: prompt.to_vec(), max_tokens };
    let mut answer = generate(decode, &task, &clock, quiet)?;
    answer.moved += moved;
    Ok((moved, answer))
}

/// Has a worker generate an answer; the time runs from the start of `clock`.
pub(super) fn generate(
    worker: &mut Worker,
    task: &Task,
    clock: &SystemClock,
    quiet: bool,
) -> Result<Answer> {
    worker.give(task)?;
    let mut ttft_ms = None;
    loop {
        match worker.next()? {
            Event::Text { text } => {
                let now_us = u32::try_from(clock.now_us()).unwrap_or(u32::MAX);
                ttft_ms.get_or_insert(f64::from(now_us) / 1000.0);
                if !quiet {
                    show!("{text}");
                }
            }
            Event::Answered { tokens, moved } => {
                if !quiet {
                    say!("");
                }
                let ttft_ms = ttft_ms.context("an answer without a token")?;
                return Ok(Answer { tokens, ttft_ms, moved });
            }
            other => bail!("a worker said {other:?} while it was to generate"),
        }
    }
}
