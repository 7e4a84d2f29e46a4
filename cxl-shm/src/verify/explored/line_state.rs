//! One line everywhere: on the device, in every host's cache, on its way between the two.
//!
//! A busy cache is not modelled by events of its own but by what they make possible. A host that
//! holds no dirty copy may hold a clean one of any age since its last refresh took effect, because
//! a prefetcher may have fetched it at any time: `clean` is the set of contents that such a copy
//! may have. What the device holds is always possible too (fetched just now) and not in the set.
//! A load that answers `v` leaves those copies in the set that say `v`.

use super::intern::Contents;
use crate::verify::simulated::CacheMode;

/// A line as one host has it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Copy {
    /// The content of a dirty copy. There is no clean one then.
    pub(super) dirty: Option<u32>,
    /// Adversarial: contents besides the device's that a clean copy may have, sorted. Sticky:
    /// the clean copy, if there is one.
    pub(super) clean: Vec<u32>,
    /// Left the cache, not yet at the device; the oldest first.
    pub(super) posted: Vec<u32>,
}

/// A flush that was issued and not yet fenced.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Flush {
    pub(super) task: usize,
    /// What `clean` will be at most after the fence: fetched since the flush was issued.
    pub(super) since: Vec<u32>,
}

/// A line everywhere.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct LineState {
    pub(super) device: u32,
    pub(super) copies: Vec<Copy>,
    pub(super) flushes: Vec<Flush>,
}

/// What is the same for all states of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) caches: CacheMode,
    pub(super) posted_writes: bool,
    /// The host of each task.
    pub(super) host_of: &'a [usize],
    /// Bit per host: it loads or stores the line.
    pub(super) users: u32,
}

impl LineState {
    pub(super) fn new(hosts: usize, device: u32) -> Self {
        Self { device, copies: vec![Copy::default(); hosts], flushes: Vec::new() }
    }

    /// Every way in which `host` can load `word`.
    pub(super) fn load(
        &self,
        terms: Terms<'_>,
        contents: &Contents,
        host: usize,
        word: usize,
    ) -> Vec<(u64, Self)> {
        let copy = &self.copies[host];
        if let Some(dirty) = copy.dirty {
            return vec![(contents.word(dirty, word), self.clone())];
        }
        let mut answers: Vec<(u64, Self)> = Vec::new();
        for hit in &copy.clean {
            let value = contents.word(*hit, word);
            if answers.iter().all(|(known, _)| *known != value) {
                let mut after = self.clone();
                after.copies[host].clean.retain(|other| contents.word(*other, word) == value);
                answers.push((value, after));
            }
        }
        let hits_are_all = match terms.caches {
            CacheMode::Sticky => !copy.clean.is_empty(),
            CacheMode::Adversarial => false,
        };
        if !hits_are_all {
            let missed = self.fetched(terms, host);
            let value = contents.word(missed.device, word);
            // Without posted writes a miss that answers like a hit leaves what the hit leaves: the
            // device is always possible.
            if copy.posted.is_empty() && answers.iter().any(|(known, _)| *known == value) {
                return answers;
            }
            answers.push((value, missed));
        }
        answers
    }

    /// The line after `host` fetched it: its own posted writes go first.
    fn fetched(&self, terms: Terms<'_>, host: usize) -> Self {
        let mut after = self.clone();
        after.land_all(terms, host);
        let copy = &mut after.copies[host];
        copy.clean.clear();
        if terms.caches == CacheMode::Sticky {
            copy.clean.push(after.device);
        }
        after
    }

