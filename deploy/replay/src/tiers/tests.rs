//! Replays with a drive against lists that do the same, slowly and plainly.

use std::collections::VecDeque;

use kv_cache::evict::policy::PolicyKind;
use kv_drive::policy::PolicyKey;
use proptest::prelude::*;

use super::*;
use crate::{PoolShape, Touch};

/// Requests of conversations that share a beginning and grow turn by turn, each with its time.
fn conversations() -> impl Strategy<Value = String> {
    let turn = (0u64..6, 0u64..12, 0u64..400);
    proptest::collection::vec(turn, 1..80).prop_map(|turns| {
        let mut now_ms = 0;
        let line = |(conversation, length, pause_ms): (u64, u64, u64)| {
            now_ms += pause_ms;
            let own = (1..length).map(|depth| (1000 * (conversation + 1) + depth).to_string());
            let ids: Vec<_> = std::iter::once("0".to_owned()).chain(own).collect();
            format!("{{\"timestamp\": {now_ms}, \"hash_ids\": [{}]}}\n", ids.join(", "))
        };
        turns.into_iter().map(line).collect()
    })
}

fn options(admission: AdmissionKind, backup_age_ms: u64, room: Option<u64>) -> TierOptions {
    let watermarks = Watermarks::new(90, 70).unwrap();
    // 2 pages a block.
    let room_bytes = room.map(|blocks| blocks * 8192);
    TierOptions { admission, backup_age_ms, block_bytes: 5000, room_bytes, watermarks }
}

/// Keys that were seen lately: those of a line in a list, the latest in front.
struct PlainTouches {
    lines: Vec<VecDeque<(u32, bool)>>,
}

impl PlainTouches {
    fn new(drive_blocks: u64) -> Self {
        let keys = usize::try_from(drive_blocks * 2).unwrap();
        let lines = (keys + keys / 2).div_ceil(16).max(1);
        Self { lines: (0..lines).map(|_| VecDeque::new()).collect() }
    }

    fn line(&mut self, block: u32) -> &mut VecDeque<(u32, bool)> {
        let line = (u128::from(block.bits()) * self.lines.len() as u128) >> 64;
        &mut self.lines[usize::try_from(line).unwrap()]
    }

    fn see(&mut self, block: u32) {
        let line = self.line(block);
        let known = line.iter().position(|(other, _)| *other == block);
        known.map(|place| line.remove(place));
        line.push_front((block, known.is_some()));
        line.truncate(16);
    }
}

/// A drive as a list of blocks with tick, depth and number, and everything that is done with it.
struct Plain<'t> {
    options: TierOptions,
    touches: PlainTouches,
    waiting: Vec<(u64, u32)>,
    drive: Vec<(u32, std::cmp::Reverse<usize>, u32, u32)>,
    free: Vec<u32>,
    tick: u32,
    trace: &'t Trace,
    outcome: TierOutcome,
}

impl Plain<'_> {
    fn has(&self, block: u32) -> bool {
        self.drive.iter().any(|it| it.3 == block)
    }

    fn back_up(&mut self, now_ms: u64, pool: &[u32]) {
        loop {
            let mut group = Vec::new();
            while group.len() < self.options.group(self.trace.unique_blocks())
                && self.waiting.first().is_some_and(|(due_ms, _)| *due_ms <= now_ms)
            {
                let (_, block) = self.waiting.remove(0);
                let again = self.touches.line(block).contains(&(block, true));
                if self.options.admission == AdmissionKind::SecondTouch && !again {
                    self.outcome.refused_blocks += 1;
                } else if pool.contains(&block) && !self.has(block) {
                    group.push(block);
                } else {
                    self.outcome.gone_blocks += 1;
                }
            }
            if group.is_empty() {
                return;
            }
            for block in group {
                let next = u32::try_from(self.drive.len()).unwrap();
                let number = self.free.pop().unwrap_or(next);
                let mut depths =
                    self.trace.requests().iter().map(|it| it.iter().position(|it| *it == block));
                let depth = std::cmp::Reverse(depths.find_map(|depth| depth).unwrap());
                self.drive.push((self.tick, depth, number, block));
                self.outcome.written_blocks += 1;
                self.outcome.written_bytes += 8192;
            }
            let Some(room) = self.options.room_bytes.map(|bytes| bytes / 8192) else { continue };
            if self.drive.len() as u64 * 100 > room * 90 {
                self.drive.sort_unstable();
                // Whole blocks, so that no more than the low watermark are left.
                while self.drive.len() as u64 * 8192 > room * 8192 * 70 / 100 {
                    self.free.push(self.drive.remove(0).2);
                    self.outcome.left_blocks += 1;
                }
            }
        }
    }
}

/// An LRU pool and a drive, as lists.
fn plain(trace: &Trace, capacity: usize, options: TierOptions) -> TierOutcome {
    let touches = PlainTouches::new(options.drive_blocks(trace.unique_blocks()));
    let (waiting, drive, free, outcome) = (Vec::new(), Vec::new(), Vec::new(), Default::default());
    let mut plain = Plain { options, touches, waiting, drive, free, tick: 1, trace, outcome };
    let mut pool: Vec<u32> = Vec::new();
    for (request, now_ms) in trace.requests().iter().zip(trace.times_ms()) {
        plain.back_up(*now_ms, &pool);
        let is_hit = |block: &&u32| pool.contains(block) || plain.has(**block);
        let hits: Vec<u32> = request.iter().take_while(is_hit).copied().collect();
        let pool_hits = hits.iter().filter(|block| pool.contains(block)).count() as u64;
        plain.outcome.pool_hits += pool_hits;
        plain.outcome.drive_hits += hits.len() as u64 - pool_hits;
        plain.outcome.misses += (request.len() - hits.len()) as u64;
        plain.tick += 1;
        for entry in plain.drive.iter_mut().filter(|it| request.contains(&it.3)) {
            entry.0 = plain.tick;
        }
        for block in request.iter().rev() {
            if pool.contains(block) {
                pool.retain(|other| other != block);
            } else if pool.len() == capacity {
                pool.remove(0);
            }
            pool.push(*block);
        }
        for block in request.iter().filter(|block| pool.contains(block)) {
            plain.touches.see(*block);
            let waits = plain.waiting.iter().any(|(_, other)| other == block);
            if !waits && !plain.has(*block) {
                plain.waiting.push((now_ms + options.backup_age_ms, *block));
            }
        }
    }
    plain.outcome
}

