//! A worker process of the demonstration: the small engine, with or without a pool.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use demo::{ForwardError, Gguf, Kernels, KvCache, Logits, Model, Tokenizer, generate};
use kv_cache::Wanted;
use rackline::{
    BlockHash, ChainHasher, Forwards, LocalCache, NewBlock, Pool, RestoreOptions, Session,
    SessionOptions,
};

use super::offload::Offloading;
use super::protocol::{Event, Moved, Task};
use crate::rack::{carry_out_tasks, say};

/// A worker of the demonstration. Started by it; takes tasks on its standard input.
#[derive(Args, Debug)]
pub(crate) struct WorkerOptions {
    /// The model file.
    #[arg(long)]
    model: PathBuf,
    /// The region; without one the worker knows no pool.
    #[arg(long, requires = "node")]
    region: Option<PathBuf>,
    /// The node.
    #[arg(long, requires = "region")]
    node: Option<u16>,
    /// How long a lookup waits for blocks on drives; 0 without drives.
    #[arg(long, default_value_t = 0)]
    restore_wait_ms: u64,
}

/// How long a publish waits for a chunk. Serving continues without the pool after that.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn run_worker(options: &WorkerOptions) -> Result<()> {
    let mut gguf = Gguf::open(&options.model)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let kernels = Kernels::of_this_cpu();
    let model = Model::load(&mut gguf, kernels)?;
    let hasher = ChainHasher::new(b"", model.kv_geometry().block_tokens);
    let engine = Engine { tokenizer, model, kernels, hasher };
    match (&options.region, options.node) {
        (Some(region), Some(node)) => {
            let pool = Pool::attach(region, node)?;
            let (cache, session) = (pool.cache(), pool.session(engine.session_options())?);
            let restore = RestoreOptions::new(Duration::from_millis(options.restore_wait_ms));
            let forwards = RefCell::new(session.report_forwards());
            let evicted_blocks = Cell::new(0);
            let shared = Shared { region, node, cache, session, restore, forwards, evicted_blocks };
            engine.serve(Some(&shared))
        }
        _ => engine.serve(None),
    }
}

/// The pool as a worker uses it.
pub(super) struct Shared<'p> {
    pub(super) region: &'p Path,
    pub(super) node: u16,
    cache: LocalCache<'p>,
    session: Session<'p>,
    restore: RestoreOptions,
    /// Tells the agent of the host when this worker computes; `None` without drives.
    forwards: RefCell<Option<Forwards>>,
    /// Blocks evicted that were reported.
    evicted_blocks: Cell<u64>,
}

impl Shared<'_> {
    /// Blocks evicted since the last call, in the background too.
    fn newly_evicted(&self) -> u64 {
        let evicted = self.session.metrics().evicted_blocks;
        evicted - self.evicted_blocks.replace(evicted)
    }
}

/// The small engine.
pub(super) struct Engine {
    pub(super) tokenizer: Tokenizer,
    pub(super) model: Model,
    kernels: Kernels,
    pub(super) hasher: ChainHasher,
}

impl Engine {
    pub(super) fn session_options(&self) -> SessionOptions {
        let layout_version = 1;
        let name = "SmolLM2-135M-Instruct";
        let pool = self.model.kv_geometry().pool();
        let model = rackline::Model {
            // Kernels round differently: workers on unlike CPUs must not share blocks.
            dtype: match self.kernels {
                Kernels::Integer => "f16, computed in 8 bits",
                Kernels::Float => "f16, computed in f32",
            },
            ..pool.model(name, demo::model_file::SHA256, layout_version)
        };
        SessionOptions::new(model, pool.rank_block_bytes()).with_chunk_timeout(CHUNK_TIMEOUT)
    }

    fn block_bytes(&self) -> usize {
        self.model.kv_geometry().block_bytes()
    }

