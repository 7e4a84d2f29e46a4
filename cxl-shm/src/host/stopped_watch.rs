//! Notices that the waiter before us in a queue does not take what it could take (LOCK-Q6 in
//! `queue`).

use super::lock::HolderToken;
use super::queue::{HostQueue, Idle, Living, Place, STOPPED_MS};
use crate::fabric::HostMemory;

/// What a waiter has seen of the first waiter before it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct StoppedWatch {
    /// The waiter that leaves a lock that it could take, and since when by our clock.
    idle: Option<(Idle, u64)>,
    /// The owner that was found dead last.
    dead: Option<HolderToken>,
}

impl StoppedWatch {
    /// To be called after each look at the queue that was in vain, with the same `thorough`.
    pub(crate) fn look<H: HostMemory>(
        &mut self,
        queue: &HostQueue<'_, H>,
        me: HolderToken,
        place: Place,
        living: &impl Living,
        thorough: bool,
        now_ms: impl Fn() -> u64,
    ) {
        let Some(found) = queue.idle_before(me, place, living, thorough, &mut self.dead) else {
            self.idle = None;
            return;
        };
        let known = self.idle.filter(|(known, _)| *known == found);
        let (_, since_ms) = *self.idle.insert(known.unwrap_or_else(|| (found, now_ms())));
        if now_ms().saturating_sub(since_ms) >= STOPPED_MS {
            queue.pass_over(found);
        }
    }
}
