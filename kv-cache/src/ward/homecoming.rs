//! The next life of a node that somebody looked after (W2).

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::Liveness;
use cxl_shm::units::NodeId;

use crate::heap::Heap;

/// How long it waits for a guardian. One that runs looks before every batch of evictions, before it looks
/// at all that the ward published, and while it waits for a lock, however long that may take (W2): this
/// is much longer than what lies between two of these looks. What a process left that died, the
/// others of its host end twice a second; a host that is dead or paused nobody can wait for.
const WAIT_MS: u64 = 10_000;

/// What this node published in its earlier life is still being emptied by another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "node {guardian} is still at what this node published in its earlier life, and does not stop: \
     its host is paused, or dead and not fenced yet (`rackline status`); start again once it goes \
     on, or is recovered"
)]
pub struct BeingEmptied {
    /// Who is at it.
    pub guardian: NodeId,
}

impl<F: Fabric, H: HostMemory, L: Liveness> Heap<'_, F, H, L> {
    /// Waits until nobody else writes what this node published in earlier lives, unless a process of
    /// this one took it over already. What was written since it joined the caches do not hold: the
    /// first sweep refreshes them (M8).
    pub(crate) fn come_home(&self, clock: &impl Clock) -> Result<(), BeingEmptied> {
        let until_ms = clock.now_ms().saturating_add(WAIT_MS);
        let mut tries = 0;
        loop {
            match self.is_home(clock) {
                Err(_) if clock.now_ms() < until_ms => clock.pause(tries),
                outcome => return outcome,
            }
            tries += 1;
        }
    }

    /// One look whether it is so.
    pub(crate) fn is_home(&self, clock: &impl Clock) -> Result<(), BeingEmptied> {
        if self.is_built(clock) {
            return Ok(());
        }
        self.member().still_guarded().map_or(Ok(()), |guardian| Err(BeingEmptied { guardian }))
    }
}
