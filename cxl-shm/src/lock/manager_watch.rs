//! Notices a silent lock manager, and remembers it for the whole host.
//!
//! A thread that finds the manager silent writes that manager's term and heartbeat into a word of
//! the host tier. The next thread that asks for a lock checks once whether the heartbeat is still
//! the same, and is then refused at once. So a silence costs a host [`SUSPECT_MS`] once, not at
//! every request. Only time in which the thread looked counts as silence (BEAT-G0 of
//! [`Stillness`]).

use super::LockError;
use super::arbitrated::manager_of;
use crate::node::{Backend, LOOK_GAP_MAX_MS, NodeHandle, SUSPECT_MS, Stillness};
use crate::units::NodeId;

/// Polls between two looks: each costs a refresh of the manager's heartbeat, and the suspicion
/// takes a second and a half anyway.
const POLLS_PER_LOOK: u32 = 32;
/// The longest time between two looks of a waiter that polls seldom: few polls must not look like a
/// pause of the waiter (BEAT-G0).
const LOOK_MS: u64 = LOOK_GAP_MAX_MS / 4;
/// Bits of the heartbeat in the host's word: above them there is room for a term and none.
const BEAT_BITS: u32 = 39;

/// The manager of the term that this host obeys, as it was at one look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sighting {
    term: u64,
    manager: Option<NodeId>,
    beat: u64,
}

impl Sighting {
    fn fresh<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) -> Self {
        let term = handle.tier().term();
        let manager = manager_of(handle.layout(), term);
        let beat = manager.map_or(0, |node| handle.layout().manager_heartbeat(node).fresh(fabric));
        Self { term, manager, beat }
    }

    /// What the host remembers of it. Never 0.
    fn word(self) -> u64 {
        (self.term + 1) << BEAT_BITS | self.beat & ((1 << BEAT_BITS) - 1)
    }

    fn silent_for(self, silent_ms: u64) -> LockError {
        match self.manager {
            None => LockError::NoManager,
            Some(node) => LockError::ManagerSilent { node, term: self.term, silent_ms },
        }
    }
}

/// Watches the lock manager of the term that this host obeys.
#[derive(Debug, Default)]
pub(super) struct ManagerWatch {
    polls: u32,
    /// When it was looked at last; before the first look, when it was polled first.
    looked_ms: Option<u64>,
    /// As it was last seen, and for how long it has been so.
    seen: Stillness<Sighting>,
}

impl ManagerWatch {
    /// To be called at each poll that was in vain. The error when nothing has moved for
    /// [`SUSPECT_MS`], as seen by us, or by others of this host before us.
    pub(super) fn look<B: Backend>(
        &mut self,
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
        now_ms: u64,
    ) -> Option<LockError> {
        let remembered = if self.polls == 0 { handle.tier().silence() } else { 0 };
        self.polls = self.polls.wrapping_add(1).max(1);
        // Not the first, unless others know something: mostly the grant comes before there is
        // anything to suspect.
        let looked_ms = *self.looked_ms.get_or_insert(now_ms);
        let is_due = self.polls.is_multiple_of(POLLS_PER_LOOK)
            || now_ms.saturating_sub(looked_ms) >= LOOK_MS;
        if remembered == 0 && !is_due {
            return None;
        }
        self.looked_ms = Some(now_ms);
        let sighting = Sighting::fresh(handle, fabric);
        if remembered == sighting.word() {
            return Some(sighting.silent_for(SUSPECT_MS));
        }
        // It moves, or another one is obeyed.
        if remembered != 0 {
            handle.tier().swap_silence(remembered, 0);
        }
        // The time was read before the manager's heartbeat: that can only make a silence shorter.
        let silent_ms = self.seen.look(sighting, now_ms);
        (silent_ms >= SUSPECT_MS).then(|| {
            let before = handle.tier().silence();
            handle.tier().swap_silence(before, sighting.word());
            sighting.silent_for(silent_ms)
        })
    }
}
