//! In which order blocks leave a drive: by their last use, and the deeper ones first.
//!
//! A block has a number and the *tick* of its last use: 16 bits. Everything between two calls of
//! [`LeafOrder::tick`] happened in one moment. When the ticks are used up, the ticks that blocks
//! still have are numbered anew without gaps. Neighbours share a number when even these are too many.
//! So a block keeps its place among others, and only fine differences are lost.
//!
//! The blocks that leave next are found by two looks at all ticks: the first counts blocks by tick,
//! the second takes those that are old enough. Both look at 2 bytes a block, in parts, so that a
//! store works between the parts.

use std::cmp::Reverse;

/// Numbers whose ticks lie together.
const CHUNK: usize = 1024;
/// Numbers that one step of a search looks at.
const PART: usize = 64 * CHUNK;
/// The tick of a number that is free.
const FREE: u16 = u16::MAX;
/// The highest tick.
const LAST: u16 = FREE - 1;
/// Ticks that are in use at most after they were numbered anew.
const KEPT: usize = 1 << 15;

/// Numbers of blocks, and when each was used last: 2 bytes a block.
#[derive(Debug)]
pub struct LeafOrder {
    ticks: Vec<Box<[u16]>>,
    /// Numbers that are free, of those that were used.
    free: Vec<u32>,
    /// Numbers that were ever used.
    end: u32,
    now: u16,
}

impl Default for LeafOrder {
    fn default() -> Self {
        Self { ticks: Vec::new(), free: Vec::new(), end: 0, now: 1 }
    }
}

impl LeafOrder {
    /// Blocks that have a number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end as usize - self.free.len()
    }

    /// Whether no block has a number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is told from now on happens after all that was told before.
    pub fn tick(&mut self) {
        if self.now == LAST {
            self.number_ticks_anew();
        }
        self.now += 1;
    }

    /// A block comes, and is used now. Returns its number: below the most blocks that there ever were.
    pub fn enter(&mut self) -> u32 {
        self.enter_at(self.now)
    }

    /// A block comes of whose uses nothing is known: it leaves before all that were used.
    pub fn enter_unused(&mut self) -> u32 {
        self.enter_at(0)
    }

    fn enter_at(&mut self, tick: u16) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            if self.end as usize == self.ticks.len() * CHUNK {
                self.ticks.push(vec![FREE; CHUNK].into());
            }
            self.end += 1;
            self.end - 1
        });
        *self.at(number) = tick;
        number
    }

    /// The block of this number is used now.
    pub fn used(&mut self, number: u32) {
        debug_assert_ne!(*self.at(number), FREE, "a block with a number is used");
        *self.at(number) = self.now;
    }

    /// The block of this number is gone, and the number is free.
    pub fn leave(&mut self, number: u32) {
        debug_assert_ne!(*self.at(number), FREE, "a block leaves once");
        *self.at(number) = FREE;
        self.free.push(number);
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.ticks.len() * CHUNK * 2 + self.free.capacity() * 4
    }

    fn at(&mut self, number: u32) -> &mut u16 {
        &mut self.ticks[number as usize / CHUNK][number as usize % CHUNK]
    }

    /// Numbers with their ticks, of one part. `None` behind the last.
    fn part(&self, part: usize) -> Option<impl Iterator<Item = (u32, u16)>> {
        let first = part.checked_mul(PART).filter(|first| *first < self.end as usize)?;
        let ticks = self.ticks.iter().skip(first / CHUNK).flatten();
        let numbered = (u32::try_from(first).unwrap_or(FREE.into())..).zip(ticks.copied());
        Some(numbered.take(PART).filter(|(_, tick)| *tick != FREE))
    }

    fn number_ticks_anew(&mut self) {
        let mut is_used = vec![false; usize::from(FREE) + 1];
        let all = || self.ticks.iter().flatten();
        all().for_each(|tick| is_used[usize::from(*tick)] = true);
        let used = is_used[..usize::from(FREE)].iter().filter(|is_used| **is_used).count();
        let merged = if used > KEPT { 2 } else { 1 };
        let (mut rank, mut anew) = (0, vec![FREE; usize::from(FREE) + 1]);
        for (tick, _) in is_used[..usize::from(FREE)].iter().enumerate().filter(|(_, used)| **used)
        {
            // 0 stays what was never used.
            rank += usize::from(tick != 0);
            anew[tick] = u16::try_from(rank.div_ceil(merged)).unwrap_or(LAST);
        }
        for tick in self.ticks.iter_mut().flatten() {
            *tick = anew[usize::from(*tick)];
        }
        self.now = u16::try_from(rank.div_ceil(merged)).unwrap_or(LAST);
    }
}

/// A search for the blocks that leave next: parts are counted, then collected.
///
/// Blocks that are used meanwhile may be found nevertheless, with the time that they had before.
#[derive(Debug)]
pub struct Oldest {
    want: usize,
    /// Blocks by tick; empty once parts are collected.
    counts: Vec<u32>,
    /// Blocks with a later tick stay.
    limit: u16,
    found: Vec<(u16, Reverse<u16>, u32)>,
}

impl Oldest {
    /// Looks for `want` blocks.
    #[must_use]
    pub fn new(want: usize) -> Self {
        Self { want, counts: vec![0; usize::from(FREE)], limit: LAST, found: Vec::new() }
    }

    /// Counts the blocks of one part, of those that `may_leave`. `false` when there is no such part.
    pub fn count(
        &mut self,
        order: &LeafOrder,
        part: usize,
        mut may_leave: impl FnMut(u32) -> bool,
    ) -> bool {
        let Some(numbers) = order.part(part) else { return false };
        for (_, tick) in numbers.filter(|(number, _)| may_leave(*number)) {
            self.counts[usize::from(tick)] += 1;
        }
        true
    }

    /// Takes the blocks of one part that are old enough, each with how deep it is; when all parts
    /// are counted. `false` when there is no such part.
    pub fn collect(
        &mut self,
        order: &LeafOrder,
        part: usize,
        mut may_leave: impl FnMut(u32) -> bool,
        depth_of: impl Fn(u32) -> u16,
    ) -> bool {
        if !self.counts.is_empty() {
            let mut sum = 0;
            let enough = std::mem::take(&mut self.counts).into_iter().position(|count| {
                sum += count as usize;
                sum >= self.want
            });
            self.limit = enough.map_or(LAST, |tick| u16::try_from(tick).unwrap_or(LAST));
        }
        let Some(numbers) = order.part(part) else { return false };
        let old = numbers.filter(|(number, tick)| *tick <= self.limit && may_leave(*number));
        self.found.extend(old.map(|(number, tick)| (tick, Reverse(depth_of(number)), number)));
        true
    }

    /// The numbers of the blocks that leave next, the first to leave first; fewer than wanted when
    /// there are no more.
    #[must_use]
    pub fn numbers(mut self) -> Vec<u32> {
        self.found.sort_unstable();
        self.found.truncate(self.want);
        self.found.into_iter().map(|(_, _, number)| number).collect()
    }

    /// The whole search at once.
    #[must_use]
    pub fn of(
        order: &LeafOrder,
        want: usize,
        mut may_leave: impl FnMut(u32) -> bool,
        depth_of: impl Fn(u32) -> u16,
    ) -> Vec<u32> {
        let mut oldest = Self::new(want);
        (0..).take_while(|part| oldest.count(order, *part, &mut may_leave)).for_each(drop);
        let mut collect = |part| oldest.collect(order, part, &mut may_leave, &depth_of);
        (0..).take_while(|part| collect(*part)).for_each(drop);
        oldest.numbers()
    }
}

#[cfg(test)]
mod tests;
