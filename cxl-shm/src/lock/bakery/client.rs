//! A node's way through the bakery.

use super::number::{Request, tally_of};
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, PublishBatch, refresh_all};
use crate::host::{LockState, Phase};
use crate::layout::Layout;
use crate::lock::shared_tier::{DamagedRequest, Held, SharedTier, others_requests};
use crate::lock::tally::{self, Tally, is_for_programs};
use crate::node::{Backend, NodeHandle};
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
    /// The number is published. Of the nodes that may be ahead, those in `numbered` were seen with
    /// a smaller number since. The tally is the largest of those seen (LOCK-L5).
    Waiting { number: u64, ahead: NodeSet, numbered: NodeSet, tally: Tally },
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
    fn begin<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> Self {
        debug_assert_eq!(
            handle.tier().lock_state(lock).phase,
            Phase::Idle,
            "one competitor a host"
        );
        // The lock state first: a thread that dies from here on leaves something to end.
        set_phase(handle, lock, Phase::Wait);
        crash::reach(CrashPoint::LockStateWritten);
        publish(handle, fabric, lock, Request::Choosing);
        crash::reach(CrashPoint::LockRequested);
        Self { lock, stage: Stage::Choosing }
    }

    fn poll<B: Backend>(
        &mut self,
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
    ) -> Result<Option<Held>, DamagedRequest> {
        match &mut self.stage {
            Stage::Choosing => {
                let mut next = Request::FIRST;
                for (node, word) in others_requests(handle, fabric, self.lock) {
                    let request = Request::from_word(word).ok_or(DamagedRequest { node })?;
                    let after = request.next().ok_or(DamagedRequest { node })?;
                    next = after.max(next);
                }
                let tally = publish(handle, fabric, self.lock, Request::Number(next));
                crash::reach(CrashPoint::LockNumbered);
                let ahead = NodeSet(u32::MAX).without(handle.node());
                let numbered = NodeSet(0);
                self.stage = Stage::Waiting { number: next, ahead, numbered, tally };
                Ok(None)
            }
            Stage::Waiting { number, ahead, numbered, tally } => {
                let (me, mine, before) = (handle.node(), *number, *ahead);
                let layout = handle.layout();
                let nodes = || layout.nodes().filter(move |node| before.contains(*node));
                refresh_all(fabric, nodes().map(|node| layout.request(node, self.lock).range()));
                let mut any = false;
                for node in nodes() {
                    let word = layout.request(node, self.lock).cached(fabric);
                    if is_for_programs(self.lock) {
                        *tally = tally_of(word).max(*tally);
                    }
                    let is_before = match Request::from_word(word) {
                        None => return Err(DamagedRequest { node }),
                        Some(Request::None) => false,
                        // LOCK-B4: a node that had its turn before us chooses again, and finds our
                        // number.
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
                let after_death = tally.tells();
                set_phase(handle, self.lock, Phase::Hold);
                crash::reach(CrashPoint::LockHeld);
                Ok(Some(Held { lock: self.lock, ticket: 0, after_death }))
            }
        }
    }

    fn was_behind(&self) -> bool {
        matches!(self.stage, Stage::Waiting { numbered, .. } if numbered != NodeSet(0))
    }

    fn withdraw<B: Backend>(self, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        crash::reach(CrashPoint::LockWithdrawing);
        end(handle, fabric, self.lock);
    }

    fn release<B: Backend>(held: Held, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        crash::reach(CrashPoint::LockReleasing);
        end(handle, fabric, held.lock);
    }

    fn release_after_death<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
        match handle.tier().lock_state(lock).phase {
            Phase::Hold if is_for_programs(lock) => {
                let tally = tally(handle, fabric, lock).after_death();
                handle.request(lock).publish(fabric, Request::None.word(tally));
                crash::reach(CrashPoint::LockEnded);
                set_phase(handle, lock, Phase::Idle);
            }
            Phase::Hold | Phase::Wait => end(handle, fabric, lock),
            Phase::Idle => {}
        }
    }

    fn make_consistent<B: Backend>(held: Held, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        let tally = tally(handle, fabric, held.lock).after_mending();
        let word = handle.request(held.lock);
        if let Some(request) = Request::from_word(word.own(fabric)) {
            // Published with the release: a thread that dies before that is told of, whatever the
            // tally.
            fabric.store(word.at(), request.word(tally));
        }
    }

    fn is_wanted_elsewhere<B: Backend>(
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
        lock: LockId,
    ) -> bool {
        others_requests(handle, fabric, lock)
            .any(|(_, word)| Request::from_word(word) != Some(Request::None))
    }

    /// Always: numbers start again whenever nobody has one.
    fn has_tickets<B: Backend>(_: &NodeHandle<B>, _: LockId) -> bool {
        true
    }

    /// Always: nothing continues from the former word.
    fn can_resume<B: Backend>(_: &NodeHandle<B>, _: &B::Fabric, _: LockId) -> bool {
        true
    }

    fn may_have_held<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> bool {
        let word = handle.request(lock).own(fabric);
        may_have_held(handle.layout(), fabric, handle.node(), lock, word)
    }

    fn resume<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
        let request = handle.request(lock);
        let word = request.own(fabric);
        if Request::from_word(word) != Some(Request::None) {
            request
                .publish(fabric, end_of_dead(handle.layout(), fabric, handle.node(), lock, word));
        }
        handle.resume_lock_state(lock, 0);
    }
}