fn admissions() -> impl Strategy<Value = AdmissionKind> {
    proptest::sample::select(AdmissionKind::ALL.to_vec())
}

proptest! {
    #[test]
    fn a_drive_is_what_lists_do(
        text in conversations(),
        capacity in 1u32..40,
        room in proptest::option::of(3u64..60),
        age in 0u64..1000,
        second_touch in any::<bool>(),
    ) {
        let trace = Trace::read(text.as_bytes()).unwrap();
        let admission = if second_touch { AdmissionKind::SecondTouch } else { AdmissionKind::All };
        let options = options(admission, age, room);
        let pool = Simulation::new(&trace, Some(capacity), PolicyKind::Lru, Touch::LeafFirst);
        let outcome = TierSimulation::new(&trace, pool, &options).run();
        let expected = plain(&trace, capacity as usize, options);
        let pool_alone = outcome.pool_alone;
        prop_assert_eq!(outcome, TierOutcome { pool_alone, ..expected });
    }

    /// After every step: what is used and what is free are the room of each tier, every block of a
    /// request is a hit of one tier or a miss, and what was written is there or has left.
    #[test]
    fn blocks_and_lookups_are_conserved(
        text in conversations(),
        capacity in 1u32..40,
        room in 3u64..60,
        age in 0u64..1000,
        admission in admissions(),
    ) {
        let trace = Trace::read(text.as_bytes()).unwrap();
        let options = options(admission, age, Some(room));
        let pool =
            || Simulation::new(&trace, Some(capacity), PolicyKind::Clock, Touch::LeafFirst);
        let mut tiers = TierSimulation::new(&trace, pool(), &options);
        let mut alone = pool();
        while tiers.step() {
            alone.step();
            let outcome = tiers.outcome();
            // A drive changes nothing in the pool.
            prop_assert_eq!(outcome.pool_alone, alone.outcome());
            let lookups = outcome.pool_hits + outcome.drive_hits + outcome.misses;
            prop_assert_eq!(lookups, outcome.pool_alone.block_refs);
            prop_assert!(outcome.pool_hits >= outcome.pool_alone.hits);
            prop_assert!(tiers.pool().resident_blocks() <= capacity);
            let used = tiers.drive().bytes();
            prop_assert!(used <= room * options.extent_bytes() * 9 / 10);
            prop_assert_eq!(tiers.drive().blocks(), outcome.written_blocks - outcome.left_blocks);
            let there = (0..trace.unique_blocks()).filter(|block| tiers.drive().has(*block));
            prop_assert_eq!(there.count() as u64, tiers.drive().blocks());
        }
        let best = trace.block_refs() - u64::from(trace.unique_blocks());
        prop_assert!(tiers.outcome().pool_hits + tiers.outcome().drive_hits <= best);
    }
}

#[test]
fn with_room_for_all_and_no_wait_a_drive_has_what_the_pool_has_no_more() {
    let mut text = String::new();
    for turn in 1..12_u64 {
        for conversation in 0..40 {
            let own =
                (0..3 * turn + conversation % 5).map(|depth| 1000 * (conversation + 1) + depth);
            let ids: Vec<u64> = (0..4).chain(own).collect();
            text.push_str(&format!("{{\"hash_ids\": {ids:?}}}\n"));
        }
    }
    let trace = Trace::read(text.as_bytes()).unwrap();
    let best = trace.block_refs() - u64::from(trace.unique_blocks());
    let all = options(AdmissionKind::All, 0, None);
    let pool = || Simulation::new(&trace, Some(100), PolicyKind::Clock, Touch::LeafFirst);
    let outcome = TierSimulation::new(&trace, pool(), &all).run();
    assert_eq!(outcome.pool_hits + outcome.drive_hits, best);
    // What the last request brought is written before the next.
    assert_eq!(outcome.written_blocks, u64::from(trace.unique_blocks()) - 3);
    assert_eq!(outcome.drive_writes_per_day(&all, &trace), None);
    // A pool that evicts in batches, and a drive with a limit.
    let some = |number| std::num::NonZeroU32::new(number).unwrap();
    let one = std::num::NonZeroU16::MIN;
    let shape = PoolShape { nodes: one, workers_per_node: one, chunks: 10, chunk_blocks: some(10) };
    let limited = options(AdmissionKind::SecondTouch, 0, Some(200));
    let tiers = TierSimulation::new(&trace, PoolSimulation::new(&trace, shape), &limited).run();
    assert!(tiers.drive_hits > 0 && tiers.left_blocks > 0, "{tiers:?}");
    let written = tiers.written_bytes as f64 / (tiers.drive_hits * 5000) as f64;
    let found = tiers.written_a_hit(&limited).unwrap();
    assert!((found - written).abs() < 1e-9, "{found}, not {written}");
}
