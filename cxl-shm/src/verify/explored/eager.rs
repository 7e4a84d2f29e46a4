//! Operations that need not be interleaved with those of others.
//!
//! An operation is carried out at once, before anybody else acts, when no operation of another
//! task and no event of a cache that can happen before it, in any run, depends on it, and the
//! task's view stays the same. Every run is then equal, up to the order of independent
//! operations, to one in which it is carried out at once. No state with such an operation is ever
//! kept, and chains of them end, so none is put off for ever.
//!
//! Why each of them is independent is said beside it. "Never" means: by no task of the model, in
//! any state ([`footprint`](super::footprint)).

use super::footprint::Tasks;
use super::hosts::{DEAD, Hosts, State};
use super::op::Op;
use crate::units::WordOffset;
use crate::verify::simulated::CacheMode;

/// What may die.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mortal {
    /// Tasks that may yet die by themselves.
    pub(super) tasks: Tasks,
    /// Bit per host: it may yet lose power.
    pub(super) hosts: u32,
}

impl Hosts {
    /// Whether `op` of `task` is independent of everything else that can happen before it.
    pub(super) fn is_independent(
        &self,
        state: &State,
        task: usize,
        op: Op,
        position: Option<usize>,
        mortal: Mortal,
    ) -> bool {
        let me: Tasks = 1 << task;
        let host = self.ground.host_of[task];
        match op {
            Op::Load(at) => self.is_load_independent(state, task, at, position),
            Op::Store(..) | Op::StoreLine(..) => {
                self.is_store_independent(state, task, position, mortal)
            }
            // Sticky: takes effect at the fence only. Adversarial: the earlier it is issued, the
            // earlier it may take effect, which leaves the copies that a later issue leaves, and
            // more.
            Op::Flush(_) => true,
            Op::Fence => self.flushed_by(state, task).into_iter().all(|(_, position)| {
                let line = self.line(state, position);
                let used = self.ground.line_use(position);
                let neighbours = used.all() & self.ground.tasks_of[host] & !me;
                let others = (used.loads | used.stores) & !self.ground.tasks_of[host];
                // A clean copy goes, or copies older than the flush cease to be possible: only
                // this host's loads could tell, and its other tasks never touch the line.
                // A dirty line is written: nobody tells when no other host touches it.
                let is_clean = line.copies[host].dirty.is_none();
                let is_ours = others == 0 && mortal.hosts >> host & 1 == 0;
                neighbours == 0 && (is_clean || is_ours)
            }),
            Op::ReadBack(lines) => self.written(lines).into_iter().all(|(_, position)| {
                let copy = &self.line(state, position).copies[host];
                let used = self.ground.line_use(position);
                let foreign = used.stores & !self.ground.tasks_of[host];
                // It does nothing, or fetches what no other host ever changes.
                copy.posted.is_empty()
                    && match self.ground.memory.caches {
                        CacheMode::Adversarial => true,
                        CacheMode::Sticky => {
                            foreign == 0 || copy.dirty.is_some() || !copy.clean.is_empty()
                        }
                    }
            }),
            // Nobody else ever stores, or ever looks.
            Op::MemoryLoad(_) => {
                position.is_none_or(|at| self.ground.word_use(at).stores & !me == 0)
            }
            Op::MemoryStore(..) | Op::MemoryExchange { .. } => position.is_some_and(|at| {
                let used = self.ground.word_use(at);
                (used.loads | used.stores) & !me == 0
            }),
            // The search treats a choice by itself.
            Op::Choose(_) | Op::Pause => false,
            Op::MemoryClear => self.own_words(host).into_iter().all(|(_, at)| {
                let used = self.ground.word_use(at);
                (used.loads | used.stores) & !me == 0
            }),
            Op::HasDied(other) => {
                let other_host = self.ground.host_of[other];
                let may_die = mortal.tasks >> other & 1 == 1 || mortal.hosts >> other_host & 1 == 1;
                state[other] == DEAD || !may_die
            }
        }
    }

    fn is_load_independent(
        &self,
        state: &State,
        task: usize,
        at: WordOffset,
        position: Option<usize>,
    ) -> bool {
        let Some(position) = position else {
            // Never written.
            return true;
        };
        let host = self.ground.host_of[task];
        let word = at.index_in_line();
        let used = self.ground.line_use(position);
        if used.word_stores[word] & !(1 << task) != 0 {
            return false;
        }
        // Nobody else ever stores the word.
        let line = self.line(state, position);
        let copy = &line.copies[host];
        let foreign = used.stores & !self.ground.tasks_of[host];
        if copy.dirty.is_some() {
            // It hits, and unless others write the line, what it hits stays so when written back.
            return foreign == 0;
        }
        // Copies everywhere agree on the word, so the answer is the same at any time; and the load
        // pushes no posted write, nor fetches other words of the line, which may change.
        let changes_nothing = match self.ground.memory.caches {
            CacheMode::Adversarial => copy.posted.is_empty(),
            CacheMode::Sticky => !copy.clean.is_empty() || foreign == 0 && copy.posted.is_empty(),
        };
        changes_nothing && line.agrees_on(&self.contents, word)
    }

    fn is_store_independent(
        &self,
        state: &State,
        task: usize,
        position: Option<usize>,
        mortal: Mortal,
    ) -> bool {
        let Some(position) = position else {
            return false;
        };
        let host = self.ground.host_of[task];
        let (me, host_tasks) = (1 << task, self.ground.tasks_of[host]);
        let used = self.ground.line_use(position);
        let line = self.line(state, position);
        let copy = &line.copies[host];
        let host_may_die = mortal.hosts >> host & 1 == 1;
        if used.all() & !me == 0 && !host_may_die {
            // Nobody else ever touches the line.
            return true;
        }
        // Nobody else of this host ever touches the line, and no other host writes it: the store
        // goes into our cache, and nobody sees it before the line is written.
        let is_hidden = used.all() & host_tasks & !me == 0 && used.stores & !host_tasks == 0;
        // The line is clean: it could not have been written without this store. Where nothing is
        // written by itself it may be dirty, unless power may be lost.
        let is_first =
            copy.dirty.is_none() || self.ground.memory.caches == CacheMode::Sticky && !host_may_die;
        // It neither pushes posted writes nor completes a flush.
        let pushes = !copy.posted.is_empty() || line.is_flushed_by(task);
        // A process that dies before the store leaves another cache than one that dies after it.
        let dies = mortal.tasks & me != 0;
        is_hidden && is_first && !pushes && !dies
    }
}
