//! Acquiring a lock between hosts: first the host's turn, then the shared tier.

use std::fmt;

use super::competitor::Competitor;
use super::guard::{needs_flush, recover_dead_holder, release_passed};
use super::handoff_flush::HandoffFlush;
use super::manager_watch::ManagerWatch;
use super::shared_tier::{DamagedRequest, Held, SharedTier};
use super::{Contention, LockError, SharedGuard};
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::host::is_thorough;
use crate::host::{Behind, Cohort, LockCounters, LockKind, Place, StoppedWatch, Turn};
use crate::layout::LockProtocol;
use crate::node::{Backend, Member};
use crate::units::LockId;

/// How long a try of a lock that nobody else wants waits for the lock manager's grant, or for
/// others who try at the same moment, in milliseconds.
pub const TRY_MS: u64 = 20;

/// A lock between hosts that is being acquired. Polled until it is held; withdrawn when dropped, at
/// any time, after which nothing is left of it.
pub struct PendingLock<'m, B: Backend> {
    member: &'m Member<B>,
    clock: &'m dyn Clock,
    lock: LockId,
    stage: Stage,
    looks: u32,
    watch: ManagerWatch,
    began_us: u64,
    /// Who was seen in the way, and who had it when it was taken over.
    behind: Option<Behind>,
}

#[derive(Debug)]
enum Stage {
    /// In the host's queue.
    Queued(Place, StoppedWatch),
    /// The host's turn is ours, and the one before us died with the lock: what programs may have
    /// written goes to the device, a part at each poll.
    Flushing(HandoffFlush),
    /// The host's turn is ours, and we compete with other hosts.
    Competing(Competitor),
    /// Acquired.
    Over,
}

impl Stage {
    fn queued(place: Place) -> Self {
        Self::Queued(place, StoppedWatch::default())
    }
}

impl<'m, B: Backend> PendingLock<'m, B> {
    pub(crate) fn begin(member: &'m Member<B>, lock: LockId, clock: &'m dyn Clock) -> Self {
        let place = member.node_handle().tier().queue(lock).enter(member.token());
        let (stage, watch) = (Stage::queued(place), ManagerWatch::default());
        let began_us = clock.figure_us();
        Self { member, clock, lock, stage, looks: 0, watch, began_us, behind: None }
    }

