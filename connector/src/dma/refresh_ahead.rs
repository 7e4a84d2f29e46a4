//! Dropping payload lines from this host's caches while earlier ones are being read.
//!
//! A refresh costs nearly half as much as the read it is for. Done first for the whole payload it
//! adds up; done one window ahead, in small steps between the reads, part of it hides behind them.
//! Nothing hides the refresh of the first window: that window is short, and each next one is twice as
//! long, until more fences would not pay any more.

use cxl_shm::fabric::Fabric;
use cxl_shm::units::{Extent, LineRange};

/// Bytes that are refreshed, read and checked in one step: a bounce buffer of this size stays in
/// the first-level cache beside everything else. 2 KiB took longer for each step, 8 KiB was not
/// faster.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Blocks before the first fence: 16 KiB. A payload of 64 KiB is read from then on, and not after all
/// of it was dropped.
const FIRST_WINDOW_BLOCKS: usize = 4;
/// Blocks between two fences at most. Shorter windows pay for more fences.
const WINDOW_BLOCKS: usize = 64;

/// The blocks of a payload, in order; the last one may be shorter.
pub(super) fn blocks(payload: Extent) -> impl Iterator<Item = Extent> {
    (0..payload.bytes()).step_by(BLOCK_BYTES).map(move |offset| {
        let bytes = (payload.bytes() - offset).min(BLOCK_BYTES as u64);
        payload.part(offset, bytes).expect("a block lies in its payload")
    })
}

/// Refreshes a sequence of blocks (MEM-M3), a window ahead of their reader.
#[derive(Debug)]
pub(super) struct RefreshAhead<'f, F, I> {
    fabric: &'f F,
    /// Blocks that are not dropped yet.
    waiting: I,
    /// Blocks that are dropped, not fenced.
    dropped: usize,
    /// Blocks that are dropped and fenced, and not read.
    readable: usize,
    /// Blocks to drop while those are read.
    next_window: usize,
}

impl<'f, F: Fabric, I: Iterator<Item = Extent>> RefreshAhead<'f, F, I> {
    /// Nothing is dropped before the first [`admit`](Self::admit).
    pub(super) fn new(fabric: &'f F, blocks: I) -> Self {
        Self { fabric, waiting: blocks, dropped: 0, readable: 0, next_window: FIRST_WINDOW_BLOCKS }
    }

    /// Makes the next block readable. The answer is how many blocks may be read, or prefetched,
    /// from it on: those whose drop is fenced (MEM-M3: a load passes a flush that is not). 0 when
    /// there is no block left.
    pub(super) fn admit(&mut self) -> usize {
        if self.readable == 0 {
            // The first window.
            if self.dropped == 0 {
                self.drop_next(FIRST_WINDOW_BLOCKS);
            }
            if self.dropped > 0 {
                self.fabric.fence();
            }
            self.readable = std::mem::take(&mut self.dropped);
            self.next_window = WINDOW_BLOCKS.min(2 * self.readable);
        }
        // Evenly between the reads.
        let left = self.next_window.saturating_sub(self.dropped);
        self.drop_next(left.div_ceil(self.readable.max(1)));
        let readable = self.readable;
        self.readable = readable.saturating_sub(1);
        readable
    }

    fn drop_next(&mut self, blocks: usize) {
        for block in self.waiting.by_ref().take(blocks) {
            self.fabric.invalidate(LineRange::covering(block));
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashSet;

    use cxl_shm::fabric::LineWords;
    use cxl_shm::units::{LineOffset, WordOffset};

    use super::*;

    /// Knows which lines have been dropped since, and fenced.
    #[derive(Default, Debug)]
    struct Recorder {
        dropped: RefCell<HashSet<LineOffset>>,
        fenced: RefCell<HashSet<LineOffset>>,
    }

    impl Fabric for Recorder {
        fn bytes(&self) -> u64 {
            u64::MAX
        }
        fn load(&self, _: WordOffset) -> u64 {
            panic!("a refresh loads nothing")
        }
        fn store(&self, _: WordOffset, _: u64) {
            panic!("a refresh stores nothing")
        }
        fn read_line(&self, _: LineOffset) -> LineWords {
            panic!("a refresh loads nothing")
        }
        fn write_line(&self, _: LineOffset, _: &LineWords) {
            panic!("a refresh stores nothing")
        }
        fn write_back(&self, _: LineRange) {
            panic!("a refresh is no write-back")
        }
        fn invalidate(&self, lines: LineRange) {
            self.dropped.borrow_mut().extend(lines.iter());
        }
        fn fence(&self) {
            self.fenced.borrow_mut().extend(self.dropped.borrow_mut().drain());
        }
        fn read_back(&self, _: LineRange) {
            panic!("a refresh reads nothing back")
        }
    }

    fn payloads(lengths: &[u64]) -> Vec<Extent> {
        let slots = (0..).map(|slot| slot * 16 * 1024 * 1024);
        slots.zip(lengths).map(|(at, bytes)| Extent::new(at, *bytes).unwrap()).collect()
    }

    fn check_all_blocks(lengths: &[u64]) {
        let recorder = Recorder::default();
        let payloads = payloads(lengths);
        let all: Vec<_> = payloads.iter().flat_map(|payload| blocks(*payload)).collect();
        let mut ahead = RefreshAhead::new(&recorder, all.iter().copied());
        for at in 0..all.len() {
            let readable = ahead.admit();
            assert!(readable > 0 && at + readable <= all.len(), "{readable} blocks at {at}");
            for block in &all[at..at + readable] {
                let fenced = recorder.fenced.borrow();
                let lines = LineRange::covering(*block);
                assert!(lines.iter().all(|line| fenced.contains(&line)), "{block:?} at {at}");
            }
        }
        assert_eq!(ahead.admit(), 0, "nothing is left");
    }

    #[test]
    fn blocks_cover_their_payload_once() {
        for bytes in [0, 1, 2047, 2048, 2049, 1_000_000] {
            let payload = Extent::new(4096, bytes).unwrap();
            let mut end = payload.offset();
            for block in blocks(payload) {
                assert_eq!(block.offset(), end);
                end = block.end();
            }
            assert_eq!(end, payload.end());
        }
    }

    #[test]
    fn windows_begin_short_and_double() {
        let payload = Extent::new(0, 4 << 20).unwrap();
        let recorder = Recorder::default();
        let mut ahead = RefreshAhead::new(&recorder, blocks(payload));
        let (mut windows, mut fenced_lines) = (Vec::new(), 0);
        let lines_a_block = BLOCK_BYTES / 64;
        while ahead.admit() > 0 {
            let fenced = recorder.fenced.borrow().len();
            if fenced > fenced_lines {
                windows.push((fenced - fenced_lines) / lines_a_block);
                fenced_lines = fenced;
            }
            let dropped = recorder.dropped.borrow().len() / lines_a_block;
            assert!(dropped <= WINDOW_BLOCKS, "{dropped} blocks wait for a fence");
        }
        assert_eq!(windows[..7], [4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(windows.iter().sum::<usize>(), 1024);
    }

    #[test]
    fn what_may_be_read_was_dropped_and_fenced() {
        let window = (BLOCK_BYTES * WINDOW_BLOCKS) as u64;
        check_all_blocks(&[1]);
        check_all_blocks(&[window]);
        check_all_blocks(&[window + 1]);
        check_all_blocks(&[0, 3 * window + 77, 4096, 0, 8192, 2 * window]);
        check_all_blocks(&[]);
    }
}
