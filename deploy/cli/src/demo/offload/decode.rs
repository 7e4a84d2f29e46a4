//! A worker's part: decoding a batch while only a part of its KV is in memory.
//!
//! The controller places layers, the plan goes through the bytes that ranks would broadcast, and
//! the executor streams what is offloaded. This has one rank: the small model runs on one.
//!
//! The memory of the worker has a limit. What the planner does not count is taken off before: the
//! copy of a layer that executes, and the tokens behind the last whole block of a prompt, which stay
//! in memory in all layers. Two things are not counted. Prompts are computed as a prefill worker
//! would, and a prompt that begins to decode is read in pieces of a few whole blocks.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use cxl_shm::clock::SystemClock;
use demo::{BatchSteps, ForwardError, KvCache, KvGeometry, Sequence};
use kv_cache::placement::{
    Action, Controller, Decision, Job, Lead, Measured, MemoryModel, Model, Move, Placement, Policy,
    Rank,
};
use rackline::dma::Layers;
use rackline::executor::{Executor, ExecutorError};
use rackline::{AsyncOptions, AsyncPool, AsyncSession};

use super::super::protocol::{Event, Offloaded, Placed, Planned};
use super::super::worker::{Engine, Shared};
use crate::rack::say;

/// How long a search for a plan may take: a small part of an iteration. The best plan until then is
/// installed.
const PLAN_NS: u64 = 5_000_000;
/// What is expected of this machine until the first iterations were measured.
const EXPECTED: Measured = Measured { layer_ns: 1_000_000, block_ns: Some(5_000) };

/// One prompt, and what it has become.
#[derive(Debug)]
struct Request {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    /// Whole blocks that the executor has. Later tokens are in `kv` alone.
    blocks: usize,
    /// `None` before it runs first, after a block was lost, and when it is answered.
    kv: Option<KvCache>,
    /// Tokens whose keys and values are there.
    computed: usize,
    /// The tokens to compute next.
    next: Vec<u32>,
    answered: bool,
}

/// Blocks of a prompt that may be in the pool alone. The scores after the last token come only from
/// computing it.
fn whole_blocks(prompt: &[u32], geometry: &KvGeometry) -> usize {
    prompt.len().saturating_sub(1) / geometry.block_tokens
}

/// How large a request gets, in blocks of one layer.
#[derive(Clone, Copy, Debug)]
struct Size {
    layers: u64,
    /// Those that can be offloaded.
    whole: u64,
    /// Those behind them, with the answer.
    rest: u64,
}

impl Size {
    fn of(prompt: &[u32], max_tokens: usize, geometry: &KvGeometry) -> Self {
        let whole = whole_blocks(prompt, geometry);
        let all = (prompt.len() + max_tokens).div_ceil(geometry.block_tokens);
        let (whole, rest) = (whole as u64, (all - whole) as u64);
        Self { layers: geometry.layers as u64, whole, rest }
    }

    /// Blocks of all layers.
    const fn of_all_layers(&self) -> u64 {
        (self.whole + self.rest) * self.layers
    }

    /// Blocks that are in memory and that the planner does not count, at most.
    const fn uncounted(&self) -> u64 {
        self.whole + self.rest * self.layers
    }
}

/// A batch that is decoded with offloaded layers.
pub(in crate::demo) struct Offloading<'e> {
    engine: &'e Engine,
    shared: &'e Shared<'e>,
    session: AsyncSession,
    executor: Executor,
    lead: Lead,
    rank: Rank,
    requests: BTreeMap<u64, Request>,
    figures: Offloaded,
    max_tokens: usize,
}

