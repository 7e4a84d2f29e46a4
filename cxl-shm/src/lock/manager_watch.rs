//! Notices that the lock manager we wait for does not move.

use super::LockError;
use super::arbitrated::manager_of;
use crate::fabric::{Fabric, HostMemory};
use crate::member::{SUSPECT_MS, Seat};

/// Polls between two looks: each costs a refresh of the manager's heartbeat, and the suspicion
/// takes a second and a half anyway.
const POLLS_PER_LOOK: u32 = 32;

/// Watches the lock manager of the term that this host obeys.
#[derive(Debug, Default)]
pub(super) struct ManagerWatch {
    polls: u32,
    /// Term, heartbeat, and since when it has been so.
    seen: Option<(u64, u64, u64)>,
}

impl ManagerWatch {
    /// To be called at each poll that was in vain. The error when nothing has moved for
    /// [`SUSPECT_MS`].
    pub(super) fn look<F: Fabric, H: HostMemory>(
        &mut self,
        seat: &Seat<H>,
        fabric: &F,
        now_ms: u64,
    ) -> Option<LockError> {
        // Not the first: mostly the grant comes before there is anything to suspect.
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(POLLS_PER_LOOK) {
            return None;
        }
        let term = seat.tier().term();
        let manager = manager_of(seat.layout(), term);
        let beat = manager.map_or(0, |node| seat.layout().manager_heartbeat(node).fresh(fabric));
        match self.seen {
            Some((seen_term, seen_beat, since_ms)) if (seen_term, seen_beat) == (term, beat) => {
                let silent_ms = now_ms.saturating_sub(since_ms);
                (silent_ms >= SUSPECT_MS).then_some(match manager {
                    None => LockError::NoManager,
                    Some(node) => LockError::ManagerSilent { node, term, silent_ms },
                })
            }
            _ => {
                self.seen = Some((term, beat, now_ms));
                None
            }
        }
    }
}
