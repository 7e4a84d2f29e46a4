//! What publishing costs, and which loads pass a flush: by the clock, on this host alone.

use super::party::word_of;
use super::probe::Probe;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::{MemoryFenceKind, OwnedArea};
use cxl_shm::units::{LineOffset, LineRange};

const PUBLISHES: u32 = 20_000;
const LOADS: u32 = 20_000;
const BATCHES: u32 = 10;

/// Durations of one host. Of a machine that does other things they are worth their ratios.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// A store, write-back and fence of one line, over and over. The read-back also fetches the
    /// line for the next store, so the two are closer here than for payload, which is stored once.
    pub publish_ns: f64,
    /// The same with the read-back.
    pub publish_read_back_ns: f64,
    /// A flush, fence and load of one line.
    pub refresh_ns: f64,
    /// Loads in 100 that were too fast to have come from the memory, after a flush without a
    /// fence, with a store fence, with a load fence, with a full fence: they took the copy that
    /// was about to be dropped.
    pub loads_passing_flush: [f64; 4],
}

/// The fences that [`Timing::loads_passing_flush`] counts, in its order.
const FENCES: [MemoryFenceKind; 4] =
    [MemoryFenceKind::None, MemoryFenceKind::Stores, MemoryFenceKind::Loads, MemoryFenceKind::Full];

impl Timing {
    /// Measures in lines of this host.
    pub(super) fn measure<P: Probe>(fabric: &P, lines: OwnedArea, clock: &SystemClock) -> Self {
        let line = lines.range().start();
        let publish = |read_back: bool| {
            per_turn_ns(clock, PUBLISHES, |turn| {
                fabric.store(word_of(line, 0), u64::from(turn));
                fabric.write_back(LineRange::one(line));
                fabric.fence();
                if read_back {
                    fabric.read_back(LineRange::one(line));
                }
            })
        };
        Self {
            publish_ns: publish(false),
            publish_read_back_ns: publish(true),
            refresh_ns: per_turn_ns(clock, PUBLISHES, |_| {
                fabric.refresh(LineRange::one(line));
                fabric.load(word_of(line, 0));
            }),
            loads_passing_flush: loads_passing_flush(fabric, line),
        }
    }
}

/// Of the fastest batch: whatever else the machine does only makes slower.
fn per_turn_ns(clock: &SystemClock, turns: u32, mut turn: impl FnMut(u32)) -> f64 {
    let batch = turns / BATCHES;
    let batches = (0..BATCHES).map(|_| {
        let start_us = clock.now_us();
        (0..batch).for_each(&mut turn);
        u32::try_from(clock.now_us() - start_us).unwrap_or(u32::MAX)
    });
    let fastest_us = batches.min().unwrap_or(0);
    f64::from(fastest_us) * 1000.0 / f64::from(batch)
}

fn loads_passing_flush<P: Probe>(fabric: &P, line: LineOffset) -> [f64; 4] {
    let timed = |fence: MemoryFenceKind| -> Option<Vec<u64>> {
        (0..LOADS)
            .map(|_| {
                // There is a copy to pass to.
                fabric.load(word_of(line, 0));
                let start = fabric.ticks()?;
                fabric.invalidate(LineRange::one(line));
                fabric.fence_of(fence);
                fabric.load(word_of(line, 0));
                fabric.ticks().map(|end| end.saturating_sub(start))
            })
            .collect()
    };
    let Some(mut fenced) = timed(MemoryFenceKind::Full) else {
        return [0.0; 4];
    };
    fenced.sort_unstable();
    // A load that comes from the memory takes the better part of a whole refresh. Half of the
    // fastest tenth keeps interruptions, which only make slower, out of it.
    let threshold = fenced[fenced.len() / 10] / 2;
    FENCES.map(|fence| {
        let fast = timed(fence).map_or(0, |times| times.iter().filter(|t| **t < threshold).count());
        100.0 * f64::from(u32::try_from(fast).unwrap_or(u32::MAX)) / f64::from(LOADS)
    })
}
