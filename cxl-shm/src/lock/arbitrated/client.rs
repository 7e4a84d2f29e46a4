//! A node's side of a lock: request, wait for the grant, release or withdraw.
//!
//! One thread of the host is here at a time; only the agent changes the lock state beside it, and
//! only its term.

use super::announcement::{Announcement, tell_number};
use super::manager_of;
use super::request::{Request, beyond, tally_of};
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, PublishBatch, refresh_all};
use crate::host::{LockState, Phase, TICKET_END, grant_word};
use crate::layout::Layout;
use crate::lock::shared_tier::{DamagedRequest, Held, SharedTier, others_requests};
use crate::lock::tally::{self, is_for_programs};
use crate::mutant::{self, Mutant};
use crate::node::{Backend, NodeHandle};
use crate::units::{LockId, NodeId};

/// An acquisition in progress.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[must_use = "an acquisition that is neither polled nor withdrawn strands the lock"]
pub(crate) struct Acquire {
    lock: LockId,
    ticket: u64,
    announcement: Announcement,
}

impl SharedTier for Acquire {
    fn begin<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> Self {
        let mut state = handle.tier().lock_state(lock);
        let ticket = if mutant::is(Mutant::ReusesTicket) { 1 } else { state.ticket + 1 };
        debug_assert_eq!(state.phase, Phase::Idle, "one competitor a host, and it is recovered");
        // The lock state first: from here on the agent reports us under a new term (LOCK-T2).
        while let Err(found) = handle.tier().swap_lock_state(
            lock,
            state,
            LockState { phase: Phase::Wait, ticket, ..state },
        ) {
            state = found;
        }
        crash::reach(CrashPoint::LockStateWritten);
        let announcement =
            Announcement::publish(handle, fabric, lock, request_of(handle, fabric, lock, ticket));
        crash::reach(CrashPoint::LockRequested);
        Self { lock, ticket, announcement }
    }

    /// Looks whether the manager of the term we obey has granted our ticket.
    fn poll<B: Backend>(
        &mut self,
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
    ) -> Result<Option<Held>, DamagedRequest> {
        let Self { lock, ticket, .. } = *self;
        let waiting = LockState { phase: Phase::Wait, ..handle.tier().lock_state(lock) };
        let Some(manager) = manager_of(handle.layout(), waiting.term) else {
            return Ok(None);
        };
        let index = handle.layout().grant_index(handle.node(), lock);
        let grants = handle.layout().grants(manager);
        let grant = grants.word(index).expect("the index is in the layout").fresh(fabric);
        let after_death = grant == grant_word(waiting.term, ticket, true);
        let ungranted = !after_death
            && grant != grant_word(waiting.term, ticket, false)
            && !(mutant::is(Mutant::NoTermCheck)
                && is_granted_by_any(handle, fabric, index, ticket));
        if ungranted {
            // After the look: a request that was granted needs no more.
            self.announcement.repeat_if_hidden(handle, fabric, lock);
            return Ok(None);
        }
        // LOCK-T1: enter only from {T, wait, t}. The agent may have moved on to another term.
        let hold = LockState { phase: Phase::Hold, ..waiting };
        if mutant::is(Mutant::EntersByStore) {
            handle.tier().set_lock_state(lock, hold);
        } else if handle.tier().swap_lock_state(lock, waiting, hold).is_err() {
            return Ok(None);
        }
        crash::reach(CrashPoint::LockHeld);
        Ok(Some(Held { lock, ticket, after_death }))
    }

    fn was_behind(&self) -> bool {
        false
    }

    fn withdraw<B: Backend>(self, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        crash::reach(CrashPoint::LockWithdrawing);
        end(handle, fabric, self.lock, self.ticket);
        // So that it is not granted what it has given up: others would wait for a round in vain.
        tell_number(handle, fabric, self.lock);
    }

    /// The manager is not told: it looks at the holders of locks that others want.
    fn release<B: Backend>(held: Held, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        crash::reach(CrashPoint::LockReleasing);
        end(handle, fabric, held.lock, held.ticket);
    }