impl<'e> Offloading<'e> {
    /// Publishes what the pool has not of the prompts, and tells the controller of them.
    pub(in crate::demo) fn begin(
        engine: &'e Engine,
        shared: &'e Shared<'e>,
        prompts: Vec<Vec<u32>>,
        max_tokens: usize,
        memory_percent: u64,
    ) -> Result<Self> {
        let geometry = *engine.model.kv_geometry();
        let pool = AsyncPool::attach(shared.region, shared.node, &AsyncOptions::new())?;
        let session = pool.session(engine.session_options())?;
        let layer_bytes = (0..geometry.layers).map(|_| geometry.layer_bytes() as u64);
        let executor = Executor::new(session.clone(), Layers::new(layer_bytes))?;

        let layers = u16::try_from(geometry.layers)?;
        let sizes: Vec<_> =
            prompts.iter().map(|prompt| Size::of(prompt, max_tokens, &geometry)).collect();
        let limit_blocks =
            sizes.iter().map(Size::of_all_layers).sum::<u64>() * memory_percent / 100;
        let uncounted: u64 = sizes.iter().map(Size::uncounted).sum();
        let memory_blocks = limit_blocks.saturating_sub(uncounted);
        let policy = Policy {
            model: Model { memory: MemoryModel::Buffers, ..Model::default() },
            ..Policy::new(layers, memory_blocks)
        };
        let controller = Controller::new(policy, EXPECTED);
        let figures = Offloaded {
            limit_kv_bytes: limit_blocks * geometry.layer_bytes() as u64,
            ..Offloaded::default()
        };
        let mut offloading = Self {
            engine,
            shared,
            session,
            executor,
            lead: Lead::new(controller, layers),
            rank: Rank::new(layers),
            requests: BTreeMap::new(),
            figures,
            max_tokens,
        };
        for (id, prompt) in (0..).zip(prompts) {
            engine.prefill(&prompt, shared)?;
            let tokens = prompt.len() as u64;
            offloading.lead.arrive(Job { id, tokens, slo_ns: None });
            let blocks = whole_blocks(&prompt, &geometry);
            let (answer, next) = (Vec::new(), Vec::new());
            let request =
                Request { prompt, answer, blocks, kv: None, computed: 0, next, answered: false };
            offloading.requests.insert(id, request);
        }
        Ok(offloading)
    }

    /// Decodes until all prompts are answered.
    pub(in crate::demo) fn run(mut self) -> Result<(Vec<Vec<u32>>, Offloaded)> {
        let clock = SystemClock::start();
        while self.requests.values().any(|request| !request.answered) {
            self.plan()?;
            let batch = self.rank.batch();
            for (id, placement) in &batch {
                self.admit(*id, placement)?;
            }
            match self.iterate(&batch) {
                Ok(measured) => self.lead.stepped(clock.now_ns(), &[measured]),
                Err(ForwardError::Step { source, .. }) => {
                    let error = source.downcast::<ExecutorError>();
                    let error = error.map_err(|other| anyhow::anyhow!(other))?;
                    self.lose(&batch, *error)?;
                }
                Err(error) => return Err(error.into()),
            }
            let tokens = self.requests.values().map(|request| request.answer.len()).sum();
            say(&Event::Stepped { tokens })?;
        }
        let token_bytes = self.geometry().pool().token_bytes();
        let held = |request: &Request| (request.prompt.len() + request.answer.len()) as u64;
        self.figures.whole_kv_bytes = self.requests.values().map(held).sum::<u64>() * token_bytes;
        Ok((self.requests.into_values().map(|request| request.answer).collect(), self.figures))
    }

    fn geometry(&self) -> KvGeometry {
        *self.engine.model.kv_geometry()
    }

    /// Asks for a plan, and installs it when it is another one.
    fn plan(&mut self) -> Result<()> {
        let (Decision { trigger, actions }, message) = {
            let clock = SystemClock::start();
            self.lead.decide(&mut || clock.now_ns() < PLAN_NS)?
        };
        for action in actions {
            if let Action::Reject { id, reason } = action {
                bail!(
                    "prompt {} does not fit into a memory for that part of the KV ({reason}): raise \
                     --offload",
                    id + 1
                );
            }
        }
        let Some(message) = message else { return Ok(()) };
        for one in self.rank.install(&message.encode())? {
            self.carry_out(one)?;
        }
        self.figures.plans += 1;
        let placed = self.rank.batch().into_iter().map(|(prompt, placement)| Placed {
            prompt,
            offloaded: placement.offloaded().to_vec(),
        });
        let placed = placed.collect();
        let trigger = trigger.map_or("none".to_owned(), |trigger| format!("{trigger:?}"));
        say(&Event::Planned(Planned { version: self.rank.version(), trigger, placed }))
    }

