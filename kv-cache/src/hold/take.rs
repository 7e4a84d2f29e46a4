//! The reader's side: taking and releasing holds.

use std::sync::Arc;

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory, PublishBatch, refresh_all};
use cxl_shm::member::{Liveness, MembershipLost, ProcessSlot};
use cxl_shm::units::NodeId;

use super::{HeldBlock, Release};
use crate::broken::{Rule, is_broken};
use crate::cache::Cache;
use crate::descriptor::{BlockState, Handle};
use crate::fetch::{Wanted, accept};
use crate::gone::once_each;
use crate::heap::LockedHeap;
use crate::lookup::MatchedBlock;
use crate::miss::Miss;
use crate::replica::Missed;
use crate::stamp::Stamp;

/// How often a hold looks again at a block that its owner considers evicting, or whose line it is
/// just writing: for some 20 ms of a real clock, many times what an attempt takes.
const LOOKS_MAX: u32 = 600;

/// Stamps that are made to agree with the counts under one hold of the heap lock.
const SETTLED_MAX: u64 = 4096;

/// Why a block is not held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HoldError {
    /// It is not there, or not the one that was wanted.
    #[error(transparent)]
    Miss(#[from] Miss),
    /// The processes of this host hold too much.
    #[error(
        "the processes of this host hold as many blocks as there is room for ({most}); release \
         some, or hold fewer at a time"
    )]
    TooMany {
        /// Most holds of a host, one for each process and block.
        most: usize,
    },
    /// This node does not take part any more: nothing of it may be written.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
}

/// What one look at a block says of its hold (H1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// It is held.
    Held,
    /// Its owner has not decided yet.
    Open,
    /// It is not held.
    Missed(Miss),
}