    /// Every way in which `task` on `host` can store to `word`.
    pub(super) fn store(
        &self,
        terms: Terms<'_>,
        contents: &mut Contents,
        (task, host): (usize, usize),
        word: usize,
        value: u64,
    ) -> Vec<Self> {
        let mut before = self.clone();
        // A flush is ordered with the later stores of its task to the same line.
        before.complete_flush(terms, task, host);
        let dirtied = |state: &Self, base: u32, contents: &mut Contents| {
            let mut after = state.clone();
            let copy = &mut after.copies[host];
            copy.dirty = Some(contents.with_word(base, word, value));
            copy.clean.clear();
            after
        };
        if let Some(dirty) = before.copies[host].dirty {
            return vec![dirtied(&before, dirty, contents)];
        }
        let mut ways: Vec<Self> = Vec::new();
        for hit in before.copies[host].clean.clone() {
            ways.push(dirtied(&before, hit, contents));
        }
        if ways.is_empty() || terms.caches == CacheMode::Adversarial {
            let fetched = before.fetched(terms, host);
            let way = dirtied(&fetched, fetched.device, contents);
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        ways
    }

    /// `task` on `host` stores all of it.
    pub(super) fn store_whole(&mut self, terms: Terms<'_>, (task, host): (usize, usize), to: u32) {
        self.complete_flush(terms, task, host);
        let copy = &mut self.copies[host];
        copy.dirty = Some(to);
        copy.clean.clear();
    }

    /// `task` issues a flush.
    pub(super) fn issue_flush(&mut self, task: usize) {
        match self.flushes.binary_search_by_key(&task, |flush| flush.task) {
            // It takes effect some time after the later one too.
            Ok(place) => self.flushes[place].since.clear(),
            Err(place) => self.flushes.insert(place, Flush { task, since: Vec::new() }),
        }
    }

    /// `task` on `host` fences: its flush of this line, if any, has taken effect.
    pub(super) fn complete_flush(&mut self, terms: Terms<'_>, task: usize, host: usize) {
        let Ok(place) = self.flushes.binary_search_by_key(&task, |flush| flush.task) else {
            return;
        };
        let flush = self.flushes.remove(place);
        if self.copies[host].dirty.is_some() {
            self.write_back(terms, host);
            self.copies[host].clean.clear();
            return;
        }
        match terms.caches {
            CacheMode::Adversarial => self.copies[host].clean.retain(|c| flush.since.contains(c)),
            CacheMode::Sticky => self.copies[host].clean.clear(),
        }
    }

    /// The dirty copy of `host` is written and stays as a clean one.
    pub(super) fn write_back(&mut self, terms: Terms<'_>, host: usize) {
        let copy = &mut self.copies[host];
        let Some(dirty) = copy.dirty.take() else {
            return;
        };
        copy.clean = vec![dirty];
        if terms.posted_writes {
            copy.posted.push(dirty);
        } else {
            self.write_device(terms, host, dirty);
        }
    }

    /// The oldest posted write of `host` arrives.
    pub(super) fn land_one(&mut self, terms: Terms<'_>, host: usize) {
        if !self.copies[host].posted.is_empty() {
            let content = self.copies[host].posted.remove(0);
            self.write_device(terms, host, content);
        }
    }

    fn land_all(&mut self, terms: Terms<'_>, host: usize) {
        if let Some(last) = std::mem::take(&mut self.copies[host].posted).last() {
            self.write_device(terms, host, *last);
        }
    }

    /// Every way in which a load of the line that is only made to be answered by the device ends.
    pub(super) fn read_back(&self, terms: Terms<'_>, host: usize) -> Vec<Self> {
        let copy = &self.copies[host];
        if copy.dirty.is_some() {
            return vec![self.clone()];
        }
        match terms.caches {
            CacheMode::Sticky if !copy.clean.is_empty() => vec![self.clone()],
            CacheMode::Sticky => vec![self.fetched(terms, host)],
            // Which copy answers is of no interest to anybody.
            CacheMode::Adversarial if copy.posted.is_empty() => vec![self.clone()],
            CacheMode::Adversarial if copy.clean.is_empty() => vec![self.fetched(terms, host)],
            CacheMode::Adversarial => vec![self.clone(), self.fetched(terms, host)],
        }
    }

    /// Every way in which the line can be after `host` lost power: a posted or dirty write has
    /// arrived, or not. Posted writes are lost from the end.
    pub(super) fn crash(&self, terms: Terms<'_>, host: usize) -> Vec<Self> {
        let copy = &self.copies[host];
        let mut survivors = vec![None];
        survivors.extend(copy.posted.iter().chain(&copy.dirty).copied().map(Some));
        let mut ways: Vec<Self> = Vec::new();
        for survivor in survivors {
            let mut after = self.clone();
            after.copies[host] = Copy::default();
            after.flushes.retain(|flush| terms.host_of[flush.task] != host);
            if let Some(content) = survivor {
                after.write_device(terms, host, content);
            }
            if !ways.contains(&after) {
                ways.push(after);
            }
        }
        ways
    }

    /// `task` dies; what it had not fenced need never happen.
    pub(super) fn forget_task(&mut self, task: usize) {
        self.flushes.retain(|flush| flush.task != task);
    }

    /// Whether every copy that exists anywhere says the same in `word`.
    pub(super) fn agrees_on(&self, contents: &Contents, word: usize) -> bool {
        let value = contents.word(self.device, word);
        let copies = self.copies.iter();
        let all = copies.flat_map(|copy| copy.dirty.iter().chain(&copy.clean).chain(&copy.posted));
        all.copied().all(|content| contents.word(content, word) == value)
    }

    pub(super) fn is_flushed_by(&self, task: usize) -> bool {
        self.flushes.iter().any(|flush| flush.task == task)
    }

    fn write_device(&mut self, terms: Terms<'_>, by: usize, content: u32) {
        let old = std::mem::replace(&mut self.device, content);
        if terms.caches == CacheMode::Sticky || old == content {
            self.forget_what_the_device_says(terms);
            return;
        }
        // Any host that could fetch the line before this write may have done so.
        for host in 0..self.copies.len() {
            let copy = &mut self.copies[host];
            let can_have_fetched = host != by
                && terms.users >> host & 1 == 1
                && copy.dirty.is_none()
                && copy.posted.is_empty();
            if can_have_fetched {
                insert(&mut copy.clean, old);
                let flushes = self.flushes.iter_mut();
                for flush in flushes.filter(|flush| terms.host_of[flush.task] == host) {
                    insert(&mut flush.since, old);
                }
            }
        }
        self.forget_what_the_device_says(terms);
    }

    /// One form for equal states: a copy that says what the device says could be fetched anew.
    fn forget_what_the_device_says(&mut self, terms: Terms<'_>) {
        if terms.caches == CacheMode::Adversarial {
            let device = self.device;
            // Not so while writes are posted: to fetch anew would push them.
            for copy in self.copies.iter_mut().filter(|copy| copy.posted.is_empty()) {
                copy.clean.retain(|content| *content != device);
            }
            for flush in &mut self.flushes {
                flush.since.retain(|content| *content != device);
            }
        }
    }
}

fn insert(sorted: &mut Vec<u32>, content: u32) {
    if let Err(place) = sorted.binary_search(&content) {
        sorted.insert(place, content);
    }
}
