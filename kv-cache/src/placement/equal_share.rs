//! A link that serves all streams at once, each at an equal share.

use num_bigint::BigUint;

use super::exact::{Exact, gcd};
use super::stream::Stream;
use super::timeline::{Phase, Transfer, Watch};
use super::{Batch, MemoryModel};

/// What an iteration takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    /// Stall, in parts of ticks.
    pub(super) stall: BigUint,
    /// Parts of a tick.
    pub(super) parts: BigUint,
    /// The most blocks that streams had brought and layers had not used (PLAN-M2); 0 where only
    /// the paper's memory is asked for.
    pub(super) buffer: u64,
}

/// An iteration in progress.
///
/// Three streams that share a tick get a third of it each. So a tick is divided into `parts`, and
/// these into smaller parts whenever an amount is not divisible (PLAN-L3).
struct Iteration<'a, 's, N> {
    batch: &'a Batch,
    streams: &'a mut [Stream<'s, N>],
    parts: N,
    stall: N,
    buffer: u64,
}

/// Simulates one iteration (PLAN-L1, PLAN-L2, PLAN-L4). `None`: the numbers have no room.
pub(super) fn iteration<N: Exact, W: Watch>(
    batch: &Batch,
    streams: &mut [Stream<'_, N>],
    memory: MemoryModel,
    watch: &mut W,
) -> Option<Taken> {
    let mut iteration = Iteration { batch, streams, parts: N::of(1), stall: N::of(0), buffer: 0 };
    for layer in 1..=batch.layers() {
        iteration.stall(layer, watch)?;
        iteration.compute(layer, watch)?;
        iteration.end(layer, memory)?;
    }
    let Iteration { parts, stall, buffer, .. } = iteration;
    Some(Taken { stall: stall.big(), parts: parts.big(), buffer })
}

impl<N: Exact> Iteration<'_, '_, N> {
    /// All streams fetch until the KV of `layer` is complete.
    fn stall<W: Watch>(&mut self, layer: u16, watch: &mut W) -> Option<()> {
        while self.streams.iter().any(|stream| stream.due() == layer) {
            let active = self.active(0);
            let least = active.iter().map(|&request| &self.streams[request].left).min()?.clone();
            let length = least.times(active.len() as u64)?;
            self.stall = self.stall.plus(&length)?;
            self.show(&length, Phase::Stall(layer), &active, watch);
            self.fetch(&active, &least)?;
        }
        Some(())
    }

    /// `layer` executes. Streams of requests that use fetched KV in it rest.
    fn compute<W: Watch>(&mut self, layer: u16, watch: &mut W) -> Option<()> {
        let mut time = self.parts.times(self.batch.layer_ticks())?;
        loop {
            let active = self.active(layer);
            let least = active.iter().map(|&request| &self.streams[request].left).min().cloned();
            let Some(mut share) = least else { break };
            let count = active.len() as u64;
            let mut length = share.times(count)?;
            let ends = length >= time;
            if length > time {
                let remainder = time.modulo(count);
                if remainder > 0 {
                    let factor = count / gcd(remainder, count);
                    self.divide(factor)?;
                    time = time.times(factor)?;
                }
                (share, length) = (time.over(count), time.clone());
            }
            self.show(&length, Phase::Compute(layer), &active, watch);
            self.fetch(&active, &share)?;
            time = time.minus(&length);
            if ends {
                break;
            }
        }
        self.show(&time, Phase::Compute(layer), &[], watch);
        Some(())
    }

    /// A layer ended: the KV that was fetched for it is dropped.
    fn end(&mut self, layer: u16, memory: MemoryModel) -> Option<()> {
        if memory == MemoryModel::Safe {
            let mut brought = 0;
            for stream in &*self.streams {
                let part = if stream.wants() { self.blocks_fetched(stream)? } else { 0 };
                brought += stream.whole_blocks() + part;
            }
            self.buffer = self.buffer.max(brought);
        }
        for stream in self.streams.iter_mut().filter(|stream| stream.uses(layer)) {
            stream.used();
        }
        Some(())
    }

    /// Blocks that have begun to arrive of the layer that is fetched now.
    fn blocks_fetched(&self, stream: &Stream<'_, N>) -> Option<u64> {
        // Blocks that are missing whole, by bisection: the numbers may be of any length.
        let block = self.parts.times(self.batch.block_ticks())?;
        let (mut missing, mut above) = (0, stream.blocks + 1);
        while missing + 1 < above {
            let middle = missing.midpoint(above);
            if block.times(middle)? <= stream.left { missing = middle } else { above = middle }
        }
        Some(stream.blocks - missing)
    }

    /// Streams that may fetch while `layer` executes; 0 when none does.
    fn active(&self, layer: u16) -> Vec<usize> {
        (0..self.streams.len()).filter(|&request| self.streams[request].may_fetch(layer)).collect()
    }

    /// Each of the streams gets `share`, which is no more than what any of them misses.
    fn fetch(&mut self, active: &[usize], share: &N) -> Option<()> {
        for &request in active {
            let stream = &mut self.streams[request];
            stream.left = stream.left.minus(share);
            if stream.left == N::of(0) {
                let ticks = stream.blocks * self.batch.block_ticks();
                stream.fetched(self.parts.times(ticks)?);
            }
        }
        Some(())
    }

    /// Divides every part into `factor` smaller ones.
    fn divide(&mut self, factor: u64) -> Option<()> {
        self.parts = self.parts.times(factor)?;
        self.stall = self.stall.times(factor)?;
        for stream in &mut *self.streams {
            stream.left = stream.left.times(factor)?;
        }
        Some(())
    }

    fn show<W: Watch>(&self, length: &N, phase: Phase, active: &[usize], watch: &mut W) {
        if W::WATCHES {
            let layer = self.parts.big() * self.batch.layer_ticks();
            let length = num_rational::Ratio::new(length.big(), layer);
            let transfer =
                |&request: &usize| Transfer { request, layer: self.streams[request].due() };
            let transfers: Vec<_> = active.iter().map(transfer).collect();
            watch.interval(super::evaluation::rounded(&length), phase, &transfers);
        }
    }
}