    /// Moves a layer of a request that runs. Others are placed when they begin.
    fn carry_out(&mut self, one: Move) -> Result<()> {
        let (Move::Leave { request: id, layer } | Move::Come { request: id, layer }) = one;
        let Some(request) = self.requests.get_mut(&id) else { return Ok(()) };
        let Some(kv) = &mut request.kv else { return Ok(()) };
        let index = usize::from(layer) - 1;
        match one {
            Move::Leave { .. } => kv.take_out(index, request.blocks)?,
            Move::Come { .. } => match self.executor.bring(id, layer) {
                Ok(parts) => {
                    kv.take_in(index, &parts)?;
                    let parts_bytes: usize = parts.iter().map(Vec::len).sum();
                    self.note_memory(parts_bytes);
                }
                Err(error) => self.lose(&[], error)?,
            },
        }
        Ok(())
    }

    /// Notes how much memory is in use between two iterations.
    fn note_memory(&mut self, parts_bytes: usize) {
        let held = self.requests.values().filter_map(|request| request.kv.as_ref());
        let held: usize = held.map(KvCache::held_bytes).sum();
        let bytes = (held + parts_bytes + self.executor.buffer_bytes()) as u64;
        self.figures.peak_kv_bytes = self.figures.peak_kv_bytes.max(bytes);
    }

    /// Holds the blocks of a request that begins, and reads the layers that are to stay.
    fn admit(&mut self, id: u64, placement: &Placement) -> Result<()> {
        let request = self.requests.get_mut(&id).context("a plan names an unknown request")?;
        if request.kv.is_some() {
            return Ok(());
        }
        let hashes = self.engine.hasher.chain(&request.prompt);
        let layers = self.engine.model.kv_geometry().layers;
        let is_out =
            |layer: usize| placement.offloaded().iter().any(|out| usize::from(*out) == layer + 1);
        let mut published_again = false;
        let kv = loop {
            let wanted = hashes[..request.blocks].to_vec();
            let held =
                self.session.lookup_and_hold(wanted).map_err(|error| error.kind)?.wait()??;
            let found = held.blocks().len();
            let (lost_at, reason) = if found < request.blocks {
                (found, held.stop().map_or("not_in_pool", |stop| stop.label()).to_owned())
            } else {
                let mut kv = self.engine.model.new_cache(request.prompt.len() + self.max_tokens);
                let mut refused = None;
                let mut on_block = |block: usize, parts: &[Vec<u8>]| {
                    let staying = parts.iter().enumerate().filter(|(layer, _)| !is_out(*layer));
                    for (layer, part) in staying {
                        refused = kv.import_layer(block, layer, part).err().or(refused.take());
                    }
                };
                match self.executor.admit(id, held, &mut on_block) {
                    Ok(()) => {
                        refused.map_or(Ok(()), Err)?;
                        break kv;
                    }
                    Err(ExecutorError::Block { block, stop, .. }) => {
                        (block, stop.label().to_owned())
                    }
                    Err(ExecutorError::Hold { block, reason, .. }) => {
                        (block, reason.label().to_owned())
                    }
                    Err(error) => return Err(error.into()),
                }
            };
            *self.figures.lost_blocks.entry(reason).or_default() += 1;
            if published_again {
                // The pool does not keep them: their tokens are computed, and stay in memory.
                self.figures.unpooled_blocks += (request.blocks - lost_at) as u64;
                request.blocks = lost_at;
            } else {
                self.engine.prefill(&request.prompt, self.shared)?;
                published_again = true;
            }
        };
        let kv = request.kv.insert(kv);
        for layer in (0..layers).filter(|layer| is_out(*layer)) {
            kv.leave_out(layer, request.blocks)?;
        }
        request.computed = request.blocks * self.engine.hasher.block_tokens();
        request.next =
            request.prompt.iter().chain(&request.answer).skip(request.computed).copied().collect();
        Ok(())
    }