    /// Takes tasks until the standard input ends.
    fn serve(&self, shared: Option<&Shared<'_>>) -> Result<()> {
        say(&Event::Ready)?;
        carry_out_tasks(|task| self.carry_out(task, shared))
    }

    fn carry_out(&self, task: Task, shared: Option<&Shared<'_>>) -> Result<()> {
        match (task, shared) {
            (Task::Prefill { tokens }, Some(shared)) => {
                let mut moved = self.prefill(&tokens, shared)?;
                moved.evicted_blocks = shared.newly_evicted();
                say(&Event::Prefilled { moved })
            }
            (Task::Decode { tokens, max_tokens }, Some(shared)) => {
                let (tokens, mut moved) = self.answer(&tokens, max_tokens, Some(shared))?;
                moved.evicted_blocks = shared.newly_evicted();
                say(&Event::Answered { tokens, moved })
            }
            (Task::DecodeOffloaded { prompts, max_tokens, memory_percent }, Some(shared)) => {
                let offloading =
                    Offloading::begin(self, shared, prompts, max_tokens, memory_percent)?;
                let (answers, figures) = offloading.run()?;
                say(&Event::Offloaded { answers, figures })
            }
            (Task::Alone { tokens, max_tokens }, None) => {
                let (tokens, moved) = self.answer(&tokens, max_tokens, None)?;
                say(&Event::Answered { tokens, moved })
            }
            (Task::Locate { tokens, block }, Some(shared)) => self.locate(&tokens, block, shared),
            (task, shared) => {
                let with = if shared.is_some() { "with" } else { "without" };
                bail!("a worker {with} a pool cannot carry out {task:?}")
            }
        }
    }

    /// Makes the pool hold all whole blocks of a prompt. What is left of the prompt after the last
    /// whole block is for decode to compute.
    pub(super) fn prefill(&self, tokens: &[u32], shared: &Shared<'_>) -> Result<Moved> {
        let whole =
            &tokens[..tokens.len() / self.hasher.block_tokens() * self.hasher.block_tokens()];
        let hashes = self.hasher.chain(whole);
        let mut kv = self.model.new_cache(whole.len());
        let mut moved = self.fetch(&hashes, &mut kv, shared)?;
        if kv.tokens() < whole.len() {
            let cached = kv.tokens();
            self.forward(&whole[cached..], &mut kv, Some(shared))?;
            moved.computed_tokens = whole.len() - cached;
        }
        self.publish(&hashes, &kv, &mut moved, shared)?;
        Ok(moved)
    }

