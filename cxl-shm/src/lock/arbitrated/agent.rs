//! A host's agent: beats its heart and follows the lock managers from term to term.

use super::manager_of;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory, PublishBatch, refresh_all};
use crate::layout::{Layout, ManagerClaim};
use crate::lock::stamp::{Phase, Stamp, TERM_MAX};
use crate::member::{RESIGN_BEATS, Seat};
use crate::mutant::{self, Mutant};
use crate::units::{LockId, NodeId};

/// The work of the one elected agent of a host. Driven by [`tick`](Self::tick), every few
/// milliseconds; holds no clock of its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Agent {
    beats: u64,
    /// Looks in a row at which no lock manager lived on this host.
    unmanaged: u64,
}

/// Beats between two looks for a lock manager on this host: each is a system call.
const MANAGER_LOOK_BEATS: u64 = 64;

impl Agent {
    /// One heartbeat, and one look for a newer term.
    pub(crate) fn tick<F: Fabric, H: HostMemory>(&mut self, seat: &Seat<H>, fabric: &F) {
        self.beats = beat_heart(seat, fabric);
        obey_newest_term(seat, fabric);
    }

    /// Whether the last beat was one after which to look for a lock manager on this host.
    pub(crate) fn is_time_for_managers(&self) -> bool {
        self.beats.is_multiple_of(MANAGER_LOOK_BEATS)
    }

    /// Takes note of such a look. Whether none has lived here for long.
    pub(crate) fn has_missed_managers(&mut self, lives: bool) -> bool {
        self.unmanaged = if lives { 0 } else { self.unmanaged + 1 };
        let for_long = self.unmanaged >= RESIGN_BEATS / MANAGER_LOOK_BEATS;
        if for_long {
            self.unmanaged = 0;
        }
        for_long
    }
}

/// The heart of this host beats once; how often it has by now. Only of the agent, and of a process that
/// is alone on its host.
pub(crate) fn beat_heart<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F) -> u64 {
    let heartbeat = seat.heartbeat();
    // From the published word, not from our own count: another process may have been agent.
    let beats = heartbeat.own(fabric).wrapping_add(1);
    heartbeat.publish(fabric, beats);
    beats
}

/// Moves every lock of this host to the newest term that any manager has claimed (T2).
pub(crate) fn obey_newest_term<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F) {
    let newest = newest_term(seat.layout(), fabric);
    if newest <= seat.tier().term() {
        return;
    }
    let acks = seat.acks();
    let mut batch = PublishBatch::new(fabric);
    if mutant::is(Mutant::AcknowledgesFirst) {
        acknowledge_unmoved(seat, fabric, newest);
    }
    for lock in (0..seat.layout().locks()).map(LockId) {
        let mut stamp = seat.tier().stamp(lock);
        let moved = loop {
            let moved = Stamp { term: newest, ..stamp };
            if mutant::is(Mutant::TermInTwoSteps) {
                seat.tier().set_stamp(lock, moved);
                break moved;
            }
            match seat.tier().swap_stamp(lock, stamp, moved) {
                Ok(()) => break moved,
                Err(found) => stamp = found,
            }
        };
        // T3: what is held is reported by its ticket; one word carries both it and the term.
        let held = match moved.phase {
            Phase::Hold if !mutant::is(Mutant::AcknowledgesNoHolder) => moved,
            _ => Stamp { term: newest, phase: Phase::Idle, ticket: 0 },
        };
        let ack = acks.word(u64::from(lock.0)).expect("the area has a word per lock");
        batch.word(ack, held.word());
    }
    crash::reach(CrashPoint::TermStamped);
    batch.publish();
    crash::reach(CrashPoint::TermAcknowledged);
    seat.tier().set_term(newest);
}

/// What an agent without T2 does first: says that nothing is held, or what was held a moment ago.
fn acknowledge_unmoved<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, term: u64) {
    let mut batch = PublishBatch::new(fabric);
    for lock in (0..seat.layout().locks()).map(LockId) {
        let stamp = seat.tier().stamp(lock);
        let held = match stamp.phase {
            Phase::Hold => Stamp { term, ..stamp },
            Phase::Idle | Phase::Wait => Stamp { term, phase: Phase::Idle, ticket: 0 },
        };
        batch.word(seat.acks().word(u64::from(lock.0)).expect("a word per lock"), held.word());
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
