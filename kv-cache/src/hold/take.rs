//! The reader's side: taking and releasing holds.

use std::sync::Arc;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::refresh_all;
use cxl_shm::host::{LossCause, MembershipLost};
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use super::HeldBlock;
use crate::broken::{Rule, is_broken};
use crate::format::{BlockState, Handle};
use crate::heap::{HOLDS_AT_ONCE, NotWritten};
use crate::process::Cache;
use crate::read::{MatchedBlock, Wanted, accept};
use crate::replica::{Miss, Missed};

/// How often a hold looks again at a block that its owner considers evicting, or whose line it is
/// just writing: for some 20 ms of a real clock, many times what an attempt takes.
const LOOKS_MAX: u32 = 600;

/// Why a block is not held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// It is not there, or not the one that was wanted.
    #[error(transparent)]
    Miss(#[from] Miss),
    /// The processes of this host hold too much.
    #[error(
        "the processes of this host hold {most} blocks, the most there is room for; release some, \
         or hold fewer at a time"
    )]
    TooMany {
        /// Most holds of a host, one for each process and block.
        most: usize,
    },
    /// This node does not take part any more: nothing of it may be written.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
}

impl From<NotWritten> for HoldError {
    fn from(why: NotWritten) -> Self {
        match why {
            NotWritten::Malformed => Miss::Malformed.into(),
            NotWritten::TooMany { most } => Self::TooMany { most },
        }
    }
}

impl HoldError {
    /// A short name, for metrics: that of a [`Miss`](Miss::label), `too_many_held`, or `declared_dead`
    /// for each lost membership. Where the memory of metadata failed it is `memory_failed`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Miss(miss) => miss.label(),
            Self::TooMany { .. } => "too_many_held",
            Self::MembershipLost(MembershipLost { cause: LossCause::MemoryFailed, .. }) => {
                "memory_failed"
            }
            Self::MembershipLost(_) => "declared_dead",
        }
    }
}

/// What one look at a block says of its hold (EVICT-H1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// It is held.
    Held,
    /// Its owner has not decided yet.
    Open,
    /// It is not held.
    Missed(Miss),
}

impl<B: Backend> Cache<'_, B> {
    /// Holds blocks for `hold_ms` from when their owners see it, at most
    /// [`HOLD_MS_MAX`](crate::HOLD_MS_MAX). The results are in the same order.
    ///
    /// What is held can be fetched until then, unless it turns out to be damaged or its owner
    /// removes it for its own sake ([`retire`](Self::retire)). Holding again, by whichever process
    /// of the host, begins the time anew.
    ///
    /// Takes the host's heap lock, for a bounded number of blocks at a time, and publishes a line
    /// for each block, or for up to eight neighbours; no lock between hosts. When an owner considers evicting a block at this moment
    /// it waits for the decision, a few milliseconds at most.
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
        // Others have the heap lock in between, however many blocks a prompt has.
        let write = |part: &[Handle]| self.locked(clock, |heap| heap.write_holds(part, hold_ms));
        let written = handles.chunks(HOLDS_AT_ONCE).flat_map(write);
        let holder = self.member().token();
        let guard = |wanted: &Wanted| {
            let block = MatchedBlock { key: wanted.key, handle: wanted.handle };
            HeldBlock::new(block, holder, Arc::clone(self.process_state()))
        };
        let mut outcomes: Vec<_> = wanted
            .iter()
            .zip(written)
            .map(|(wanted, written)| written.map(|()| guard(wanted)).map_err(HoldError::from))
            .collect();
        let malformed = outcomes.iter().zip(wanted).filter_map(|(outcome, wanted)| match outcome {
            Err(HoldError::Miss(miss)) => Some(missed(wanted, *miss)),
            Ok(_) | Err(_) => None,
        });
        self.note_misses(&malformed.collect::<Vec<_>>());
        self.resolve(clock, wanted, &mut outcomes);
        let held = outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
        let too_many = |outcome: &&Result<_, _>| matches!(outcome, Err(HoldError::TooMany { .. }));
        let without_room = outcomes.iter().filter(too_many).count() as u64;
        let first_without_room =
            without_room > 0 && self.process_state().own_metrics().holds_without_room == 0;
        self.count(|metrics| {
            metrics.held_blocks += held;
            metrics.refused_holds += outcomes.len() as u64 - held;
            metrics.holds_without_room += without_room;
        });
        if first_without_room && let Some(Err(error)) = outcomes.iter().find(too_many) {
            tracing::warn!(without_room, "the first holds were refused for want of room: {error}");
        }
        outcomes
    }

    /// Gives holds up. After return their owners may evict the blocks, unless others hold them.
    pub fn release(&self, clock: &impl Clock, blocks: Vec<HeldBlock>) {
        drop(blocks);
        // Each holder of the lock releases a part of what was dropped.
        for _ in 0..self.process_state().release_turns().max(1) {
            self.locked(clock, |_| ());
        }
    }

    /// The look of EVICT-H1, at the blocks whose reader words are published; what it does not find
    /// READY is not held.
    fn resolve(
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
        // Its owner has stopped in the middle. The block may be as good as ever, and can be read:
        // it is not quarantined. No lookup offers it meanwhile, so that it is published anew
        // (INDEX-R5).
        for index in open {
            outcomes[index] = Err(Miss::NotReady.into());
            self.process_state().replica().withhold(wanted[index].handle);
            self.count(|metrics| metrics.count_miss(Miss::NotReady));
        }
        self.note_misses(&misses);
    }

    /// One look at those of `wanted` that are `open`, all at once; and a second one at those that
    /// are EVICTING and whose owners are over (EVICT-H7).
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
                // EVICT-H7.
                Ok(block) if block.state == BlockState::Evicting && !unattended => Look::Open,
                Ok(_) => Look::Held,
                // EVICT-H2: a held block passes through EVICTING, and its line is torn meanwhile.
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
