//! One host: its cache, what it is flushing, what it has posted, and its own DRAM.

use super::Random;
use super::actor::Actor;
use super::device::{Device, DeviceImage, bytes_of, splice};
use super::failed_memory::FailedLine;
use super::line_map::LineMap;
use super::posted::Posted;
use crate::fabric::LineWords;
use crate::units::{LineOffset, LineRange, PAGE_BYTES, WordOffset};

#[derive(Clone, Copy, Debug)]
struct Cached {
    words: LineWords,
    dirty: bool,
}

/// A flush that was issued and is not known to be complete. It belongs to an actor because only
/// that one's fence waits for it.
#[derive(Clone, Copy, Debug)]
struct Flush {
    actor: Actor,
    line: LineOffset,
}

/// State of one host. Every method that can move a line takes the device.
#[derive(Debug)]
pub(super) struct Host {
    /// The words of [`HostMemory`](crate::fabric::HostMemory).
    pub(super) memory: Vec<u64>,
    posted_writes: bool,
    cached: LineMap<Cached>,
    dirty: LineMap<()>,
    /// Pages that a processor of this host touched: prefetchers do not cross pages.
    pages: LineMap<()>,
    flushes: Vec<Flush>,
    posted: Posted,
    warm: Option<Warm>,
}

/// Lines that were fetched all at once, kept as what the device held at that moment: a copy of each
/// in the cache would take longer than most runs do.
#[derive(Debug)]
struct Warm {
    lines: LineRange,
    image: DeviceImage,
    /// Those that are not among them any more: they left the cache, or were never in it.
    gone: LineMap<()>,
}

impl Warm {
    fn covers(&self, line: LineOffset) -> bool {
        (self.lines.start().bytes()..self.lines.end_bytes()).contains(&line.bytes())
    }

    fn line(&self, line: LineOffset) -> Option<LineWords> {
        (self.covers(line) && !self.gone.contains(line)).then(|| self.image.line(line))
    }
}

impl Host {
    pub(super) fn new(posted_writes: bool) -> Self {
        Self {
            memory: Vec::new(),
            posted_writes,
            cached: LineMap::default(),
            dirty: LineMap::default(),
            pages: LineMap::default(),
            flushes: Vec::new(),
            posted: Posted::default(),
            warm: None,
        }
    }

    pub(super) fn load(&mut self, device: &mut Device, at: WordOffset) -> u64 {
        self.line(device, at.line()).words[at.index_in_line()]
    }

    /// Stores neighbouring words of a line, the first of them word `first`.
    pub(super) fn store_words(
        &mut self,
        device: &mut Device,
        actor: Actor,
        line: LineOffset,
        first: usize,
        words: &[u64],
    ) {
        // A flush is ordered with the later stores of its actor to the same line.
        self.complete_flushes(device, |flush| flush.actor == actor && flush.line == line);
        let cached = self.line(device, line);
        cached.words[first..first + words.len()].copy_from_slice(words);
        if !std::mem::replace(&mut cached.dirty, true) {
            self.dirty.get_or_insert_with(line, || ());
        }
    }

    /// The words of a line.
    pub(super) fn load_line(&mut self, device: &mut Device, line: LineOffset) -> &LineWords {
        &self.line(device, line).words
    }

    /// Issues flushes. Write-back and invalidation are the same instruction.
    pub(super) fn flush(&mut self, actor: Actor, lines: LineRange) {
        self.flushes.extend(lines.iter().map(|line| Flush { actor, line }));
    }

    /// The lines whose flushes a fence of `actor` waits for.
    pub(super) fn take_flushes(&mut self, actor: Actor) -> Vec<LineOffset> {
        let mine = self.flushes.extract_if(.., |flush| flush.actor == actor);
        mine.map(|flush| flush.line).collect()
    }

    /// How the line fails when a processor of this host asks for it. What the cache has is good.
    pub(super) fn failure(&mut self, device: &mut Device, line: LineOffset) -> Option<FailedLine> {
        if self.holds(line) || device.failed(line).is_none() {
            return None;
        }
        // A read does not overtake this host's own writes to the line: it pushes them.
        self.posted.land_all(device, line);
        device.failed(line)
    }

