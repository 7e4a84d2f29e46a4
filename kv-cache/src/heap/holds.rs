//! What this host says of blocks that it holds or has used: its reader words, under the heap lock
//! (EVICT-H4).

use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::PublishBatch;
use cxl_shm::host::HolderToken;
use cxl_shm::host::ProcessSlot;
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use super::LockedHeap;
use crate::broken::{Rule, is_broken};
use crate::format::{Handle, ReaderWord, tick_of};

/// Holds that are taken, released or dropped under one hold of the heap lock: what keeps the lock
/// for some tenths of a millisecond, as a batch of evictions does.
pub(crate) const HOLDS_AT_ONCE: usize = 1024;
/// Reader words that are made to agree with the counts under one hold of the heap lock.
const CHECKED_MAX: u64 = 4096;

/// A hold that its process gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    pub(crate) holder: HolderToken,
    pub(crate) handle: Handle,
}

/// Why a hold is not counted, and its reader word not published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotWritten {
    /// The region has no such descriptor.
    Malformed,
    /// The processes of this host hold as many blocks as there is room for.
    TooMany {
        /// Most holds of a host.
        most: usize,
    },
}

impl<B: Backend> LockedHeap<'_, B> {
    /// Counts holds of this process and publishes their reader words (EVICT-H4). The caller gives
    /// at most [`HOLDS_AT_ONCE`].
    pub(crate) fn write_holds(
        &mut self,
        handles: &[Handle],
        hold_ms: u64,
    ) -> Vec<Result<(), NotWritten>> {
        let process = self.member.process();
        let mut batch = PublishBatch::new(self.fabric());
        let reader_word = |handle: &Handle| {
            if self.areas.segment_of(*handle).is_none() {
                return Err(NotWritten::Malformed);
            }
            if !self.holds.add(process, *handle) {
                return Err(NotWritten::TooMany { most: self.holds.capacity() });
            }
            let reader_word = self.reader_words.own(self.fabric(), handle.owner(), handle.slot());
            let word = self.reader_words.word(handle.owner(), handle.slot());
            batch.word(word, reader_word.hold(hold_ms).word());
            Ok(())
        };
        let outcomes = handles.iter().map(reader_word).collect();
        crash::reach(CrashPoint::HoldCounted);
        // EVICT-H1: before the look.
        batch.publish();
        crash::reach(CrashPoint::HoldWritten);
        outcomes
    }

    /// Carries out what holders gave up, at most [`HOLDS_AT_ONCE`]. Returns how many.
    pub(crate) fn release_holds(&mut self, releases: &[Release]) -> u64 {
        for Release { holder, handle } in releases {
            // EVICT-H4: a place passes on after its holds were dropped. What is there now is
            // another's.
            if self.member.has_place(*holder) {
                self.holds.remove(holder.process(), *handle);
            }
        }
        let slots = releases.iter().map(|it| (it.handle.owner(), it.handle.slot()));
        self.release_words(slots);
        releases.len() as u64
    }

    /// Drops holds of processes that are gone (EVICT-H4), at most [`HOLDS_AT_ONCE`]: after so many
    /// there may be more. Returns how many. Asks once for each process that holds something.
    pub(crate) fn drop_holds_of(&mut self, is_gone: impl Fn(ProcessSlot) -> bool) -> u64 {
        if is_broken(Rule::DeadLetGo) {
            return 0;
        }
        let dropped = self.holds.drop_of(is_gone, HOLDS_AT_ONCE);
        self.release_words(dropped.iter().copied());
        dropped.len() as u64
    }

    /// Makes the table of holds and the reader words right, after a process died in the middle or
    /// when the node has a new life: the table now, and the reader words, of which there may be
    /// millions, by and by.
    pub(crate) fn recount_holds(&mut self) {
        self.holds.rebuild();
        self.directory.set_unchecked(Some(0));
    }

    /// Releases those of the next reader words that nobody holds. Until their turn comes they
    /// expire.
    pub(crate) fn release_unheld(&mut self) {
        let Some(first) = self.directory.unchecked() else { return };
        if is_broken(Rule::DeadLetGo) {
            return;
        }
        let slots = u64::from(self.areas.geometry().share_slots());
        let all = u64::from(self.member.layout().geometry().nodes) * slots;
        let end = all.min(first.saturating_add(CHECKED_MAX));
        let place = |reader_word: u64| {
            let owner = u16::try_from(reader_word / slots).ok()?;
            Some((NodeId(owner), u32::try_from(reader_word % slots).ok()?))
        };
        self.release_words((first..end).filter_map(place));
        self.directory.set_unchecked((end < all).then_some(end));
    }

    /// Releases the reader words of those of `slots` that nobody on this host holds.
    fn release_words(&self, slots: impl Iterator<Item = (NodeId, u32)>) {
        let mut batch = PublishBatch::new(self.fabric());
        for (owner, slot) in slots {
            let reader_word = self.reader_words.own(self.fabric(), owner, slot);
            // Also one that says so: who stored that may have died before it had published it.
            if reader_word != ReaderWord::default() && !self.holds.is_held(owner, slot) {
                batch.word(self.reader_words.word(owner, slot), reader_word.release().word());
            }
        }
        batch.publish();
        crash::reach(CrashPoint::HoldReleased);
    }

    /// Marks blocks as used when their owners' logs were at `positions`; a log without a position
    /// is one that nobody has followed. Returns how many reader words say something new.
    pub(crate) fn write_uses(&mut self, mut used: Vec<Handle>, positions: &[Option<u64>]) -> u64 {
        // So that each line is written back once.
        used.sort_unstable_by_key(|handle| (handle.owner(), handle.slot()));
        used.dedup_by_key(|handle| (handle.owner(), handle.slot()));
        let mut told = 0;
        let mut batch = PublishBatch::new(self.fabric());
        for handle in used {
            let (owner, slot) = (handle.owner(), handle.slot());
            let Some(Some(position)) = positions.get(owner.index()) else { continue };
            let reader_word = self.reader_words.own(self.fabric(), owner, slot);
            let touched = reader_word.touch(tick_of(*position));
            if touched != reader_word {
                // EVICT-H4: the whole word as it was except for the tick, under the lock of all who
                // write it.
                batch.word(self.reader_words.word(owner, slot), touched.word());
                told += 1;
            }
        }
        batch.publish();
        told
    }
}
