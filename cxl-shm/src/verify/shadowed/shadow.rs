//! The private lines of one process.

use std::thread::ThreadId;

use crate::fabric::{Fabric, LineWords, MappedFabric};
use crate::units::{LineOffset, LineRange, PAGE_BYTES, WordOffset};
use crate::verify::simulated::line_map::LineMap;
use crate::verify::simulated::{CacheMode, Random};

/// Accesses remembered: most of what busy caches do, they do to lines in use.
const RECENT: usize = 16;
/// Most flushes that wait for a fence in busy caches: threads come and go without one.
const FLUSHES_MAX: usize = 4096;

#[derive(Debug)]
struct Cached {
    words: LineWords,
    dirty: bool,
}

/// A flush that was issued and is not known to be complete.
#[derive(Clone, Copy, Debug)]
struct Flush {
    thread: ThreadId,
    line: LineOffset,
    /// An invalidation, which leaves no copy.
    drops: bool,
}

#[derive(Debug)]
pub(super) struct Shadow {
    below: MappedFabric,
    cached: LineMap<Cached>,
    flushes: Vec<Flush>,
    random: Random,
    /// Accesses between two things that the caches do by themselves, on average; 0 for none.
    busy_one_in: u32,
    recent: [LineOffset; RECENT],
    recent_next: usize,
}

impl Shadow {
    pub(super) fn new(below: MappedFabric, cache: CacheMode, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let busy_one_in = match cache {
            CacheMode::Sticky => 0,
            // Each process is busy in its own measure.
            CacheMode::Adversarial => 1 << (1 + random.below(5)),
        };
        let nowhere = LineOffset::new(0).expect("0 is a multiple of 64");
        Self {
            below,
            cached: LineMap::default(),
            flushes: Vec::new(),
            random,
            busy_one_in,
            recent: [nowhere; RECENT],
            recent_next: 0,
        }
    }

    /// The line as the processors of this host see it.
    pub(super) fn line(&mut self, line: LineOffset) -> LineWords {
        self.fetch(line).words
    }

    pub(super) fn store(&mut self, at: WordOffset, value: u64) {
        let (thread, line) = (std::thread::current().id(), at.line());
        // A flush is ordered with the later stores of its thread to the same line.
        self.complete_all(|flush| flush.thread == thread && flush.line == line);
        let cached = self.fetch(line);
        cached.words[at.index_in_line()] = value;
        cached.dirty = true;
    }

    /// Issues flushes.
    pub(super) fn flush(&mut self, lines: LineRange, drops: bool) {
        let thread = std::thread::current().id();
        self.flushes.extend(lines.iter().map(|line| Flush { thread, line, drops }));
    }

    /// Completes the flushes of this thread, in any order.
    pub(super) fn fence(&mut self) {
        let thread = std::thread::current().id();
        self.complete_all(|flush| flush.thread == thread);
        // What went to the file is there for every process that looks from now on.
        self.below.fence();
    }

    /// Gives the caches a chance to do something by themselves before an access to `line`.
    pub(super) fn misbehave(&mut self, line: LineOffset) {
        if self.busy_one_in == 0 {
            return;
        }
        self.recent[self.recent_next] = line;
        self.recent_next = (self.recent_next + 1) % RECENT;
        if !self.random.one_in(self.busy_one_in) {
            return;
        }
        let recent = self.random.index(RECENT).map_or(line, |place| self.recent[place]);
        let anywhere = self.cached.pick(&mut self.random);
        let target = if self.random.one_in(4) { anywhere.unwrap_or(recent) } else { recent };
        match self.random.below(5) {
            0 => self.write_back(target),
            1 | 2 => self.evict(target),
            3 => {
                let page = target.bytes() - target.bytes() % PAGE_BYTES;
                let near = page + self.random.below(PAGE_BYTES / 64) * 64;
                if near < self.below.bytes()
                    && let Some(near) = LineOffset::new(near)
                {
                    self.fetch(near);
                }
            }
            _ => {
                let some = self.random.index(self.flushes.len());
                if let Some(flush) = some.map(|index| self.flushes.swap_remove(index)) {
                    self.complete(flush);
                }
            }
        }
        while self.flushes.len() > FLUSHES_MAX {
            let flush = self.flushes.swap_remove(0);
            self.complete(flush);
        }
    }

    fn fetch(&mut self, line: LineOffset) -> &mut Cached {
        let Self { below, cached, .. } = self;
        cached.get_or_insert_with(line, || Cached { words: below.read_line(line), dirty: false })
    }

    fn complete_all(&mut self, mut which: impl FnMut(&Flush) -> bool) {
        let done: Vec<_> = self.flushes.extract_if(.., |flush| which(flush)).collect();
        for flush in done {
            self.complete(flush);
        }
    }

    fn complete(&mut self, Flush { line, drops, .. }: Flush) {
        self.write_back(line);
        // Whether a mere write-back leaves a clean copy is up to the processor.
        if drops || (self.busy_one_in != 0 && self.random.one_in(2)) {
            self.cached.remove(line);
        }
    }

    /// A dirty line goes to the file, whole, and stays as a clean copy.
    fn write_back(&mut self, line: LineOffset) {
        if let Some(cached) = self.cached.get_mut(line)
            && std::mem::take(&mut cached.dirty)
        {
            self.below.write_line(line, &cached.words);
        }
    }

    fn evict(&mut self, line: LineOffset) {
        self.write_back(line);
        self.cached.remove(line);
    }
}
