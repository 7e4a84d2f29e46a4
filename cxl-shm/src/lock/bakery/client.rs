//! A node's way through the bakery.

use super::number::Request;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory, PublishBatch, refresh_all};
use crate::layout::Layout;
use crate::lock::shared_tier::{DamagedRequest, Held, SharedTier, others_requests};
use crate::lock::stamp::{Phase, Stamp};
use crate::member::Seat;
use crate::units::{LockId, NODES_MAX, NodeId};

/// An acquisition in progress.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[must_use = "an acquisition that is neither polled nor withdrawn strands the lock"]
pub(crate) struct Acquire {
    lock: LockId,
    stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// *Choosing* is published.
    Choosing,
    /// The number is published. Of the nodes that may be ahead, those in `numbered` were seen with a
    /// smaller number since.
    Waiting { number: u64, ahead: NodeSet, numbered: NodeSet },
}

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct NodeSet(u32);
const _: () = assert!(NODES_MAX as u32 <= u32::BITS);

impl NodeSet {
    fn with(self, node: NodeId) -> Self {
        Self(self.0 | 1 << node.0)
    }

    fn without(self, node: NodeId) -> Self {
        Self(self.0 & !(1 << node.0))
    }

    fn contains(self, node: NodeId) -> bool {
        self.0 & 1 << node.0 != 0
    }
}

impl SharedTier for Acquire {
    fn begin<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) -> Self {
        debug_assert_eq!(seat.tier().stamp(lock).phase, Phase::Idle, "one competitor a host");
        // The stamp first: whoever dies from here on leaves something to end.
        set_phase(seat, lock, Phase::Wait);
        crash::reach(CrashPoint::LockStamped);
        seat.request(lock).publish(fabric, Request::Choosing.word());
        crash::reach(CrashPoint::LockRequested);
        Self { lock, stage: Stage::Choosing }
    }

    fn poll<F: Fabric, H: HostMemory>(
        &mut self,
        seat: &Seat<H>,
        fabric: &F,
    ) -> Result<Option<Held>, DamagedRequest> {
        match &mut self.stage {
            Stage::Choosing => {
                let mut next = Request::FIRST;
                for (node, word) in others_requests(seat, fabric, self.lock) {
                    let request = Request::from_word(word).ok_or(DamagedRequest { node })?;
                    let after = request.next().ok_or(DamagedRequest { node })?;
                    next = after.max(next);
                }
                seat.request(self.lock).publish(fabric, Request::Number(next).word());
                crash::reach(CrashPoint::LockNumbered);
                let ahead = NodeSet(u32::MAX).without(seat.node());
                let numbered = NodeSet(0);
                self.stage = Stage::Waiting { number: next, ahead, numbered };
                Ok(None)
            }
            Stage::Waiting { number, ahead, numbered } => {
                let (me, mine, before) = (seat.node(), *number, *ahead);
                let layout = seat.layout();
                let nodes = || layout.nodes().filter(move |node| before.contains(*node));
                refresh_all(fabric, nodes().map(|node| layout.request(node, self.lock).range()));
                let mut any = false;
                for node in nodes() {
                    let word = layout.request(node, self.lock).cached(fabric);
                    let is_before = match Request::from_word(word) {
                        None => return Err(DamagedRequest { node }),
                        Some(Request::None) => false,
                        // B4: who had its turn before us chooses again, and finds our number.
                        Some(Request::Choosing) => !numbered.contains(node),
                        Some(Request::Number(theirs)) if (theirs, node) < (mine, me) => {
                            *numbered = numbered.with(node);
                            true
                        }
                        Some(Request::Number(_)) => false,
                    };
                    any |= is_before;
                    if !is_before {
                        *ahead = ahead.without(node);
                    }
                }
                if any {
                    return Ok(None);
                }
                set_phase(seat, self.lock, Phase::Hold);
                crash::reach(CrashPoint::LockHeld);
                Ok(Some(Held { lock: self.lock, ticket: 0 }))
            }
        }
    }

    fn withdraw<F: Fabric, H: HostMemory>(self, seat: &Seat<H>, fabric: &F) {
        crash::reach(CrashPoint::LockWithdrawing);
        end(seat, fabric, self.lock);
    }

    fn release<F: Fabric, H: HostMemory>(held: Held, seat: &Seat<H>, fabric: &F) {
        crash::reach(CrashPoint::LockReleasing);
        end(seat, fabric, held.lock);
    }

    fn release_after_death<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
        if seat.tier().stamp(lock).phase != Phase::Idle {
            end(seat, fabric, lock);
        }
    }

    fn is_wanted_elsewhere<F: Fabric, H: HostMemory>(
        seat: &Seat<H>,
        fabric: &F,
        lock: LockId,
    ) -> bool {
        others_requests(seat, fabric, lock).any(|(_, word)| word != Request::None.word())
    }

    /// Always: numbers start again whenever nobody has one.
    fn has_tickets<H: HostMemory>(_: &Seat<H>, _: LockId) -> bool {
        true
    }

    /// Always: nothing goes on from the former word.
    fn can_resume<F: Fabric, H: HostMemory>(_: &Seat<H>, _: &F, _: LockId) -> bool {
        true
    }

    fn resume<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
        let request = seat.request(lock);
        if request.own(fabric) != Request::None.word() {
            request.publish(fabric, Request::None.word());
        }
        seat.resume_stamp(lock, 0);
    }
}

/// Clears the words of a fenced node.
pub(crate) fn clear_requests<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    let requests = layout.requests(node).claim();
    fabric.refresh(requests.range());
    let mut batch = PublishBatch::new(fabric);
    for lock in 0..layout.locks() {
        let request = requests.word(u64::from(lock)).expect("the area has a word per lock");
        if request.own(fabric) != Request::None.word() {
            batch.word(request, Request::None.word());
        }
    }
    batch.publish();
}

/// Release and withdrawal. The word is published *before* the stamp goes idle: whoever dies in
/// between leaves a stamp that says there is still something to end.
fn end<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
    seat.request(lock).publish(fabric, Request::None.word());
    crash::reach(CrashPoint::LockEnded);
    set_phase(seat, lock, Phase::Idle);
}

/// The agent may change the stamp's term at the same time.
fn set_phase<H: HostMemory>(seat: &Seat<H>, lock: LockId, phase: Phase) {
    let mut stamp = seat.tier().stamp(lock);
    while let Err(found) = seat.tier().swap_stamp(lock, stamp, Stamp { phase, ..stamp }) {
        stamp = found;
    }
}
