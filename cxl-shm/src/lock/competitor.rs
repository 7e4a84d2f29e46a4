//! The shared tier of a lock under the protocol of the region.

use super::shared_tier::{DamagedRequest, Held, SharedTier};
use super::{arbitrated, bakery};
use crate::fabric::Fabric;
use crate::layout::{Layout, LockProtocol};
use crate::node::{Backend, NodeHandle};
use crate::units::{LockId, NodeId};

/// An acquisition under the protocol of the region.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Competitor {
    /// Granted by a lock manager.
    Arbitrated(arbitrated::Acquire),
    /// By numbers.
    Bakery(bakery::Acquire),
}

impl SharedTier for Competitor {
    fn begin<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> Self {
        match handle.lock_protocol() {
            LockProtocol::Arbitrated => {
                Self::Arbitrated(arbitrated::Acquire::begin(handle, fabric, lock))
            }
            LockProtocol::Bakery => Self::Bakery(bakery::Acquire::begin(handle, fabric, lock)),
        }
    }

    fn poll<B: Backend>(
        &mut self,
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
    ) -> Result<Option<Held>, DamagedRequest> {
        match self {
            Self::Arbitrated(acquire) => acquire.poll(handle, fabric),
            Self::Bakery(acquire) => acquire.poll(handle, fabric),
        }
    }

    fn was_behind(&self) -> bool {
        match self {
            Self::Arbitrated(acquire) => acquire.was_behind(),
            Self::Bakery(acquire) => acquire.was_behind(),
        }
    }

    fn withdraw<B: Backend>(self, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        match self {
            Self::Arbitrated(acquire) => acquire.withdraw(handle, fabric),
            Self::Bakery(acquire) => acquire.withdraw(handle, fabric),
        }
    }

    fn release<B: Backend>(held: Held, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        match handle.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::release(held, handle, fabric),
            LockProtocol::Bakery => bakery::Acquire::release(held, handle, fabric),
        }
    }

    fn release_after_death<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
        match handle.lock_protocol() {
            LockProtocol::Arbitrated => {
                arbitrated::Acquire::release_after_death(handle, fabric, lock)
            }
            LockProtocol::Bakery => bakery::Acquire::release_after_death(handle, fabric, lock),
        }
    }

    fn make_consistent<B: Backend>(held: Held, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        match handle.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::make_consistent(held, handle, fabric),
            LockProtocol::Bakery => bakery::Acquire::make_consistent(held, handle, fabric),
        }
    }

    fn may_have_held<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> bool {
        match handle.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::may_have_held(handle, fabric, lock),
            LockProtocol::Bakery => bakery::Acquire::may_have_held(handle, fabric, lock),
        }
    }

    fn is_wanted_elsewhere<B: Backend>(
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
        lock: LockId,
    ) -> bool {
        match handle.lock_protocol() {
            LockProtocol::Arbitrated => {
                arbitrated::Acquire::is_wanted_elsewhere(handle, fabric, lock)
            }
            LockProtocol::Bakery => bakery::Acquire::is_wanted_elsewhere(handle, fabric, lock),
        }
    }

    fn has_tickets<B: Backend>(handle: &NodeHandle<B>, lock: LockId) -> bool {
        match handle.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::has_tickets(handle, lock),
            LockProtocol::Bakery => bakery::Acquire::has_tickets(handle, lock),
        }
    }

    fn can_resume<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) -> bool {
        match handle.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::can_resume(handle, fabric, lock),
            LockProtocol::Bakery => bakery::Acquire::can_resume(handle, fabric, lock),
        }
    }

    fn resume<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
        match handle.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::resume(handle, fabric, lock),
            LockProtocol::Bakery => bakery::Acquire::resume(handle, fabric, lock),
        }
    }
}

/// Ends every request of `node`, so that nobody waits for it any more.
///
/// MEM-M1: the words pass to this host because their writer is fenced, that is can write no more,
/// and because one recoverer was decided on, which is this host. Its open intents were redone
/// before (LOCK-L2). May be repeated by a recoverer after this one.
pub(crate) fn clear_requests_of<F: Fabric>(
    protocol: LockProtocol,
    layout: &Layout,
    fabric: &F,
    node: NodeId,
) {
    match protocol {
        LockProtocol::Arbitrated => arbitrated::clear_requests(layout, fabric, node),
        LockProtocol::Bakery => bakery::clear_requests(layout, fabric, node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::layout::Geometry;
    use crate::verify::fixture::{EvenLive, SMALL, SmallRegion};

    const LOCK: LockId = LockId(11);

    /// A host dies holding one lock and waiting for nothing; its recoverer clears its requests,
    /// more than once.
    fn a_cleared_node_holds_nothing(lock_protocol: LockProtocol) {
        let region = SmallRegion::new(Geometry { locks: 16, ..SMALL }, lock_protocol);
        let clock = SystemClock::start();
        let [recoverer, victim] = [0, 1].map(|host| region.join(host, 2, EvenLive, &clock));
        let mut manage = recoverer.manage().unwrap();
        manage.claim().unwrap();
        recoverer.beat();
        victim.beat();
        let mut held = victim.begin_shared(LOCK, &clock);
        let guard = (0..8).find_map(|_| {
            manage.poll();
            held.poll().unwrap()
        });
        std::mem::forget(guard.expect("nobody else wants it"));
        region.rack.crash(1);

        let mut pending = recoverer.begin_shared(LOCK, &clock);
        let mut look = |pending: &mut crate::lock::PendingLock<'_, _>| {
            (0..8).any(|_| {
                manage.poll();
                pending.poll().unwrap().is_some()
            })
        };
        assert!(!look(&mut pending), "{lock_protocol}: the dead host holds it");
        let (layout, fabric) = (*recoverer.layout(), recoverer.fabric());
        for _ in 0..2 {
            clear_requests_of(lock_protocol, &layout, fabric, NodeId(1));
        }
        assert!(look(&mut pending), "{lock_protocol}: cleared, and still waited for");
    }

    #[test]
    fn a_cleared_node_holds_no_arbitrated_lock() {
        a_cleared_node_holds_nothing(LockProtocol::Arbitrated);
    }

    #[test]
    fn a_cleared_node_holds_no_lock_of_the_bakery() {
        a_cleared_node_holds_nothing(LockProtocol::Bakery);
    }
}