    fn release_after_death<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
        let state = handle.tier().lock_state(lock);
        match state.phase {
            Phase::Hold if is_for_programs(lock) => {
                let (layout, node) = (handle.layout(), handle.node());
                let own = Request::from_word(handle.request(lock).own(fabric)).tally;
                let others = tally::of_others(layout, fabric, node, lock, tally_of);
                let request =
                    Request { ticket: state.ticket + 1, tally: own.max(others).after_death() };
                handle.request(lock).publish(fabric, request.word());
                go_idle(handle, lock, state.ticket + 1);
            }
            Phase::Hold | Phase::Wait => end(handle, fabric, lock, state.ticket),
            Phase::Idle => {}
        }
    }

    fn make_consistent<B: Backend>(held: Held, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        let Held { lock, ticket, .. } = held;
        let own = Request::from_word(handle.request(lock).own(fabric)).tally;
        let others = tally::of_others(handle.layout(), fabric, handle.node(), lock, tally_of);
        let request = Request { ticket, tally: own.max(others).after_mending() };
        // Published with the release: a thread that dies before that is told of, whatever the
        // tally.
        fabric.store(handle.request(lock).at(), request.word());
    }

    fn is_wanted_elsewhere<B: Backend>(
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
        lock: LockId,
    ) -> bool {
        others_requests(handle, fabric, lock).any(|(_, word)| Request::from_word(word).wants())
    }

    /// LOCK-A2: the last tickets are not begun with, as release is one more.
    fn has_tickets<B: Backend>(handle: &NodeHandle<B>, lock: LockId) -> bool {
        handle.tier().lock_state(lock).ticket < TICKET_END - 2
    }

    /// MEM-M5: a ticket beyond all counting is not gone on from.
    fn can_resume<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> bool {
        Request::is_sound(handle.request(lock).own(fabric))
    }

    fn may_have_held<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> bool {
        let word = handle.request(lock).own(fabric);
        may_have_held(handle.layout(), fabric, handle.node(), lock, word)
    }

    /// LOCK-A2: tickets go on beyond all that the former life may have told.
    fn resume<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
        let request = handle.request(lock);
        let word = end_of_dead(handle.layout(), fabric, handle.node(), lock, request.own(fabric));
        request.publish(fabric, word);
        handle.resume_lock_state(lock, Request::from_word(word).ticket);
    }
}

/// Ends the requests of a fenced node, and what it may have told (LOCK-A2). The manager finds it
/// when it looks at the holders of what others want.
pub(crate) fn clear_requests<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    let requests = layout.requests(node).claim();
    fabric.refresh(requests.range());
    let mut batch = PublishBatch::new(fabric);
    for lock in 0..layout.locks() {
        let request = requests.word(u64::from(lock)).expect("the area has a word per lock");
        let word = request.own(fabric);
        batch.word(request, end_of_dead(layout, fabric, node, LockId(lock), word));
    }
    batch.publish();
}

/// The request word with which `word` of a dead life of `node` ends: its holder, if it was one,
/// died (LOCK-L5).
fn end_of_dead<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    node: NodeId,
    lock: LockId,
    word: u64,
) -> u64 {
    let own = Request::from_word(word).tally;
    if !may_have_held(layout, fabric, node, lock, word) {
        return beyond(word, own);
    }
    let others = tally::of_others(layout, fabric, node, lock, tally_of);
    beyond(word, own.max(others).after_death())
}

/// Whether `node`, whose request for the program's lock `lock` is `word`, may have held it: some
/// manager has granted that ticket. This includes a grant that the node did not obey, so it may
/// also be true for a node that only waited.
fn may_have_held<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    node: NodeId,
    lock: LockId,
    word: u64,
) -> bool {
    let request = Request::from_word(word);
    if !is_for_programs(lock) || !request.wants() {
        return false;
    }
    let index = layout.grant_index(node, lock);
    let grants = || layout.nodes().filter_map(|manager| layout.grants(manager).word(index));
    refresh_all(fabric, grants().map(|grant| grant.range()));
    grants().any(|grant| LockState::from_word(grant.cached(fabric)).ticket == request.ticket)
}

/// The request with `ticket`, and with the tally that this node knows: of the region's own locks
/// there is none.
fn request_of<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    lock: LockId,
    ticket: u64,
) -> Request {
    let known =
        is_for_programs(lock).then(|| Request::from_word(handle.request(lock).own(fabric)).tally);
    Request { ticket, tally: known.unwrap_or_default() }
}

/// Release and withdrawal: the ticket becomes even. It is published *before* the lock state goes
/// idle: a thread that dies in between leaves a lock state which says that something is still to be
/// ended.
fn end<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId, ticket: u64) {
    let ended = request_of(handle, fabric, lock, ticket + 1);
    handle.request(lock).publish(fabric, ended.word());
    go_idle(handle, lock, ticket + 1);
}

fn go_idle<B: Backend>(handle: &NodeHandle<B>, lock: LockId, ticket: u64) {
    crash::reach(CrashPoint::LockEnded);
    let mut state = handle.tier().lock_state(lock);
    while let Err(found) = handle.tier().swap_lock_state(
        lock,
        state,
        LockState { phase: Phase::Idle, ticket, ..state },
    ) {
        state = found;
    }
}

/// What a client without LOCK-T1 takes for a grant.
fn is_granted_by_any<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    index: u64,
    ticket: u64,
) -> bool {
    handle.layout().nodes().any(|manager| {
        let grant = handle.layout().grants(manager).word(index).map(|word| word.fresh(fabric));
        grant.is_some_and(|grant| LockState::from_word(grant).ticket == ticket)
    })
}