    /// A load of the line that is only made to be answered by the device.
    pub(super) fn read_back(&mut self, device: &mut Device, line: LineOffset) {
        self.line(device, line);
    }

    /// A DMA engine writes part of a line past the caches. A copy in this host's cache is snooped:
    /// written back when dirty, then dropped.
    pub(super) fn dma_write_bypass(
        &mut self,
        device: &mut Device,
        line: LineOffset,
        start: usize,
        part: &[u8],
    ) {
        self.complete_flush(device, line);
        self.posted.land_all(device, line);
        let mut words = device.peek(line);
        splice(&mut words, start, part);
        device.write(line, &words);
    }

    /// A DMA engine writes part of a line into this host's cache (DDIO).
    pub(super) fn dma_write_allocate(
        &mut self,
        device: &mut Device,
        line: LineOffset,
        start: usize,
        part: &[u8],
    ) {
        let cached = self.fetch(device, line);
        splice(&mut cached.words, start, part);
        cached.dirty = true;
        self.dirty.get_or_insert_with(line, || ());
    }

    /// A DMA engine reads a line from the device. Only a dirty copy of this host is snooped.
    pub(super) fn dma_read_bypass(&mut self, device: &mut Device, line: LineOffset) -> [u8; 64] {
        self.write_back(device, line);
        self.posted.land_all(device, line);
        bytes_of(&device.read(line))
    }

    /// A DMA engine reads a line through this host's cache, which answers when it can, however
    /// old its copy is. Nothing is allocated.
    pub(super) fn dma_read_snoop(&mut self, device: &mut Device, line: LineOffset) -> [u8; 64] {
        if self.holds(line) {
            bytes_of(&self.fetch(device, line).words)
        } else {
            self.dma_read_bypass(device, line)
        }
    }

    /// Loses power: any subset of the dirty and posted lines reaches the device, nothing else of
    /// the host survives.
    pub(super) fn crash(&mut self, device: &mut Device, random: &mut Random) {
        // Drawn once, so that "all" and "nothing" are as likely as something between.
        let survive_of_4 = random.below(5);
        let mut survives = || random.below(4) < survive_of_4;
        self.posted.lose(device, &mut survives);
        for (line, ()) in self.dirty.take() {
            if survives()
                && let Some(cached) = self.cached.get(line)
            {
                device.write(line, &cached.words);
            }
        }
        self.cached.take();
        self.warm = None;
        self.pages.take();
        self.flushes.clear();
        self.memory.fill(0);
    }

    /// An actor dies: each of its unfenced flushes completes or never took place.
    pub(super) fn forget_actor(&mut self, device: &mut Device, random: &mut Random, actor: Actor) {
        self.complete_flushes(device, |flush| flush.actor == actor && random.one_in(2));
        self.flushes.retain(|flush| flush.actor != actor);
    }

    pub(super) fn dirty_lines(&self) -> Vec<LineOffset> {
        let mut lines: Vec<_> = self.dirty.lines().collect();
        lines.sort_unstable();
        lines
    }

    /// Whether a write of this host to the line has not reached the device.
    pub(super) fn holds_writes_to(&self, line: LineOffset) -> bool {
        self.dirty.contains(line) || self.posted.contains(line)
    }

    // What a cache may do by itself. Each says whether there was anything to do.

    pub(super) fn pick_dirty(&self, random: &mut Random) -> Option<LineOffset> {
        self.dirty.pick(random)
    }

    pub(super) fn pick_cached(&self, random: &mut Random) -> Option<LineOffset> {
        self.cached.pick(random)
    }

    pub(super) fn pick_posted(&self, random: &mut Random) -> Option<LineOffset> {
        self.posted.pick(random)
    }

    pub(super) fn pick_in_touched_page(&self, random: &mut Random) -> Option<LineOffset> {
        let page = self.pages.pick(random)?;
        LineOffset::new(page.bytes() + random.below(PAGE_BYTES / 64) * 64)
    }

    /// Writes a dirty line back and keeps it clean.
    pub(super) fn write_back(&mut self, device: &mut Device, line: LineOffset) -> bool {
        if self.dirty.remove(line).is_none() {
            return false;
        }
        let cached = self.cached.get_mut(line).expect("a dirty line is cached");
        cached.dirty = false;
        let words = cached.words;
        if self.posted_writes {
            self.posted.push(line, words);
        } else {
            device.write(line, &words);
        }
        true
    }

