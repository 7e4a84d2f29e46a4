//! How far the clears of each folder are.

use kv_cache::BlockKey;
use kv_cache::tier::{ClearNumbers, ClearSet, DriveError};
use kv_drive::CarriedOut;
use kv_drive::store::Store;
use kv_drive::volume::Volume;
use rackline::{LocalCache, NodeId};

use super::Gate;

/// How often the agent looks whether nodes ask for a clear, in milliseconds.
const LOOK_MS: u64 = 20;
/// After a commit that failed the next try comes after this time, and then after twice that.
const AGAIN_MS: u64 = 200;
/// The longest such time.
const AGAIN_MS_MAX: u64 = 10_000;

/// What is due in a folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// No write may be under way, and what was written is to be committed.
    Drain,
    /// The pool is swept of what is cleared.
    Sweep(ClearSet),
    /// These blocks are withdrawn. They are removed when their device answers.
    Withdraw(Vec<BlockKey>),
    /// These blocks of the folder are withdrawn and removed.
    Remove(usize, Vec<BlockKey>),
    /// What was noted in folders is made durable.
    Commit,
    /// These requests are answered.
    Answer(Box<ClearNumbers>),
}

#[derive(Debug)]
enum Stage {
    Stop(u64),
    Drain,
    /// The device does not answer: what is known of the folder is withdrawn.
    Silent {
        part: usize,
    },
    Sweep,
    /// `is_whole`: all tables were read when it began.
    Remove {
        part: usize,
        removed: u64,
        is_whole: bool,
    },
    /// Tables are not read. What is known is removed; the rest goes when they are.
    Unread {
        removed: u64,
    },
    Commit {
        removed: u64,
        next_ms: u64,
        wait_ms: u64,
    },
}

#[derive(Debug)]
struct Clearing {
    clears: ClearSet,
    numbers: ClearNumbers,
    stage: Stage,
    /// What was asked for since, and its numbers: carried out next.
    later: Option<(ClearSet, ClearNumbers)>,
    /// The part of the folder whose blocks of `later` are withdrawn next, while this clear waits.
    later_part: usize,
}

impl Clearing {
    /// Takes in what was asked for since. Returns everything that is to be stopped.
    fn add(&mut self, clears: ClearSet, numbers: ClearNumbers) -> ClearSet {
        let (later, last) = self.later.get_or_insert_default();
        later.extend(&clears);
        *last = numbers;
        self.later_part = 0;
        let mut all = self.clears.clone();
        all.extend(later);
        all
    }
}

impl Clearing {
    /// Blocks that a later clear is to remove, while this one waits for its device (AGENT-C4).
    fn withdraw_later(&mut self, volume: &Volume) -> Option<Due> {
        let (later, _) = self.later.as_ref()?;
        let keys = volume.keys_of(self.later_part, |tag| later.has(tag))?;
        self.later_part += 1;
        Some(Due::Withdraw(keys))
    }
}

/// What is known of a folder.
#[derive(Debug, Default)]
struct Folder {
    /// The last requests that were looked at, and carried out but for `clearing`; `None` while its
    /// device does not answer.
    seen: Option<ClearNumbers>,
    clearing: Option<Clearing>,
}

/// Clears of all folders, on the thread that backs up.
#[derive(Debug)]
pub(crate) struct Clears<'a> {
    gate: &'a Gate,
    region: [u64; 2],
    folders: Vec<Folder>,
    answered: Option<ClearNumbers>,
    look_ms: u64,
}

impl<'a> Clears<'a> {
    pub(crate) fn new(gate: &'a Gate, region: [u64; 2], folders: usize) -> Self {
        let folders = (0..folders).map(|_| Folder::default()).collect();
        Self { gate, region, folders, answered: None, look_ms: 0 }
    }

    /// Whether backups have to wait (AGENT-C1). Not for a device that does not answer: nothing is
    /// written to it, and its folder drains when it answers.
    pub(crate) fn drains(&self, store: &Store) -> bool {
        let drains = |it: &Clearing| matches!(it.stage, Stage::Drain | Stage::Sweep);
        let each = self.folders.iter().enumerate();
        let draining = each.filter(|(_, folder)| folder.clearing.as_ref().is_some_and(drains));
        draining.into_iter().any(|(at, _)| store.volume(at).is_some_and(|it| !it.is_silent()))
    }