impl<F: Fabric, H: HostMemory, L: Liveness> Cache<'_, F, H, L> {
    /// Holds blocks for `hold_ms` from when their owners see it, at most
    /// [`HOLD_MS_MAX`](crate::HOLD_MS_MAX). The results are in the same order.
    ///
    /// What is held can be fetched until then, unless it turns out to be damaged or its owner
    /// removes it for its own sake ([`retire`](Self::retire)). Holding again, by whichever process
    /// of the host, begins the time anew.
    ///
    /// Takes the host's heap lock and publishes a line for each block, or for up to eight
    /// neighbours; no lock between hosts. When an owner considers evicting a block at this moment it
    /// waits for the decision, a few milliseconds at most.
    ///
    /// # Errors
    /// Per block: [`HoldError`]; it is not held then.
    pub fn hold(
        &self,
        clock: &impl Clock,
        wanted: &[Wanted],
        hold_ms: u64,
    ) -> Vec<Result<HeldBlock, HoldError>> {
        if let Err(dead) = self.check_member() {
            return wanted.iter().map(|_| Err(dead.into())).collect();
        }
        let handles: Vec<_> = wanted.iter().map(|wanted| wanted.handle).collect();
        let stamped = self.locked(clock, |heap| heap.stamp_holds(&handles, hold_ms));
        let holder = self.member().token();
        let guard = |wanted: &Wanted| {
            let block = MatchedBlock { key: wanted.key, handle: wanted.handle };
            HeldBlock::new(block, holder, Arc::clone(self.local()))
        };
        let mut outcomes: Vec<_> = wanted
            .iter()
            .zip(stamped)
            .map(|(wanted, stamped)| stamped.map(|()| guard(wanted)))
            .collect();
        let malformed = outcomes.iter().zip(wanted).filter_map(|(outcome, wanted)| match outcome {
            Err(HoldError::Miss(miss)) => Some(missed(wanted, *miss)),
            Ok(_) | Err(_) => None,
        });
        self.note_misses(&malformed.collect::<Vec<_>>());
        self.settle(clock, wanted, &mut outcomes);
        let held = outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
        self.local().count(|metrics| {
            metrics.held_blocks += held;
            metrics.refused_holds += outcomes.len() as u64 - held;
        });
        outcomes
    }

    /// Gives holds up. After return their owners may evict the blocks, unless others hold them.
    pub fn release(&self, clock: &impl Clock, blocks: Vec<HeldBlock>) {
        drop(blocks);
        // Whoever takes the lock releases what was dropped.
        self.locked(clock, |_| ());
    }

    /// The look of H1, at the blocks whose stamps are published; what it does not find READY is
    /// not held.
    fn settle(
        &self,
        clock: &impl Clock,
        wanted: &[Wanted],
        outcomes: &mut [Result<HeldBlock, HoldError>],
    ) {
        let mut open: Vec<usize> =
            (0..outcomes.len()).filter(|index| outcomes[*index].is_ok()).collect();
        let mut misses = Vec::new();
        for tries in 0..LOOKS_MAX {
            let looked = self.look_at_open(wanted, &open, tries + 1 == LOOKS_MAX);
            open.clear();
            for (index, look) in looked {
                match look {
                    Look::Held => {}
                    Look::Open => open.push(index),
                    Look::Missed(miss) => {
                        outcomes[index] = Err(miss.into());
                        misses.push(missed(&wanted[index], miss));
                    }
                }
            }
            if open.is_empty() {
                break;
            }
            clock.pause(tries);
        }
        // Its owner has stopped in the middle. The block may be as good as ever, and can be read: it
        // is not quarantined. No lookup offers it meanwhile, so that it is published anew (R5).
        for index in open {
            outcomes[index] = Err(Miss::NotReady.into());
            self.local().replica().withhold(wanted[index].handle);
            self.local().count(|metrics| metrics.count_miss(Miss::NotReady));
        }
        self.note_misses(&misses);
    }

    /// One look at those of `wanted` that are `open`, all at once; and a second one at those that are
    /// EVICTING and whose owners are over (H7).
    pub(crate) fn look_at_open(
        &self,
        wanted: &[Wanted],
        open: &[usize],
        is_last: bool,
    ) -> Vec<(usize, Look)> {
        if is_broken(Rule::ReaderLooksAgain) {
            return open.iter().map(|index| (*index, Look::Held)).collect();
        }
        let mut looks = self.look_once(wanted, open, is_last, false);
        let is_open = |(index, look): &(usize, Look)| (*look == Look::Open).then_some(*index);
        let owner = |index: usize| wanted[index].handle.owner();
        let mut owners: Vec<NodeId> = looks.iter().filter_map(is_open).map(owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.retain(|owner| self.member().is_unattended(*owner));
        if owners.is_empty() {
            return looks;
        }
        let of_these = |index: &usize| owners.contains(&owner(*index));
        let again: Vec<usize> = looks.iter().filter_map(is_open).filter(of_these).collect();
        for (index, look) in self.look_once(wanted, &again, is_last, true) {
            let place = looks.iter().position(|(open, _)| *open == index);
            looks[place.expect("it was looked at once")] = (index, look);
        }
        looks
    }

    /// One look, after one that found the owners of these blocks `unattended`, or not.
    fn look_once(
        &self,
        wanted: &[Wanted],
        open: &[usize],
        is_last: bool,
        unattended: bool,
    ) -> Vec<(usize, Look)> {
        let line = |index: &usize| {
            let handle = wanted[*index].handle;
            self.areas().segment_of(handle).map(|segment| segment.range(handle.slot()))
        };
        if !(unattended && is_broken(Rule::VacantLooksAgain)) {
            refresh_all(self.member().fabric(), open.iter().filter_map(line));
        }
        let look = |index: &usize| {
            let looked = self.look(wanted[*index].handle);
            let verdict = looked.and_then(|block| accept(&block, &wanted[*index]).map(|()| block));
            let look = match verdict {
                // H7.
                Ok(block) if block.state == BlockState::Evicting && !unattended => Look::Open,
                Ok(_) => Look::Held,
                // H2: a held block passes through EVICTING, and its line is torn meanwhile.
                Err(Miss::Torn) if !is_last => Look::Open,
                Err(miss) => Look::Missed(miss),
            };
            (*index, look)
        };
        open.iter().map(look).collect()
    }
}

