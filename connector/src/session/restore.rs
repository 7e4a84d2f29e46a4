//! Lookups that wait for blocks on drives.
//!
//! Behind the end of the pool's prefix, blocks may be on the drives of hosts. Their agents are asked to
//! restore them, and each block is held as soon as it is in the pool.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;
use kv_cache::tier::{DriveError, Found, RestoreState, RestoreTicket};
use kv_cache::{
    BlockHash, BlockKey, HeldBlock, HoldError, Latency, MatchedBlock, RestoreOutcome,
    RestoreRequest,
};

use super::hold::HoldReport;
use super::{SessionCore, SessionError};
use crate::dma::DmaEngine;
use crate::options::RestoreOptions;

/// Requests of one lookup that are unanswered at once. The ring of a pair of hosts has room for others.
const ASKED_MAX: usize = 256;

/// Why a block on a drive did not become a part of the prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RestoreStop {
    /// The agent of the drive's host says why.
    Refused(RestoreOutcome),
    /// The wait of the lookup was over before the block came.
    Late,
    /// The agent of the drive's host, or of this host, does not answer.
    NoAgent,
    /// Too many requests to the drive's host were unanswered until the wait was over.
    RequestsFull,
    /// The block was restored, and evicted before it was held.
    EvictedAgain,
    /// The block is in the pool, and is not held.
    Hold(HoldError),
    /// The pool was closed meanwhile.
    Closed,
}

impl RestoreStop {
    /// A short name, for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Refused(RestoreOutcome::Unknown) => "restore_unknown",
            Self::Refused(RestoreOutcome::Damaged) => "restore_damaged",
            Self::Refused(RestoreOutcome::TooLate) => "restore_too_late",
            Self::Refused(RestoreOutcome::Busy) => "restore_busy",
            Self::Refused(RestoreOutcome::NoRoom) => "restore_no_room",
            Self::Refused(_) => "restore_stopped",
            Self::Late => "restore_late",
            Self::NoAgent => "restore_no_agent",
            Self::RequestsFull => "restore_requests_full",
            Self::EvictedAgain => "restore_evicted_again",
            Self::Hold(error) => error.label(),
            Self::Closed => "restore_closed",
        }
    }
}

impl fmt::Display for RestoreStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(outcome) => f.write_str(refused(*outcome)),
            Self::Late => f.write_str(
                "the block was not restored within the wait: raise restore_wait_ms, or look at the \
                 agent's queue in `rackline status`",
            ),
            Self::NoAgent => f.write_str(
                "the agent of the drive's host does not answer: look at it in `rackline status`",
            ),
            Self::RequestsFull => f.write_str(
                "too many requests to the drive's host were unanswered: format the region with larger \
                 --drive-bytes, or give the host faster drives",
            ),
            Self::EvictedAgain => f.write_str(
                "the block was restored, and evicted before it was held: the pool is too small",
            ),
            Self::Hold(error) => error.fmt(f),
            Self::Closed => f.write_str("the pool was closed meanwhile"),
        }
    }
}

/// Why an agent did not restore a block, and what to do.
fn refused(outcome: RestoreOutcome) -> &'static str {
    match outcome {
        RestoreOutcome::Unknown => "the block has left its drive meanwhile",
        RestoreOutcome::Damaged => {
            "the block on the drive is damaged and was removed: see `rackline spill fsck`"
        }
        RestoreOutcome::TooLate => {
            "the drive is too busy to restore the block in time: raise restore_wait_ms, or give the \
             host more drives"
        }
        RestoreOutcome::Busy => "the queue of the drive's agent is full",
        RestoreOutcome::NoRoom => "the pool has no room for the block: blocks are held, or written",
        _ => "the agent of the drive stopped",
    }
}

/// What came of a lookup that waits for drives.
#[derive(Debug)]
#[must_use = "what is not kept in a variable is released again"]
pub struct RestoreReport {
    held: HoldReport,
    on_drives: usize,
    restored: usize,
    stop: Option<RestoreStop>,
}

impl RestoreReport {
    /// A lookup that found nothing on drives.
    pub(crate) fn of_pool(held: HoldReport) -> Self {
        Self { held, on_drives: 0, restored: 0, stop: None }
    }

    /// The prefix that is in the pool now, and held.
    pub fn held(&self) -> &HoldReport {
        &self.held
    }