    /// Drops a clean line.
    pub(super) fn evict(&mut self, line: LineOffset) -> bool {
        if self.dirty.contains(line) || !self.holds(line) {
            return false;
        }
        self.cached.remove(line);
        self.left(line);
        true
    }

    /// Fetches a line of a page that a processor of this host touched.
    pub(super) fn prefetch(&mut self, device: &mut Device, line: LineOffset) -> bool {
        let may = self.pages.contains(page_of(line))
            && !self.holds(line)
            // Nobody is told of a failure that nobody asked for.
            && device.failed(line).is_none();
        if may {
            self.fetch(device, line);
        }
        may
    }

    /// Fetches all of `lines` that are not cached, except for those whose fetch would push a write
    /// of this host.
    pub(super) fn warm(&mut self, device: &mut Device, lines: LineRange) {
        if self.warm.as_ref().is_none_or(|warm| warm.lines != lines) {
            let mut gone = LineMap::default();
            for line in self.posted.lines() {
                gone.get_or_insert_with(line, || ());
            }
            self.warm = Some(Warm { lines, image: device.image(0), gone });
            return;
        }
        let gone = self.warm.as_mut().map(|warm| warm.gone.take()).unwrap_or_default();
        for (line, ()) in gone {
            if self.posted.contains(line) {
                self.left(line);
            } else {
                self.cached
                    .get_or_insert_with(line, || Cached { words: device.read(line), dirty: false });
                // It is in the cache proper from now on, and what was fetched with the others is
                // old.
                self.left(line);
            }
        }
    }

    /// A line has left the cache.
    fn left(&mut self, line: LineOffset) {
        if let Some(warm) = &mut self.warm
            && warm.covers(line)
        {
            warm.gone.get_or_insert_with(line, || ());
        }
    }

    /// Completes one unfenced flush and says of which line.
    pub(super) fn complete_any_flush(
        &mut self,
        device: &mut Device,
        random: &mut Random,
    ) -> Option<LineOffset> {
        let line = self.flushes.swap_remove(random.index(self.flushes.len())?).line;
        self.complete_flush(device, line);
        Some(line)
    }

    /// Lets the oldest posted write of the line reach the device.
    pub(super) fn land_one(&mut self, device: &mut Device, line: LineOffset) -> bool {
        self.posted.land_one(device, line)
    }

    /// The line as a processor of this host sees it.
    fn line(&mut self, device: &mut Device, line: LineOffset) -> &mut Cached {
        self.pages.get_or_insert_with(page_of(line), || ());
        self.fetch(device, line)
    }

    fn fetch(&mut self, device: &mut Device, line: LineOffset) -> &mut Cached {
        let early = self.warm.as_ref().and_then(|warm| warm.line(line));
        if !self.cached.contains(line)
            && let Some(words) = early
        {
            return self.cached.get_or_insert_with(line, || Cached { words, dirty: false });
        }
        if !self.cached.contains(line) {
            // A read does not overtake this host's own writes to the line: it pushes them.
            self.posted.land_all(device, line);
        }
        self.cached.get_or_insert_with(line, || Cached { words: device.read(line), dirty: false })
    }

    /// Completes a flush: the line leaves the cache.
    pub(super) fn complete_flush(&mut self, device: &mut Device, line: LineOffset) {
        self.write_back(device, line);
        self.cached.remove(line);
        self.left(line);
    }

    /// Whether the line is cached.
    fn holds(&self, line: LineOffset) -> bool {
        let early = self.warm.as_ref().and_then(|warm| warm.line(line));
        self.cached.contains(line) || early.is_some()
    }

    fn complete_flushes(&mut self, device: &mut Device, mut which: impl FnMut(&Flush) -> bool) {
        if self.flushes.is_empty() {
            return;
        }
        let done: Vec<_> = self.flushes.extract_if(.., |flush| which(flush)).collect();
        for flush in done {
            self.complete_flush(device, flush.line);
        }
    }
}

pub(super) fn page_of(line: LineOffset) -> LineOffset {
    LineOffset::new(line.bytes() - line.bytes() % PAGE_BYTES)
        .expect("a page starts at a multiple of 64")
}
