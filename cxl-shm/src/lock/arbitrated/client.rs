//! A node's side of a lock: request, wait for the grant, release or withdraw.
//!
//! One thread of the host is here at a time; only the agent changes the stamp beside it, and only
//! its term.

use super::manager_of;
use super::summary::{Summary, is_hidden, tell_manager};
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory, PublishBatch};
use crate::layout::Layout;
use crate::lock::shared_tier::{DamagedRequest, Held, SharedTier, others_requests};
use crate::lock::stamp::{Phase, Stamp, TICKET_END};
use crate::member::Seat;
use crate::mutant::{self, Mutant};
use crate::units::{LockId, NodeId};

/// An acquisition in progress.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[must_use = "an acquisition that is neither polled nor withdrawn strands the lock"]
pub(crate) struct Acquire {
    lock: LockId,
    ticket: u64,
    /// What this thread told the manager last (S2).
    told: Summary,
}

impl SharedTier for Acquire {
    fn begin<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) -> Self {
        let mut stamp = seat.tier().stamp(lock);
        let ticket = if mutant::is(Mutant::ReusesTicket) { 1 } else { stamp.ticket + 1 };
        debug_assert_eq!(stamp.phase, Phase::Idle, "one competitor a host, and it is recovered");
        // The stamp first: from here on the agent reports us under a new term (T2).
        while let Err(found) =
            seat.tier().swap_stamp(lock, stamp, Stamp { phase: Phase::Wait, ticket, ..stamp })
        {
            stamp = found;
        }
        crash::reach(CrashPoint::LockStamped);
        // In this order: a manager that is told finds the request.
        seat.request(lock).publish(fabric, ticket);
        crash::reach(CrashPoint::LockTicketPublished);
        let told = tell_manager(seat, fabric, lock);
        crash::reach(CrashPoint::LockRequested);
        Self { lock, ticket, told }
    }

    /// Looks whether the manager of the term we obey has granted our ticket.
    fn poll<F: Fabric, H: HostMemory>(
        &mut self,
        seat: &Seat<H>,
        fabric: &F,
    ) -> Result<Option<Held>, DamagedRequest> {
        let Self { lock, ticket, told } = *self;
        let waiting = Stamp { phase: Phase::Wait, ..seat.tier().stamp(lock) };
        let Some(manager) = manager_of(seat.layout(), waiting.term) else {
            return Ok(None);
        };
        let index = seat.layout().grant_index(seat.node(), lock);
        let grants = seat.layout().grants(manager);
        let grant = grants.word(index).expect("the index is in the layout").fresh(fabric);
        let expected = Stamp { term: waiting.term, phase: Phase::Hold, ticket }.word();
        let ungranted = grant != expected
            && !(mutant::is(Mutant::NoTermCheck) && is_granted_by_any(seat, fabric, index, ticket));
        if ungranted {
            // S2. After the look: a request that was granted needs no more.
            if !mutant::is(Mutant::TellsOnce) && is_hidden(seat, fabric, told) {
                self.told = tell_manager(seat, fabric, lock);
            }
            return Ok(None);
        }
        // T1: enter only from {T, wait, t}. The agent may have moved on to another term.
        let hold = Stamp { phase: Phase::Hold, ..waiting };
        if mutant::is(Mutant::EntersByStore) {
            seat.tier().set_stamp(lock, hold);
        } else if seat.tier().swap_stamp(lock, waiting, hold).is_err() {
            return Ok(None);
        }
        crash::reach(CrashPoint::LockHeld);
        Ok(Some(Held { lock, ticket }))
    }

    fn withdraw<F: Fabric, H: HostMemory>(self, seat: &Seat<H>, fabric: &F) {
        crash::reach(CrashPoint::LockWithdrawing);
        end(seat, fabric, self.lock, self.ticket);
        // So that it is not granted what it has given up: others would wait for a round in vain.
        tell_manager(seat, fabric, self.lock);
    }

    /// The manager is not told: it looks at whoever holds what others want.
    fn release<F: Fabric, H: HostMemory>(held: Held, seat: &Seat<H>, fabric: &F) {
        crash::reach(CrashPoint::LockReleasing);
        end(seat, fabric, held.lock, held.ticket);
    }

    fn release_after_death<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
        let stamp = seat.tier().stamp(lock);
        if stamp.phase != Phase::Idle {
            end(seat, fabric, lock, stamp.ticket);
        }
    }

    fn is_wanted_elsewhere<F: Fabric, H: HostMemory>(
        seat: &Seat<H>,
        fabric: &F,
        lock: LockId,
    ) -> bool {
        others_requests(seat, fabric, lock).any(|(_, ticket)| !ticket.is_multiple_of(2))
    }

    /// A2: the last tickets are not begun with, as release is one more.
    fn has_tickets<H: HostMemory>(seat: &Seat<H>, lock: LockId) -> bool {
        seat.tier().stamp(lock).ticket < TICKET_END - 2
    }

    /// M5: a ticket beyond all counting is not gone on from.
    fn can_resume<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) -> bool {
        seat.request(lock).own(fabric) < TICKET_END
    }

    /// A2: tickets go on from where they were.
    fn resume<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
        let request = seat.request(lock);
        let ticket = request.own(fabric);
        let even = ticket.next_multiple_of(2);
        if even != ticket {
            request.publish(fabric, even);
        }
        seat.resume_stamp(lock, even);
    }
}

/// Makes the tickets of a fenced node even (A2). The manager finds it when it looks at who holds
/// what others want.
pub(crate) fn clear_requests<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    let requests = layout.requests(node).claim();
    fabric.refresh(requests.range());
    let mut batch = PublishBatch::new(fabric);
    for lock in 0..layout.locks() {
        let request = requests.word(u64::from(lock)).expect("the area has a word per lock");
        let ticket = request.own(fabric);
        if !ticket.is_multiple_of(2) {
            // A damaged ticket (M5) may be the largest number there is.
            batch.word(request, ticket.checked_add(1).unwrap_or(u64::MAX - 1));
        }
    }
    batch.publish();
}

/// Release and withdrawal: the ticket becomes even. It is published *before* the stamp goes idle:
/// whoever dies in between leaves a stamp that says there is still something to end.
fn end<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId, ticket: u64) {
    seat.request(lock).publish(fabric, ticket + 1);
    crash::reach(CrashPoint::LockEnded);
    let mut stamp = seat.tier().stamp(lock);
    while let Err(found) = seat.tier().swap_stamp(
        lock,
        stamp,
        Stamp { phase: Phase::Idle, ticket: ticket + 1, ..stamp },
    ) {
        stamp = found;
    }
}

/// What a client without T1 takes for a grant.
fn is_granted_by_any<F: Fabric, H: HostMemory>(
    seat: &Seat<H>,
    fabric: &F,
    index: u64,
    ticket: u64,
) -> bool {
    seat.layout().nodes().any(|manager| {
        let grant = seat.layout().grants(manager).word(index).map(|word| word.fresh(fabric));
        grant.is_some_and(|grant| Stamp::from_word(grant).ticket == ticket)
    })
}