    /// The same, without this.
    pub fn into_held(self) -> HoldReport {
        self.held
    }

    /// Blocks of the prefix that were on drives when the lookup began, as far as the prefix went.
    #[must_use]
    pub fn on_drives(&self) -> usize {
        self.on_drives
    }

    /// How many of those were restored and are held.
    #[must_use]
    pub fn restored(&self) -> usize {
        self.restored
    }

    /// Why the prefix is shorter than what was found at first; `None` when it is not.
    #[must_use]
    pub fn stop(&self) -> Option<RestoreStop> {
        self.stop
    }
}

/// A block of the prefix that is not held yet.
#[derive(Clone, Copy, Debug)]
enum Place {
    Held,
    Drive(NodeId),
}

/// A lookup that waits for drives: to be polled every millisecond or so.
#[derive(Debug)]
pub(crate) struct Restoring {
    keys: Vec<BlockKey>,
    began_us: u64,
    until_ms: u64,
    wait_ms: u32,
    recompute_ms: Option<u32>,
    /// The blocks of the prefix; those that are not restored yet are `None`.
    held: Vec<Option<HeldBlock>>,
    /// Blocks that were on drives when the lookup began, by index.
    drives: Vec<Place>,
    to_ask: VecDeque<usize>,
    asked: Vec<(usize, RestoreTicket)>,
    /// Blocks whose request is that of a prefetch, by index.
    joined: BTreeSet<usize>,
    /// Requests whose answers nobody needs any more.
    unwanted: Vec<RestoreTicket>,
    on_drives: usize,
    hold_stop: Option<HoldError>,
    /// Started before the first block was held.
    held_since: SystemClock,
    stop: Option<RestoreStop>,
}

impl Restoring {
    /// Where the first block is that is not held.
    fn missing(&self) -> usize {
        self.held.iter().position(Option::is_none).unwrap_or(self.held.len())
    }

    /// Ends the prefix before block `at`.
    fn end_at(&mut self, at: usize, stop: RestoreStop) {
        if at >= self.held.len() {
            return;
        }
        self.held.truncate(at);
        self.stop = Some(stop);
        self.to_ask.retain(|index| *index < at);
        let unwanted = &mut self.unwanted;
        self.asked.retain(|(index, ticket)| {
            if *index >= at {
                unwanted.push(*ticket);
            }
            *index < at
        });
    }

    fn is_over(&self) -> bool {
        self.held.iter().all(Option::is_some)
    }
}