    /// Whether a folder has a clear to carry out.
    pub(crate) fn are_under_way(&self) -> bool {
        self.folders.iter().any(|folder| folder.clearing.is_some())
    }

    /// The folders that owe a clear, or were not looked at because their devices do not answer: the
    /// first is bit 0. Bit 63 stands for all that have no bit.
    pub(crate) fn owing(&self) -> u64 {
        let owes = |folder: &Folder| folder.clearing.is_some() || folder.seen.is_none();
        let owing = self.folders.iter().enumerate().filter(|(_, folder)| owes(folder));
        owing.fold(0, |bits, (at, _)| bits | 1 << at.min(63))
    }

    /// What to do next; `None` when nothing is due.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub(crate) fn next(
        &mut self,
        cache: &LocalCache<'_>,
        store: &Store,
        now_ms: u64,
    ) -> Result<Option<Due>, DriveError> {
        if now_ms >= self.look_ms {
            self.look_ms = now_ms + LOOK_MS;
            self.look(cache, store)?;
        }
        if let Some(due) = (0..self.folders.len()).find_map(|at| self.advance(store, at, now_ms)) {
            return Ok(Some(due));
        }
        let numbers = self.carried_out();
        let is_new = numbers.is_some() && self.answered != numbers;
        self.answered = numbers.or(self.answered);
        Ok(numbers.filter(|_| is_new).map(|numbers| Due::Answer(Box::new(numbers))))
    }

    /// Looks what nodes asked for (AGENT-C2).
    fn look(&mut self, cache: &LocalCache<'_>, store: &Store) -> Result<(), DriveError> {
        for (at, folder) in self.folders.iter_mut().enumerate() {
            let Some(volume) = store.volume(at) else { continue };
            if let Some(clearing) = &mut folder.clearing {
                // A clear may take long. The next one is not to wait for it, nor to lose its line.
                let since = clearing.later.as_ref().map_or(clearing.numbers, |later| later.1);
                let asked = cache.clears_since(&since)?;
                if !asked.clears.is_empty() {
                    warn_of_missed(at, &asked.missed);
                    self.gate.stop(at, clearing.add(asked.clears, asked.numbers));
                }
                continue;
            }
            let is_first = folder.seen.is_none();
            let since = folder.seen.unwrap_or_else(|| {
                let CarriedOut { region, numbers } = volume.carried_out();
                if region == self.region { numbers } else { ClearNumbers::default() }
            });
            let asked = cache.clears_since(&since)?;
            folder.seen = Some(asked.numbers);
            if asked.clears.is_empty() {
                if is_first {
                    self.gate.stop(at, ClearSet::default());
                }
                continue;
            }
            warn_of_missed(at, &asked.missed);
            let stage = Stage::Stop(self.gate.stop(at, asked.clears.clone()));
            folder.seen = Some(since);
            let (clears, numbers) = (asked.clears, asked.numbers);
            folder.clearing = Some(Clearing { clears, numbers, stage, later: None, later_part: 0 });
        }
        Ok(())
    }

    /// The next step of a folder; `None` when it waits, or has nothing to do.
    fn advance(&mut self, store: &Store, at: usize, now_ms: u64) -> Option<Due> {
        let folder = &mut self.folders[at];
        let clearing = folder.clearing.as_mut()?;
        let volume = store.volume(at)?;
        match &mut clearing.stage {
            Stage::Stop(number) => {
                if !self.gate.is_followed(*number) {
                    return None;
                }
                clearing.stage = Stage::Drain;
                Some(Due::Drain)
            }
            Stage::Drain if volume.is_silent() => {
                clearing.stage = Stage::Silent { part: 0 };
                self.advance(store, at, now_ms)
            }
            Stage::Drain => Some(Due::Drain),
            Stage::Silent { part } => {
                if let Some(keys) = volume.keys_of(*part, |tag| clearing.clears.has(tag)) {
                    *part += 1;
                    return Some(Due::Withdraw(keys));
                }
                if !volume.is_silent() {
                    clearing.stage = Stage::Drain;
                    return None;
                }
                clearing.withdraw_later(&volume)
            }
            Stage::Sweep => {
                let is_whole = volume.is_scanned();
                clearing.stage = Stage::Remove { part: 0, removed: 0, is_whole };
                Some(Due::Sweep(clearing.clears.clone()))
            }
            Stage::Remove { part, removed, is_whole } => {
                if let Some(keys) = volume.keys_of(*part, |tag| clearing.clears.has(tag)) {
                    *part += 1;
                    *removed += keys.len() as u64;
                    return Some(Due::Remove(at, keys));
                }
                let removed = *removed;
                if !*is_whole {
                    // AGENT-C4. The removals become durable with the next commit.
                    tracing::warn!(
                        folder = at,
                        removed,
                        "the folder owes a clear until all its tables are read; what is known of it \
                         is removed"
                    );
                    clearing.stage = Stage::Unread { removed };
                    return Some(Due::Commit);
                }
                let (region, numbers) = (self.region, clearing.numbers);
                let next_ms = now_ms + AGAIN_MS;
                clearing.stage = Stage::Commit { removed, next_ms, wait_ms: AGAIN_MS };
                volume.carry_out(CarriedOut { region, numbers });
                Some(Due::Commit)
            }
            Stage::Unread { removed } => {
                if volume.is_scanned() {
                    // Those that came with the tables.
                    let removed = *removed;
                    clearing.stage = Stage::Remove { part: 0, removed, is_whole: true };
                    return None;
                }
                clearing.withdraw_later(&volume)
            }
            Stage::Commit { removed, next_ms, wait_ms } => {
                let carried_out = volume.carried_out();
                if (carried_out.region, carried_out.numbers) == (self.region, clearing.numbers) {
                    tracing::info!(
                        folder = at,
                        removed,
                        "carried out a clear that nodes asked for"
                    );
                    folder.seen = Some(clearing.numbers);
                    folder.clearing = clearing.later.take().map(|(clears, numbers)| {
                        let stage = Stage::Stop(self.gate.stop(at, clears.clone()));
                        Clearing { clears, numbers, stage, later: None, later_part: 0 }
                    });
                    if folder.clearing.is_none() {
                        self.gate.stop(at, ClearSet::default());
                    }
                    return None;
                }
                if now_ms < *next_ms || volume.is_silent() {
                    return clearing.withdraw_later(&volume);
                }
                *wait_ms = (*wait_ms * 2).min(AGAIN_MS_MAX);
                *next_ms = now_ms + *wait_ms;
                Some(Due::Commit)
            }
        }
    }

    /// What was written before is committed, but for folders that are `silent`: the next step of the
    /// others may begin.
    pub(crate) fn drained(&mut self, silent: &[usize]) {
        for (at, folder) in self.folders.iter_mut().enumerate() {
            let Some(clearing) = &mut folder.clearing else { continue };
            if matches!(clearing.stage, Stage::Drain) && !silent.contains(&at) {
                clearing.stage = Stage::Sweep;
            }
        }
    }

    /// The last requests of all nodes that all folders have carried out (AGENT-C4). `None` before
    /// each of them was looked at.
    fn carried_out(&self) -> Option<ClearNumbers> {
        let all: Option<Vec<_>> = self.folders.iter().map(|folder| folder.seen).collect();
        all?.into_iter().reduce(|some, others| {
            let mut least = some;
            least.iter_mut().zip(others).for_each(|(a, b)| *a = b.min(*a));
            least
        })
    }
}

/// AGENT-C3.
fn warn_of_missed(folder: usize, missed: &[NodeId]) {
    if missed.is_empty() {
        return;
    }
    let nodes: Vec<_> = missed.iter().map(ToString::to_string).collect();
    tracing::warn!(
        folder,
        nodes = nodes.join(", "),
        "the folder missed requests to clear that are not known any more: all its blocks are removed"
    );
}
