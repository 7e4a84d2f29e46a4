//! A host's agent: sends its heartbeat and follows the lock managers from term to term.

use std::ops::Range;

use super::manager_of;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, PublishBatch, refresh_all};
use crate::host::{LockState, Phase, TERM_MAX};
use crate::layout::{Layout, ManagerClaim};
use crate::mutant::{self, Mutant};
use crate::node::send_heartbeat;
use crate::node::{Backend, NodeHandle};
use crate::units::{LockId, NodeId};

/// Acknowledgements that are looked at with each beat (LOCK-T2b): a few lines.
const MENDED_LOCKS: u32 = 64;

/// One heartbeat of the one elected agent of a host, and one look for a newer term: called every
/// few milliseconds. How often the heartbeat has beaten by now.
pub(crate) fn tick<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) -> u64 {
    let beats = send_heartbeat(handle, fabric);
    obey_newest_term(handle, fabric);
    let parts = u64::from(handle.layout().locks().div_ceil(MENDED_LOCKS));
    let first = u32::try_from(beats % parts).unwrap_or(0) * MENDED_LOCKS;
    mend_acknowledgements(handle, fabric, first..first + MENDED_LOCKS);
    beats
}

/// Moves every lock of this host to the newest term that any manager has claimed (LOCK-T2).
///
/// Two agents of a host may be here at once: one that was deposed while it was stopped, and the one
/// that has the office since (BEAT-G2). Why that is safe:
///
/// - **LOCK-T2a** No lock state goes back to an older term. An agent that finds a lock state of a
///   later term than the one that it saw leaves the rest to the agent that moved it there.
/// - All acknowledgements of one lock that are made for one term say the same to its manager. A
///   lock state that has come to term T enters by no older grant, and by none of T before the
///   manager has read the acknowledgement. So between the first move to T and that reading a holder
///   can only release: an acknowledgement made later differs at most by naming no ticket where an
///   earlier one names one that was released, and a ticket whose request has moved on holds nothing
///   (LOCK-T3).
/// - An acknowledgement of T that is stored late, over that of a later term, harms nobody either:
///   the lock states are beyond T, so no grant of T is obeyed (LOCK-T5), and what it says of the
///   holder was true when the lock state was at T. But the manager of the later term waits for what
///   was overwritten.
/// - **LOCK-T2b** So the agent looks at its host's acknowledgements now and then, and writes those
///   anew that are of an older term than the host obeys ([`mend_acknowledgements`]). That may be
///   late in the same way, and is mended in the same way.
pub(crate) fn obey_newest_term<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) {
    let newest = newest_term(handle.layout(), fabric);
    if newest <= handle.tier().term() {
        return;
    }
    if mutant::is(Mutant::AcknowledgesFirst) {
        acknowledge_unmoved(handle, fabric, newest);
    }
    let mut held = Vec::new();
    for lock in (0..handle.layout().locks()).map(LockId) {
        let mut state = handle.tier().lock_state(lock);
        let moved = loop {
            if state.term > newest {
                // LOCK-T2a.
                return;
            }
            let moved = LockState { term: newest, ..state };
            if mutant::is(Mutant::TermInTwoSteps) {
                handle.tier().set_lock_state(lock, moved);
                break moved;
            }
            match handle.tier().swap_lock_state(lock, state, moved) {
                Ok(()) => break moved,
                Err(found) => state = found,
            }
        };
        held.push((lock, acknowledgement(moved)));
    }
    crash::reach(CrashPoint::TermWritten);
    let (acks, mut batch) = (handle.acks(), PublishBatch::new(fabric));
    for (lock, state) in held {
        let ack = acks.word(u64::from(lock.0)).expect("the area has a word per lock");
        batch.word(ack, state.word());
    }
    batch.publish();
    crash::reach(CrashPoint::TermAcknowledged);
    handle.tier().raise_term(newest);
}

/// What is acknowledged of a lock whose state was moved to its present term. LOCK-T3: what is
/// held is reported by its ticket; one word carries both it and the term.
fn acknowledgement(moved: LockState) -> LockState {
    match moved.phase {
        Phase::Hold if !mutant::is(Mutant::AcknowledgesNoHolder) => moved,
        _ => LockState { term: moved.term, phase: Phase::Idle, ticket: 0 },
    }
}

/// Publishes the acknowledgements of those `locks` anew that a deposed agent has overwritten with
/// one of an older term (LOCK-T2b). Mostly there is none, which costs a load each.
fn mend_acknowledgements<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    locks: Range<u32>,
) {
    let (term, acks) = (handle.tier().term(), handle.acks());
    let mut batch = PublishBatch::new(fabric);
    for lock in (locks.start..locks.end.min(handle.layout().locks())).map(LockId) {
        let ack = acks.word(u64::from(lock.0)).expect("the area has a word per lock");
        let state = handle.tier().lock_state(lock);
        // One that is beyond the term is being acknowledged.
        if state.term == term && LockState::from_word(ack.own(fabric)).term < term {
            batch.word(ack, acknowledgement(state).word());
        }
    }
    batch.publish();
}

/// What an agent without LOCK-T2 does first: says that nothing is held, or what was held a moment
/// ago.
fn acknowledge_unmoved<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, term: u64) {
    let mut batch = PublishBatch::new(fabric);
    for lock in (0..handle.layout().locks()).map(LockId) {
        let state = handle.tier().lock_state(lock);
        let held = match state.phase {
            Phase::Hold => LockState { term, ..state },
            Phase::Idle | Phase::Wait => LockState { term, phase: Phase::Idle, ticket: 0 },
        };
        batch.word(handle.acks().word(u64::from(lock.0)).expect("a word per lock"), held.word());
    }
    batch.publish();
}

/// The newest term over all managers; 0 when there never was one.
pub(super) fn newest_term<F: Fabric>(layout: &Layout, fabric: &F) -> u64 {
    newest_claim(layout, fabric).map_or(0, |(_, claim)| claim.term)
}

/// The newest claim over all managers, and its node.
pub(crate) fn newest_claim<F: Fabric>(
    layout: &Layout,
    fabric: &F,
) -> Option<(NodeId, ManagerClaim)> {
    refresh_all(fabric, layout.nodes().map(|node| layout.manager_claim(node).range()));
    newest_claim_cached(layout, fabric)
}

/// As [`newest_claim`], from what our caches hold. A claim that does not belong to its writer is a
/// faulty host's, and is ignored.
pub(super) fn newest_claim_cached<F: Fabric>(
    layout: &Layout,
    fabric: &F,
) -> Option<(NodeId, ManagerClaim)> {
    layout
        .nodes()
        .filter_map(|node| {
            let word = layout.manager_claim(node).cached(fabric);
            Some((node, ManagerClaim::from_word(word)?))
        })
        .filter(|(node, claim)| {
            claim.term <= TERM_MAX && manager_of(layout, claim.term) == Some(*node)
        })
        .max_by_key(|(_, claim)| claim.term)
}