    /// One token of each request of the batch.
    fn iterate(&mut self, batch: &[(u64, Placement)]) -> Result<Measured, ForwardError> {
        let failed =
            |layer, source: ExecutorError| ForwardError::Step { layer, source: source.into() };
        self.executor.begin(batch).map_err(|error| failed(0, error))?;
        let is_running = |id: &u64| batch.iter().any(|(running, _)| running == id);
        let (mut running, waiting): (Vec<_>, Vec<_>) =
            self.requests.iter_mut().partition(|(id, _)| is_running(id));
        let waiting = waiting.iter().filter_map(|(_, request)| request.kv.as_ref());
        let waiting_bytes = waiting.map(KvCache::held_bytes).sum();
        let blocks = running.iter().map(|(_, request)| request.blocks).collect();
        let mut sequences: Vec<_> = running
            .iter_mut()
            .filter_map(|(_, request)| {
                let Request { next, computed, kv, .. } = &mut **request;
                Some(Sequence { tokens: next, start_pos: *computed, kv: kv.as_mut()? })
            })
            .collect();
        let mut steps =
            Streams { executor: &mut self.executor, batch, blocks, waiting_bytes, peak_bytes: 0 };
        let logits = self.engine.model.forward_batch(&mut sequences, &mut steps)?;
        self.figures.peak_kv_bytes = self.figures.peak_kv_bytes.max(steps.peak_bytes as u64);
        let end = self.engine.tokenizer.end_of_text();
        let mut answered = Vec::new();
        for ((id, request), logits) in running.into_iter().zip(logits) {
            request.computed += request.next.len();
            let token = logits.best();
            if token != end {
                request.answer.push(token);
                request.next = vec![token];
            }
            if token == end || request.answer.len() == self.max_tokens {
                request.answered = true;
                request.kv = None;
                answered.push(*id);
            }
        }
        let figures = self.executor.end().map_err(|error| failed(0, error))?;
        for id in answered {
            self.executor.forget(id);
            self.lead.finish(id);
        }
        self.figures.iterations += 1;
        self.figures.streamed_layers += figures.blocks;
        self.figures.streamed_bytes += figures.bytes;
        self.figures.stalls += figures.stalls;
        self.figures.stall_ms += figures.stall_ns / 1_000_000;
        Ok(figures.measured)
    }

    /// A block is lost: its prompt is computed from there, and published again, before its request
    /// goes on. What the iteration has computed of the others is dropped, and their layers leave again.
    fn lose(&mut self, batch: &[(u64, Placement)], error: ExecutorError) -> Result<()> {
        let (id, reason) = match &error {
            ExecutorError::Block { request, stop, .. } => (*request, stop.label().to_owned()),
            ExecutorError::Hold { request, reason, .. } => (*request, reason.label().to_owned()),
            _ => return Err(error.into()),
        };
        tracing::warn!(prompt = id + 1, "{error}");
        for (id, placement) in batch {
            let Some(request) = self.requests.get_mut(id) else { continue };
            let Some(kv) = &mut request.kv else { continue };
            for layer in placement.offloaded().iter().map(|layer| usize::from(*layer) - 1) {
                if !kv.is_out(layer) {
                    kv.take_out(layer, request.blocks)?;
                }
            }
        }
        *self.figures.lost_blocks.entry(reason).or_default() += 1;
        self.executor.forget(id);
        let request = self.requests.get_mut(&id).context("an unknown request lost a block")?;
        request.kv = None;
        self.engine.prefill(&request.prompt, self.shared)?;
        Ok(())
    }
}

/// Brings offloaded layers before they compute, and takes them out again.
struct Streams<'s> {
    executor: &'s mut Executor,
    batch: &'s [(u64, Placement)],
    /// Of each request of the batch.
    blocks: Vec<usize>,
    /// What requests keep in memory that wait.
    waiting_bytes: usize,
    peak_bytes: usize,
}

impl BatchSteps for Streams<'_> {
    fn before(
        &mut self,
        layer: usize,
        sequences: &mut [Sequence<'_>],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for streamed in self.executor.before(u16::try_from(layer + 1)?)? {
            let of = self.batch.iter().position(|(id, _)| *id == streamed.request);
            let sequence = of.and_then(|of| sequences.get_mut(of));
            sequence.ok_or("a layer of no sequence")?.kv.take_in(layer, streamed.blocks)?;
        }
        let held: usize = sequences.iter().map(|sequence| sequence.kv.held_bytes()).sum();
        self.peak_bytes =
            self.peak_bytes.max(held + self.waiting_bytes + self.executor.buffer_bytes());
        Ok(())
    }

    fn after(
        &mut self,
        layer: usize,
        sequences: &mut [Sequence<'_>],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let number = u16::try_from(layer + 1)?;
        for ((sequence, (_, placement)), blocks) in
            sequences.iter_mut().zip(self.batch).zip(&self.blocks)
        {
            if placement.offloaded().contains(&number) {
                sequence.kv.take_out(layer, *blocks)?;
            }
        }
        Ok(self.executor.after(number)?)
    }
}
