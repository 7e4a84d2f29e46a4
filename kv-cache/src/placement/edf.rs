//! A link that serves one stream at a time: the stream whose layer executes soonest.

use super::stream::Stream;
use super::timeline::{Phase, Transfer, Watch};
use super::{Batch, MemoryModel};

/// What an iteration takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    /// Stall, in ticks.
    pub(super) stall: u64,
    /// The most blocks that streams had brought and layers had not used (PLAN-M2); 0 where only
    /// the paper's memory is asked for.
    pub(super) buffer: u64,
}

/// Simulates one iteration (PLAN-L1, PLAN-L2, PLAN-L4).
///
/// Everything is a whole number of ticks, because each stream has the whole link (PLAN-L3).
pub(super) fn iteration<W: Watch>(
    batch: &Batch,
    streams: &mut [Stream<'_, u64>],
    memory: MemoryModel,
    watch: &mut W,
) -> Taken {
    let (layer_ticks, block_ticks) = (batch.layer_ticks(), batch.block_ticks());
    let in_layers = |ticks: u64| ticks as f64 / layer_ticks as f64;
    let mut taken = Taken { stall: 0, buffer: 0 };
    for layer in 1..=batch.layers() {
        for (request, stream) in streams.iter_mut().enumerate() {
            if stream.due() == layer {
                taken.stall += stream.left;
                if W::WATCHES {
                    let transfer = Transfer { request, layer };
                    watch.interval(in_layers(stream.left), Phase::Stall(layer), &[transfer]);
                }
                stream.fetched(stream.blocks * block_ticks);
            }
        }
        let mut free = layer_ticks;
        while free > 0 {
            let Some(request) = soonest(streams, layer) else { break };
            let stream = &mut streams[request];
            let ticks = free.min(stream.left);
            if W::WATCHES {
                let transfer = Transfer { request, layer: stream.due() };
                watch.interval(in_layers(ticks), Phase::Compute(layer), &[transfer]);
            }
            free -= ticks;
            stream.left -= ticks;
            if stream.left == 0 {
                stream.fetched(stream.blocks * block_ticks);
            }
        }
        if W::WATCHES {
            watch.interval(in_layers(free), Phase::Compute(layer), &[]);
        }
        end_of(layer, streams, memory, block_ticks, &mut taken);
    }
    taken
}

/// The stream to serve while `layer` executes.
fn soonest(streams: &[Stream<'_, u64>], layer: u16) -> Option<usize> {
    let mut chosen = None;
    let mut soonest = u16::MAX;
    for (request, stream) in streams.iter().enumerate() {
        let due = stream.due();
        if due < soonest && stream.may_fetch(layer) {
            (chosen, soonest) = (Some(request), due);
        }
    }
    chosen
}

/// A layer ended: the KV that was fetched for it is dropped.
///
/// Between two such moments the buffer only grows, so its peak is at one of them.
fn end_of(
    layer: u16,
    streams: &mut [Stream<'_, u64>],
    memory: MemoryModel,
    block_ticks: u64,
    taken: &mut Taken,
) {
    if memory == MemoryModel::Safe {
        let brought = |stream: &Stream<'_, u64>| {
            let part = if stream.wants() { stream.blocks * block_ticks - stream.left } else { 0 };
            stream.whole_blocks() + part.div_ceil(block_ticks)
        };
        taken.buffer = taken.buffer.max(streams.iter().map(brought).sum());
    }
    for stream in streams.iter_mut().filter(|stream| stream.uses(layer)) {
        stream.used();
    }
}