/// Clears the words of a fenced node.
pub(crate) fn clear_requests<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    let requests = layout.requests(node).claim();
    fabric.refresh(requests.range());
    let mut batch = PublishBatch::new(fabric);
    for lock in 0..layout.locks() {
        let request = requests.word(u64::from(lock)).expect("the area has a word per lock");
        let word = request.own(fabric);
        if Request::from_word(word) != Some(Request::None) {
            batch.word(request, end_of_dead(layout, fabric, node, LockId(lock), word));
        }
    }
    batch.publish();
}

/// The word with which `word` of a dead life of `node` ends: its holder, if it was one, died
/// (LOCK-L5).
fn end_of_dead<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    node: NodeId,
    lock: LockId,
    word: u64,
) -> u64 {
    if !may_have_held(layout, fabric, node, lock, word) {
        return Request::None.word(tally_of(word));
    }
    let others = tally::of_others(layout, fabric, node, lock, tally_of);
    Request::None.word(tally_of(word).max(others).after_death())
}

/// Whether `node`, whose word for the program's lock `lock` is `word`, may have held it. Not when
/// another has a smaller number: for that one it waited (LOCK-B3).
fn may_have_held<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    node: NodeId,
    lock: LockId,
    word: u64,
) -> bool {
    if !is_for_programs(lock) {
        return false;
    }
    let number = match Request::from_word(word) {
        Some(Request::None | Request::Choosing) => return false,
        Some(Request::Number(number)) => number,
        None => return true,
    };
    let others = || layout.nodes().filter(|other| *other != node);
    refresh_all(fabric, others().map(|other| layout.request(other, lock).range()));
    !others().any(|other| {
        let theirs = Request::from_word(layout.request(other, lock).cached(fabric));
        matches!(theirs, Some(Request::Number(theirs)) if (theirs, other) < (number, node))
    })
}

/// The tally of `lock`, freshly read.
fn tally<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> Tally {
    let own = tally_of(handle.request(lock).own(fabric));
    own.max(tally::of_others(handle.layout(), fabric, handle.node(), lock, tally_of))
}

/// Publishes a request, and with it the tally that this node knows: of the region's own locks there
/// is none.
fn publish<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    lock: LockId,
    request: Request,
) -> Tally {
    let word = handle.request(lock);
    let known = if is_for_programs(lock) { tally_of(word.own(fabric)) } else { Tally::default() };
    word.publish(fabric, request.word(known));
    known
}

/// Release and withdrawal. The word is published *before* the lock state goes idle: a thread that
/// dies in between leaves a lock state which says that something is still to be ended.
fn end<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
    publish(handle, fabric, lock, Request::None);
    crash::reach(CrashPoint::LockEnded);
    set_phase(handle, lock, Phase::Idle);
}

/// The agent may change the lock state's term at the same time.
fn set_phase<B: Backend>(handle: &NodeHandle<B>, lock: LockId, phase: Phase) {
    let mut state = handle.tier().lock_state(lock);
    while let Err(found) = handle.tier().swap_lock_state(lock, state, LockState { phase, ..state })
    {
        state = found;
    }
}