fn missed(wanted: &Wanted, miss: Miss) -> Missed {
    Missed { handle: wanted.handle, key: wanted.key, miss }
}

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    /// Counts holds of this process and publishes their stamps (H4).
    pub(crate) fn stamp_holds(
        &mut self,
        handles: &[Handle],
        hold_ms: u64,
    ) -> Vec<Result<(), HoldError>> {
        let process = self.member.process();
        let mut batch = PublishBatch::new(self.fabric());
        let stamp = |handle: &Handle| {
            if self.areas.segment_of(*handle).is_none() {
                return Err(Miss::Malformed.into());
            }
            if !self.holds.add(process, *handle) {
                return Err(HoldError::TooMany { most: self.holds.capacity() });
            }
            let stamp = self.stamps.own(self.fabric(), handle.owner(), handle.slot());
            let word = self.stamps.word(handle.owner(), handle.slot());
            batch.word(word, stamp.hold(hold_ms).word());
            Ok(())
        };
        let outcomes = handles.iter().map(stamp).collect();
        crash::reach(CrashPoint::HoldCounted);
        // H1: before the look.
        batch.publish();
        crash::reach(CrashPoint::HoldStamped);
        outcomes
    }

    /// Carries out what holders gave up. Returns how many.
    pub(crate) fn release_holds(&mut self, releases: &[Release]) -> u64 {
        for Release { holder, handle } in releases {
            // H4: a place passes on after its holds were dropped. What is there now is another's.
            if self.member.has_place(*holder) {
                self.holds.remove(holder.process(), *handle);
            }
        }
        let slots = releases.iter().map(|it| (it.handle.owner(), it.handle.slot()));
        self.unstamp(slots);
        releases.len() as u64
    }

    /// Drops the holds of processes that are gone (H4). Returns how many.
    pub(crate) fn drop_holds_of(&mut self, is_gone: impl Fn(ProcessSlot) -> bool) -> u64 {
        if is_broken(Rule::DeadLetGo) {
            return 0;
        }
        let dropped = self.holds.drop_of(once_each(is_gone));
        self.unstamp(dropped.iter().copied());
        dropped.len() as u64
    }

    /// Makes counts and stamps agree, after a process died in the middle or when the node has a new
    /// life: the counts now, and the stamps, of which there may be millions, by and by.
    pub(crate) fn settle_holds(&mut self) {
        self.holds.recount();
        self.directory.set_unsettled(Some(0));
    }

    /// Releases those of the next stamps that nobody holds. Until their turn comes they expire.
    pub(crate) fn settle_stamps(&mut self) {
        let Some(first) = self.directory.unsettled() else { return };
        if is_broken(Rule::DeadLetGo) {
            return;
        }
        let slots = u64::from(self.directory.slots());
        let all = u64::from(self.member.layout().geometry().nodes) * slots;
        let end = all.min(first.saturating_add(SETTLED_MAX));
        let place = |stamp: u64| {
            let owner = u16::try_from(stamp / slots).ok()?;
            Some((NodeId(owner), u32::try_from(stamp % slots).ok()?))
        };
        self.unstamp((first..end).filter_map(place));
        self.directory.set_unsettled((end < all).then_some(end));
    }

    /// Releases the stamps of those of `slots` that nobody on this host holds.
    fn unstamp(&self, slots: impl Iterator<Item = (NodeId, u32)>) {
        let mut batch = PublishBatch::new(self.fabric());
        for (owner, slot) in slots {
            let stamp = self.stamps.own(self.fabric(), owner, slot);
            // Also one that says so: who stored that may have died before it had published it.
            if stamp != Stamp::default() && !self.holds.is_held(owner, slot) {
                batch.word(self.stamps.word(owner, slot), stamp.release().word());
            }
        }
        batch.publish();
        crash::reach(CrashPoint::HoldReleased);
    }
}