impl<B, D, C> SessionCore<'_, B, D, C>
where
    B: Backend,
    D: DmaEngine,
    C: Clock,
{
    /// The longest prefix of `hashes` that is in the pool or on drives of hosts, as far as its blocks
    /// are restored and held before the wait is over. Without an agent on this host, and in a region
    /// without room for directories of drives, this is [`lookup_and_hold`](Self::lookup_and_hold).
    ///
    /// Waits for agents: up to the time that `restore` says. A block that does not come ends the
    /// prefix before it, and [`RestoreReport::stop`] says why.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`].
    pub fn lookup_and_restore(
        &self,
        hashes: &[BlockHash],
        restore: RestoreOptions,
    ) -> Result<RestoreReport, SessionError> {
        let mut restoring = self.begin_restore(hashes, restore)?;
        let mut tries = 0;
        loop {
            if let Some(report) = self.poll_restore(&mut restoring)? {
                return Ok(report);
            }
            self.poll_prefetches()?;
            self.clock.pause(tries);
            tries += 1;
        }
    }

    pub(crate) fn begin_restore(
        &self,
        hashes: &[BlockHash],
        restore: RestoreOptions,
    ) -> Result<Restoring, SessionError> {
        self.cache.check_member()?;
        let keys = self.keys_of(hashes);
        let found = self.cache.find_with_drives(self.clock, &keys);
        let held = self.hold(&found.pool)?;
        let is_whole = held.stop().is_none() && restore.waits();
        let (hold_stop, held_since, held) = (held.stop(), held.since(), held.into_blocks());
        let behind = if is_whole { found.behind } else { Vec::new() };
        let (first, wait_ms) = (held.len(), restore.wait_ms());
        let mut restoring = Restoring {
            keys,
            began_us: self.clock.now_us(),
            until_ms: self.clock.now_ms().saturating_add(wait_ms.into()),
            wait_ms,
            recompute_ms: restore.recompute_ms(behind.len()),
            drives: vec![Place::Held; first],
            held: held.into_iter().map(Some).collect(),
            to_ask: VecDeque::new(),
            asked: Vec::new(),
            joined: BTreeSet::new(),
            unwanted: Vec::new(),
            on_drives: 0,
            hold_stop,
            held_since,
            stop: None,
        };
        let mut in_pool = Vec::new();
        for (index, found) in (first..).zip(behind) {
            restoring.held.push(None);
            match found {
                Found::OnDrive { key, node } => {
                    restoring.drives.push(Place::Drive(node));
                    restoring.on_drives += 1;
                    match self.prefetches.join(&key, restoring.until_ms) {
                        Some(ticket) => {
                            restoring.asked.push((index, ticket));
                            restoring.joined.insert(index);
                        }
                        None => restoring.to_ask.push_back(index),
                    }
                }
                Found::InPool(block) => {
                    restoring.drives.push(Place::Held);
                    in_pool.push((index, block));
                }
            }
        }
        self.hold_each(&mut restoring, &in_pool);
        Ok(restoring)
    }

    /// What is new; the report when the lookup is over.
    pub(crate) fn poll_restore(
        &self,
        restoring: &mut Restoring,
    ) -> Result<Option<RestoreReport>, SessionError> {
        self.cache.check_member()?;
        self.take_answers(restoring)?;
        if self.clock.now_ms() >= restoring.until_ms {
            let never_asked = restoring.asked.is_empty() && !restoring.to_ask.is_empty();
            let stop = if never_asked { RestoreStop::RequestsFull } else { RestoreStop::Late };
            restoring.end_at(restoring.missing(), stop);
        }
        self.leave_dead_agents(restoring);
        self.ask(restoring)?;
        if restoring.is_over() { self.end_restore(restoring).map(Some) } else { Ok(None) }
    }

    /// Ends the lookup with what it has.
    pub(crate) fn stop_restore(
        &self,
        restoring: &mut Restoring,
    ) -> Result<RestoreReport, SessionError> {
        restoring.end_at(restoring.missing(), RestoreStop::Closed);
        self.end_restore(restoring)
    }

    fn end_restore(&self, restoring: &mut Restoring) -> Result<RestoreReport, SessionError> {
        let mut unwanted = std::mem::take(&mut restoring.unwanted);
        self.prefetches.keep_unwanted(&mut unwanted);
        if !unwanted.is_empty() {
            no_room_is_none(self.cache.cancel_restores(self.clock, &unwanted))?;
        }
        let held: Vec<_> = std::mem::take(&mut restoring.held).into_iter().flatten().collect();
        self.found_prefetched(held.iter().map(|held| held.block().key));
        let is_of_drive = |place: &&Place| matches!(place, Place::Drive(_));
        let restored = restoring.drives.iter().take(held.len()).filter(is_of_drive).count();
        let (on_drives, stop) = (restoring.on_drives, restoring.stop);
        self.cache.count_lookup(restoring.keys.len(), held.len());
        self.cache.count_restores(on_drives, restored);
        let latency = if on_drives > 0 { Latency::Restore } else { Latency::Lookup };
        self.cache.took(latency, restoring.began_us, self.clock);
        let held = HoldReport::new(held, restoring.hold_stop, restoring.held_since);
        Ok(RestoreReport { held, on_drives, restored, stop })
    }

    fn take_answers(&self, restoring: &mut Restoring) -> Result<(), SessionError> {
        let tickets: Vec<_> = restoring.asked.iter().map(|(_, ticket)| *ticket).collect();
        if tickets.is_empty() {
            return Ok(());
        }
        let Some(states) = no_room_is_none(self.cache.restore_states(&tickets))? else {
            return Ok(());
        };
        let asked = std::mem::take(&mut restoring.asked);
        let (mut came, mut refused) = (Vec::new(), None);
        for ((index, ticket), state) in asked.into_iter().zip(states) {
            match state {
                RestoreState::Pending => restoring.asked.push((index, ticket)),
                RestoreState::Answered(RestoreOutcome::Restored) => {
                    came.push((index, RestoreStop::EvictedAgain));
                }
                // The answer was read too late: the block is there or not.
                RestoreState::Overtaken => came.push((index, RestoreStop::Late)),
                // The prefetch had less time, or is not wanted any more: the lookup asks itself.
                RestoreState::Answered(_) if restoring.joined.remove(&index) => {
                    let at = restoring.to_ask.partition_point(|other| *other < index);
                    restoring.to_ask.insert(at, index);
                }
                RestoreState::Answered(outcome) => {
                    // They were asked for in order.
                    refused.get_or_insert((index, RestoreStop::Refused(outcome)));
                }
            }
        }
        let keys: Vec<_> = came.iter().map(|(index, _)| restoring.keys[*index]).collect();
        let mut blocks = Vec::with_capacity(came.len());
        for ((index, stop), found) in came.into_iter().zip(self.cache.find_each(&keys)) {
            match found {
                Some(block) => blocks.push((index, block)),
                None => restoring.end_at(index, stop),
            }
        }
        if let Some((index, stop)) = refused {
            restoring.end_at(index, stop);
        }
        self.hold_each(restoring, &blocks);
        Ok(())
    }

    /// Holds blocks of the prefix. The prefix ends before one that is not held.
    fn hold_each(&self, restoring: &mut Restoring, blocks: &[(usize, MatchedBlock)]) {
        let wanted: Vec<_> =
            blocks.iter().map(|(index, block)| self.wanted(*index, block)).collect();
        let outcomes = self.cache.hold(self.clock, &wanted, self.options.hold_ms());
        for ((index, _), outcome) in blocks.iter().zip(outcomes) {
            match outcome {
                // A block behind the end is released by being dropped.
                Ok(block) => {
                    if let Some(place) = restoring.held.get_mut(*index) {
                        *place = Some(block);
                    }
                }
                Err(error) => restoring.end_at(*index, RestoreStop::Hold(error)),
            }
        }
    }

    /// Ends the prefix before the first block whose agent does not live any more.
    fn leave_dead_agents(&self, restoring: &mut Restoring) {
        let mut known: Vec<(NodeId, bool)> = Vec::new();
        let dead = (0..restoring.held.len()).find(|index| {
            let (None, Place::Drive(node)) = (&restoring.held[*index], restoring.drives[*index])
            else {
                return false;
            };
            let alive = known.iter().find(|(other, _)| *other == node).map(|(_, alive)| *alive);
            !alive.unwrap_or_else(|| {
                let alive = self.cache.is_drive_agent_alive(self.clock, node);
                known.push((node, alive));
                alive
            })
        });
        if let Some(index) = dead {
            restoring.end_at(index, RestoreStop::NoAgent);
        }
    }

    /// Asks for the next blocks, in the order of the prefix.
    fn ask(&self, restoring: &mut Restoring) -> Result<(), SessionError> {
        while restoring.asked.len() < ASKED_MAX
            && let Some(first) = restoring.to_ask.front().copied()
            && let Place::Drive(node) = restoring.drives[first]
        {
            let room = ASKED_MAX - restoring.asked.len();
            let is_its = |index: &&usize| matches!(restoring.drives[**index], Place::Drive(it) if it == node);
            let run: Vec<usize> =
                restoring.to_ask.iter().take_while(is_its).take(room).copied().collect();
            let wait_ms = u32::try_from(restoring.until_ms.saturating_sub(self.clock.now_ms()))
                .unwrap_or(u32::MAX)
                .min(restoring.wait_ms);
            let request = |index: &usize| RestoreRequest {
                key: restoring.keys[*index],
                wait_ms,
                recompute_ms: restoring.recompute_ms,
                ahead: false,
            };
            let requests: Vec<_> = run.iter().map(request).collect();
            let asked = self.cache.ask_restore(self.clock, node, &requests);
            let Some(asked) = no_room_is_none(asked)? else {
                restoring.end_at(first, RestoreStop::NoAgent);
                return Ok(());
            };
            let count = asked.tickets.len();
            restoring.to_ask.drain(..count);
            restoring.asked.extend(run.into_iter().zip(asked.tickets));
            if asked.full > 0 {
                // It asks again with the next poll: others are answered meanwhile.
                return Ok(());
            }
        }
        Ok(())
    }
}

/// A region without room for drives has none to ask.
pub(super) fn no_room_is_none<T>(
    outcome: Result<T, DriveError>,
) -> Result<Option<T>, SessionError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(DriveError::MembershipLost(lost)) => Err(lost.into()),
        Err(_) => Ok(None),
    }
}