    /// Answers a prompt, taking what the pool has of it, and publishes what the answer adds.
    fn answer(
        &self,
        tokens: &[u32],
        max_tokens: usize,
        shared: Option<&Shared<'_>>,
    ) -> Result<(Vec<u32>, Moved)> {
        let mut kv = self.model.new_cache(tokens.len() + max_tokens);
        // The scores after the last token come only from computing it.
        let usable = (tokens.len().saturating_sub(1)) / self.hasher.block_tokens();
        let mut moved = match shared {
            Some(shared) => {
                let hashes = self.hasher.chain(tokens);
                self.fetch(&hashes[..usable], &mut kv, shared)?
            }
            None => Moved::default(),
        };
        let cached = kv.tokens();
        moved.computed_tokens = tokens.len() - cached;
        let logits = self.forward(&tokens[cached..], &mut kv, shared)?;
        let mut failed = None;
        let mut on_text = |text: &str| match say(&Event::Text { text: text.to_owned() }) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        };
        let answer = generate::answer(
            &self.tokenizer,
            logits,
            &mut kv,
            max_tokens,
            &mut |token, kv| self.forward(&[token], kv, shared),
            &mut on_text,
        )?;
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(shared) = shared {
            let mut all = tokens.to_vec();
            all.extend_from_slice(&answer.tokens);
            all.truncate(kv.tokens());
            self.publish(&self.hasher.chain(&all), &kv, &mut moved, shared)?;
        }
        Ok((answer.tokens, moved))
    }

    /// Computes `tokens` behind those that `kv` has. The agent of the host is told.
    fn forward(
        &self,
        tokens: &[u32],
        kv: &mut KvCache,
        shared: Option<&Shared<'_>>,
    ) -> Result<Logits, ForwardError> {
        let mut forwards = shared.map(|shared| shared.forwards.borrow_mut());
        let forwards = forwards.as_mut().and_then(|forwards| forwards.as_mut());
        let Some(forwards) = forwards else { return self.model.forward(tokens, kv.tokens(), kv) };
        forwards.begin(tokens.len() as u64, kv.tokens() as u64);
        let logits = self.model.forward(tokens, kv.tokens(), kv);
        forwards.end();
        logits
    }

    /// Imports the longest prefix of `hashes` that the pool and drives have into `kv`, which is empty.
    fn fetch(
        &self,
        hashes: &[BlockHash],
        kv: &mut KvCache,
        Shared { session, restore, .. }: &Shared<'_>,
    ) -> Result<Moved> {
        let found = session.lookup_and_restore(hashes, *restore)?;
        if let Some(stop) = found.stop() {
            tracing::warn!(reason = stop.label(), "a block did not come back from a drive: {stop}");
        }
        let blocks = found.held().blocks();
        let before = session.metrics();
        let mut payloads = vec![vec![0; self.block_bytes()]; blocks.len()];
        let parts = payloads.iter_mut().map(|payload| vec![payload.as_mut_slice()]).collect();
        let report = session.fetch(&blocks, parts)?;
        let valid = report.valid_blocks();
        for (block, payload) in payloads.iter().take(valid).enumerate() {
            kv.import_block(block, payload)?;
        }
        let after = session.metrics();
        let corrupt = |metrics: &rackline::Metrics| -> u64 {
            metrics.all_misses().filter(|(miss, _)| miss.is_damage()).map(|(_, count)| count).sum()
        };
        Ok(Moved {
            cached_tokens: kv.tokens(),
            restored_tokens: (found.restored() * self.hasher.block_tokens()).min(kv.tokens()),
            fetched_bytes: (valid * self.block_bytes()) as u64,
            corrupt_blocks: corrupt(&after) - corrupt(&before),
            ..Moved::default()
        })
    }

    /// Publishes the blocks that the pool does not have yet.
    fn publish(
        &self,
        hashes: &[BlockHash],
        kv: &KvCache,
        moved: &mut Moved,
        Shared { session, .. }: &Shared<'_>,
    ) -> Result<()> {
        let first = session.lookup(hashes)?.blocks().len();
        let payloads = (first..hashes.len())
            .map(|block| {
                let mut payload = vec![0; self.block_bytes()];
                kv.export_block(block, &mut payload).map(|()| payload)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let parts = payloads.iter().map(|payload| [payload.as_slice()]);
        let blocks = NewBlock::chain(u32::try_from(first)?, hashes[first..].iter().copied(), parts);
        let report = session.publish(&blocks)?;
        moved.published_bytes += (report.published() * self.block_bytes()) as u64;
        moved.refused_blocks += (blocks.len() - report.available()) as u64;
        Ok(())
    }

    fn locate(&self, tokens: &[u32], block: usize, shared: &Shared<'_>) -> Result<()> {
        let hashes = self.hasher.chain(tokens);
        let found = shared.session.lookup(&hashes)?;
        let matched = found.blocks().get(block).context("the pool does not have the block")?;
        let options = shared.session.options();
        let wanted =
            Wanted { handle: matched.handle, key: matched.key, bytes: options.block_bytes() };
        let ticket = shared.cache.open(&[wanted]).into_iter().next().context("no answer")??;
        let payload = ticket.payload();
        say(&Event::Located { offset: payload.offset(), bytes: payload.bytes() })
    }
}