    /// A few operations towards the lock; never waits. The guard, once the lock is held.
    ///
    /// # Errors
    /// [`LockError`]. The acquisition continues: poll again, or drop it.
    ///
    /// # Panics
    /// When it is polled again after it gave its guard.
    pub fn poll(&mut self) -> Result<Option<SharedGuard<'m, B>>, LockError> {
        self.looks = self.looks.wrapping_add(1);
        self.step(is_thorough(self.looks))
    }

    /// Polls until the lock is held, waiting at most `timeout_ms`.
    pub(crate) fn wait(self, timeout_ms: u64) -> Result<SharedGuard<'m, B>, LockError> {
        let guard = self.wait_while(timeout_ms, || true)?;
        Ok(guard.expect("the wait goes on until its time-out"))
    }

    /// As [`wait`](Self::wait), and gives up with `None` when `goes_on`, asked between two looks,
    /// says no.
    pub(crate) fn wait_while(
        self,
        timeout_ms: u64,
        goes_on: impl Fn() -> bool,
    ) -> Result<Option<SharedGuard<'m, B>>, LockError> {
        let counters = self.counters();
        let outcome = self.look_while(timeout_ms, goes_on);
        if let (Some(counters), Err(LockError::TimedOut { .. })) = (counters, &outcome) {
            counters.timed_out();
        }
        outcome
    }

    fn look_while(
        mut self,
        timeout_ms: u64,
        goes_on: impl Fn() -> bool,
    ) -> Result<Option<SharedGuard<'m, B>>, LockError> {
        let deadline_ms = self.clock.now_ms().saturating_add(timeout_ms);
        let mut tries = 0;
        loop {
            if let Some(guard) = self.poll()? {
                return Ok(Some(guard));
            }
            if self.clock.now_ms() >= deadline_ms {
                // The dead do not keep a lock from any thread, however short the time-out.
                let guard = self.step(true)?;
                return guard.map(Some).ok_or_else(|| self.timed_out(timeout_ms));
            }
            if !goes_on() {
                return Ok(None);
            }
            self.clock.pause(tries);
            tries += 1;
        }
    }

    /// Takes the lock if nobody else wants it.
    pub(crate) fn try_once(mut self) -> Result<Option<SharedGuard<'m, B>>, LockError> {
        let guard = self.step(true)?;
        if guard.is_some() || matches!(self.stage, Stage::Queued(..)) {
            return Ok(guard);
        }
        let (handle, fabric) = (self.member.node_handle(), self.member.fabric());
        if Competitor::is_wanted_elsewhere(handle, fabric, self.lock) {
            return Ok(None);
        }
        let member = self.member;
        match self.look_while(TRY_MS, || true) {
            Ok(guard) => Ok(guard),
            // Nobody wants it, and nobody grants it: there is nobody who could.
            Err(LockError::TimedOut { .. }) if no_manager(member) => Err(LockError::NoManager),
            Err(LockError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn timed_out(&self, timeout_ms: u64) -> LockError {
        let is_queued = matches!(self.stage, Stage::Queued(..));
        let others = Contention::look(self.member, self.lock, is_queued);
        LockError::TimedOut { lock: self.lock, timeout_ms, others }
    }

    fn step(&mut self, thorough: bool) -> Result<Option<SharedGuard<'m, B>>, LockError> {
        let member = self.member;
        // A node that was declared dead takes no more locks.
        member.check_member()?;
        let outcome = self.look(thorough);
        // FAULT-F7: nobody else may have wanted it, or nobody else was seen.
        member.check_reads()?;
        outcome
    }

    fn look(&mut self, thorough: bool) -> Result<Option<SharedGuard<'m, B>>, LockError> {
        let (member, lock) = (self.member, self.lock);
        let (handle, fabric) = (member.node_handle(), member.fabric());
        match &mut self.stage {
            Stage::Queued(place, before) => {
                let queue = handle.tier().queue(lock);
                let me = member.token();
                // LOCK-Q6: we may have been stopped ourselves.
                queue.stay(me, *place);
                let Some(turn) = queue.look(me, *place, member, thorough) else {
                    let now_ms = || self.clock.now_ms();
                    before.look(&queue, me, *place, member, thorough, now_ms);
                    self.behind = Some(Behind::Host);
                    return Ok(None);
                };
                let passed = match turn {
                    Turn::Fresh => None,
                    Turn::Passed(cohort) => {
                        let held = Held::passed(handle, lock, cohort.after_death);
                        held.map(|held| (held, cohort))
                    }
                    Turn::Recovered | Turn::GivenUp { .. } if needs_flush(handle, lock) => {
                        let flush = match turn {
                            Turn::GivenUp { flushed } => HandoffFlush::go_on(handle, flushed),
                            _ => HandoffFlush::begin(handle),
                        };
                        self.stage = Stage::Flushing(flush);
                        return Ok(None);
                    }
                    Turn::Recovered | Turn::GivenUp { .. } => {
                        recover_dead_holder(handle, fabric, lock);
                        None
                    }
                };
                if let Some((held, cohort)) = passed {
                    crash::reach(CrashPoint::LockTakenOver);
                    self.behind = Some(Behind::Host);
                    if let Some(counters) = self.counters() {
                        counters.passed();
                    }
                    return Ok(Some(self.end(held, cohort)));
                }
                self.compete()
            }
            Stage::Flushing(flush) => {
                if !flush.step(fabric) {
                    return Ok(None);
                }
                recover_dead_holder(handle, fabric, lock);
                self.compete()
            }
            Stage::Competing(competitor) => match competitor.poll(handle, fabric) {
                Ok(Some(held)) => {
                    let is_behind = competitor.was_behind();
                    self.behind = self.behind.or(is_behind.then_some(Behind::Rack));
                    Ok(Some(self.end(held, Cohort::default())))
                }
                Ok(None) if handle.lock_protocol() == LockProtocol::Arbitrated => {
                    match self.watch.look(handle, fabric, self.clock.now_ms()) {
                        None => Ok(None),
                        Some(error) => Err(error),
                    }
                }
                Ok(None) => Ok(None),
                Err(DamagedRequest { node }) => Err(LockError::DamagedRequest { node, lock }),
            },
            Stage::Over => panic!("lock {lock} was polled after it was acquired"),
        }
    }

    /// With the host's turn.
    fn compete(&mut self) -> Result<Option<SharedGuard<'m, B>>, LockError> {
        let (member, lock) = (self.member, self.lock);
        let (handle, fabric) = (member.node_handle(), member.fabric());
        if !Competitor::has_tickets(handle, lock) {
            // What was passed could be taken over, what others hold in this host too.
            let queue = handle.tier().queue(lock);
            queue.release(member.token());
            self.stage = Stage::queued(queue.enter(member.token()));
            return Err(LockError::TicketsUsedUp { node: handle.node(), lock });
        }
        self.stage = Stage::Competing(Competitor::begin(handle, fabric, lock));
        Ok(None)
    }

    fn end(&mut self, held: Held, cohort: Cohort) -> SharedGuard<'m, B> {
        self.stage = Stage::Over;
        if let Some(counters) = self.counters() {
            let took_us = self.clock.figure_us().saturating_sub(self.began_us);
            counters.acquired(took_us, self.behind);
        }
        SharedGuard::new(self.member, self.clock, held, cohort)
    }

    fn counters(&self) -> Option<LockCounters<'m, B::HostMemory>> {
        let member = self.member;
        LockKind::of(self.lock).map(|kind| member.node_handle().tier().lock_counters(kind))
    }
}

impl<B: Backend> Drop for PendingLock<'_, B> {
    fn drop(&mut self) {
        let (handle, fabric) = (self.member.node_handle(), self.member.fabric());
        let (queue, token) = (handle.tier().queue(self.lock), self.member.token());
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Queued(..) => {
                // Passed to us in the last moment, and nobody else is there (LOCK-Q4).
                if queue.withdraw(token) {
                    release_passed(handle, fabric, self.lock);
                    queue.release(token);
                }
            }
            // The next to look continues from there, or the agent begins anew.
            Stage::Flushing(flush) => queue.abandon(token, flush.flushed()),
            Stage::Competing(competitor) => {
                competitor.withdraw(handle, fabric);
                queue.release(token);
            }
            Stage::Over => {}
        }
    }
}

impl<B: Backend> fmt::Debug for PendingLock<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lock, stage, .. } = self;
        f.debug_struct("PendingLock").field("lock", lock).field("stage", stage).finish()
    }
}

fn no_manager<B: Backend>(member: &Member<B>) -> bool {
    let handle = member.node_handle();
    handle.lock_protocol() == LockProtocol::Arbitrated && handle.tier().term() == 0
}
