//! A node's side of a lock: request, wait for the grant, release or withdraw.
//!
//! The caller holds the host lock of the same lock id, so one thread of the host is here at a
//! time; only the agent changes the stamp beside it, and only its term.

use super::manager_of;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory, OwnedWord};
use crate::lock::stamp::{Phase, Stamp};
use crate::member::Seat;
use crate::units::LockId;

/// An acquisition in progress. `begin`, then `poll` until it holds, or `withdraw` at any time.
#[derive(Debug)]
#[must_use = "an acquisition that is neither polled nor withdrawn strands the lock"]
pub(crate) struct Acquire {
    lock: LockId,
    ticket: u64,
}

/// The lock is held under this ticket.
#[derive(Debug)]
#[must_use = "a held lock is released"]
pub(crate) struct Held {
    lock: LockId,
    ticket: u64,
}

impl Acquire {
    /// Publishes the request.
    ///
    /// The stamp must be idle: a predecessor that died with it was recovered from first
    /// ([`release_after_death`]).
    pub(crate) fn begin<F: Fabric, H: HostMemory>(
        seat: &Seat<H>,
        fabric: &F,
        lock: LockId,
    ) -> Self {
        let mut stamp = seat.tier().stamp(lock);
        let ticket = stamp.ticket + 1;
        debug_assert_eq!(stamp.phase, Phase::Idle, "one competitor a host, and it is recovered");
        // The stamp first: from here on the agent reports us under a new term (T2).
        while let Err(found) =
            seat.tier().swap_stamp(lock, stamp, Stamp { phase: Phase::Wait, ticket, ..stamp })
        {
            stamp = found;
        }
        crash::reach(CrashPoint::LockStamped);
        publish_request(seat, fabric, lock, ticket);
        crash::reach(CrashPoint::LockRequested);
        Self { lock, ticket }
    }

    /// Looks whether the manager of the term we obey has granted our ticket.
    ///
    /// # Errors
    /// The acquisition, when it has not.
    pub(crate) fn poll<F: Fabric, H: HostMemory>(
        self,
        seat: &Seat<H>,
        fabric: &F,
    ) -> Result<Held, Self> {
        let Self { lock, ticket } = self;
        let waiting = Stamp { phase: Phase::Wait, ..seat.tier().stamp(lock) };
        let Some(manager) = manager_of(seat.layout(), waiting.term) else {
            return Err(self);
        };
        let index = seat.layout().grant_index(seat.node(), lock);
        let grants = seat.layout().grants(manager);
        let grant = grants.word(index).expect("the index is in the layout").fresh(fabric);
        if grant != (Stamp { term: waiting.term, phase: Phase::Hold, ticket }).word() {
            return Err(self);
        }
        // T1: enter only from {T, wait, t}. The agent may have moved on to another term.
        let hold = Stamp { phase: Phase::Hold, ..waiting };
        match seat.tier().swap_stamp(lock, waiting, hold) {
            Ok(()) => {
                crash::reach(CrashPoint::LockHeld);
                Ok(Held { lock, ticket })
            }
            Err(_) => Err(self),
        }
    }

    /// Gives up waiting. Always legal, also when the grant is on its way.
    pub(crate) fn withdraw<F: Fabric, H: HostMemory>(self, seat: &Seat<H>, fabric: &F) {
        crash::reach(CrashPoint::LockWithdrawing);
        end(seat, fabric, self.lock, self.ticket);
    }
}

impl Held {
    /// Releases. Everything the lock protects has been published (A3).
    pub(crate) fn release<F: Fabric, H: HostMemory>(self, seat: &Seat<H>, fabric: &F) {
        crash::reach(CrashPoint::LockReleasing);
        end(seat, fabric, self.lock, self.ticket);
    }
}

/// Ends what a process that died waiting or holding had begun. Its intents were redone before.
pub(crate) fn release_after_death<F: Fabric, H: HostMemory>(
    seat: &Seat<H>,
    fabric: &F,
    lock: LockId,
) {
    let stamp = seat.tier().stamp(lock);
    if stamp.phase != Phase::Idle {
        end(seat, fabric, lock, stamp.ticket);
    }
}

/// Release and withdrawal: the ticket becomes even. The request is published *before* the stamp
/// goes idle: whoever dies in between leaves a stamp that says there is still something to end.
fn end<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId, ticket: u64) {
    publish_request(seat, fabric, lock, ticket + 1);
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

/// Publishes a ticket, then the summary that tells the manager to look. In this order: a manager
/// that sees the summary finds the request.
fn publish_request<F: Fabric, H: HostMemory>(
    seat: &Seat<H>,
    fabric: &F,
    lock: LockId,
    ticket: u64,
) {
    seat.request(lock).publish(fabric, ticket);
    crash::reach(CrashPoint::LockTicketPublished);
    bump_summary(seat, fabric);
}

/// Several threads of the host may bump it at once, and one bump may be lost in another: the
/// value still changes after each request, because each bump comes after its own request and
/// takes a number that no bump before it had.
pub(super) fn bump_summary<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F) {
    let summary: OwnedWord = seat.summary();
    summary.publish(fabric, seat.tier().next_summary());
}
