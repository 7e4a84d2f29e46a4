//! The shared tier of a lock, whatever its protocol.

use std::fmt::Debug;
use std::hash::Hash;

use super::stamp::Phase;
use super::{arbitrated, bakery};
use crate::fabric::{Fabric, HostMemory, refresh_all};
use crate::layout::{Layout, LockProtocol};
use crate::member::Seat;
use crate::units::{LockId, NodeId};

/// A node's side of a lock between hosts, as a state machine: an acquisition in progress. `begin`,
/// then `poll` until it holds, or `withdraw` at any time.
///
/// One thread of the host is here at a time: the caller holds the host tier's lock of the same lock
/// id. What outlives that thread is the host's *stamp* of the lock (its phase: idle, waiting,
/// holding), so that a lock can be passed to another thread ([`Held::passed`]) and ended after a
/// death.
pub(crate) trait SharedTier: Clone + Eq + Hash + Debug + Sized {
    /// Publishes that this node wants `lock`. The stamp is idle: a predecessor that died with it was
    /// recovered from first.
    fn begin<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) -> Self;

    /// A few operations towards the lock; what is held, once it is. Not called again after that.
    ///
    /// # Errors
    /// [`DamagedRequest`]: nothing has changed, and the acquisition is still to be withdrawn.
    fn poll<F: Fabric, H: HostMemory>(
        &mut self,
        seat: &Seat<H>,
        fabric: &F,
    ) -> Result<Option<Held>, DamagedRequest>;

    /// Gives up waiting. Always legal, also when the lock is being granted.
    fn withdraw<F: Fabric, H: HostMemory>(self, seat: &Seat<H>, fabric: &F);

    /// Releases. Everything the lock protects has been published (A3).
    fn release<F: Fabric, H: HostMemory>(held: Held, seat: &Seat<H>, fabric: &F);

    /// Ends what a thread that died waiting or holding had begun. Intents were redone before; of a program's
    /// lock that it held, what it may have stored is on the device, and later holders are told (L5).
    fn release_after_death<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId);

    /// Later holders are not told any more that one before them died (L5): from the release on.
    fn make_consistent<F: Fabric, H: HostMemory>(held: Held, seat: &Seat<H>, fabric: &F);

    /// Whether a former life of this node may have held `lock`, a program's. Only while the host joins.
    fn may_have_held<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) -> bool;

    /// Whether a node other than this one wants or holds `lock`: one parallel look.
    fn is_wanted_elsewhere<F: Fabric, H: HostMemory>(
        seat: &Seat<H>,
        fabric: &F,
        lock: LockId,
    ) -> bool;

    /// Whether the node has a ticket left for `lock`. Asked with the host's turn, before
    /// [`begin`](Self::begin).
    fn has_tickets<H: HostMemory>(seat: &Seat<H>, lock: LockId) -> bool;

    /// Whether the node can go on from its published request. Asked before the slot is touched.
    fn can_resume<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) -> bool;

    /// Ends the request of the node's former incarnation and starts its stamp. Only while the host
    /// joins, after intents were redone.
    fn resume<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId);
}

/// A lock that the host holds, and the ticket under which it does; bakery has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "a held lock is released"]
pub(crate) struct Held {
    pub(super) lock: LockId,
    pub(super) ticket: u64,
    /// A holder died, and nobody has made the data consistent since (L5).
    pub(super) after_death: bool,
}

impl Held {
    /// What the host holds of `lock`, for the thread that it was passed to: no other is at it.
    pub(crate) fn passed<H: HostMemory>(
        seat: &Seat<H>,
        lock: LockId,
        after_death: bool,
    ) -> Option<Self> {
        let stamp = seat.tier().stamp(lock);
        let held = Self { lock, ticket: stamp.ticket, after_death };
        (stamp.phase == Phase::Hold).then_some(held)
    }
}

/// What every other node has in its request word of `lock`, freshly read with one fence.
pub(super) fn others_requests<F: Fabric, H: HostMemory>(
    seat: &Seat<H>,
    fabric: &F,
    lock: LockId,
) -> impl Iterator<Item = (NodeId, u64)> {
    let me = seat.node();
    let others = || seat.layout().nodes().filter(move |node| *node != me);
    refresh_all(fabric, others().map(|node| seat.layout().request(node, lock).range()));
    others().map(move |node| (node, seat.layout().request(node, lock).cached(fabric)))
}

/// A request word that no host ever writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("the request of node {node} is damaged")]
pub(crate) struct DamagedRequest {
    /// Whose it is.
    pub(crate) node: NodeId,
}

/// An acquisition under the protocol of the region.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Competitor {
    /// Granted by a lock manager.
    Arbitrated(arbitrated::Acquire),
    /// By numbers.
    Bakery(bakery::Acquire),
}

impl SharedTier for Competitor {
    fn begin<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) -> Self {
        match seat.lock_protocol() {
            LockProtocol::Arbitrated => {
                Self::Arbitrated(arbitrated::Acquire::begin(seat, fabric, lock))
            }
            LockProtocol::Bakery => Self::Bakery(bakery::Acquire::begin(seat, fabric, lock)),
        }
    }

    fn poll<F: Fabric, H: HostMemory>(
        &mut self,
        seat: &Seat<H>,
        fabric: &F,
    ) -> Result<Option<Held>, DamagedRequest> {
        match self {
            Self::Arbitrated(acquire) => acquire.poll(seat, fabric),
            Self::Bakery(acquire) => acquire.poll(seat, fabric),
        }
    }

    fn withdraw<F: Fabric, H: HostMemory>(self, seat: &Seat<H>, fabric: &F) {
        match self {
            Self::Arbitrated(acquire) => acquire.withdraw(seat, fabric),
            Self::Bakery(acquire) => acquire.withdraw(seat, fabric),
        }
    }

    fn release<F: Fabric, H: HostMemory>(held: Held, seat: &Seat<H>, fabric: &F) {
        match seat.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::release(held, seat, fabric),
            LockProtocol::Bakery => bakery::Acquire::release(held, seat, fabric),
        }
    }

    fn release_after_death<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
        match seat.lock_protocol() {
            LockProtocol::Arbitrated => {
                arbitrated::Acquire::release_after_death(seat, fabric, lock)
            }
            LockProtocol::Bakery => bakery::Acquire::release_after_death(seat, fabric, lock),
        }
    }

    fn make_consistent<F: Fabric, H: HostMemory>(held: Held, seat: &Seat<H>, fabric: &F) {
        match seat.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::make_consistent(held, seat, fabric),
            LockProtocol::Bakery => bakery::Acquire::make_consistent(held, seat, fabric),
        }
    }

    fn may_have_held<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) -> bool {
        match seat.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::may_have_held(seat, fabric, lock),
            LockProtocol::Bakery => bakery::Acquire::may_have_held(seat, fabric, lock),
        }
    }

    fn is_wanted_elsewhere<F: Fabric, H: HostMemory>(
        seat: &Seat<H>,
        fabric: &F,
        lock: LockId,
    ) -> bool {
        match seat.lock_protocol() {
            LockProtocol::Arbitrated => {
                arbitrated::Acquire::is_wanted_elsewhere(seat, fabric, lock)
            }
            LockProtocol::Bakery => bakery::Acquire::is_wanted_elsewhere(seat, fabric, lock),
        }
    }

    fn has_tickets<H: HostMemory>(seat: &Seat<H>, lock: LockId) -> bool {
        match seat.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::has_tickets(seat, lock),
            LockProtocol::Bakery => bakery::Acquire::has_tickets(seat, lock),
        }
    }

    fn can_resume<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) -> bool {
        match seat.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::can_resume(seat, fabric, lock),
            LockProtocol::Bakery => bakery::Acquire::can_resume(seat, fabric, lock),
        }
    }

    fn resume<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
        match seat.lock_protocol() {
            LockProtocol::Arbitrated => arbitrated::Acquire::resume(seat, fabric, lock),
            LockProtocol::Bakery => bakery::Acquire::resume(seat, fabric, lock),
        }
    }
}

/// Ends every request of `node`, so that nobody waits for it any more.
///
/// M1: the words pass to this host because their writer is fenced, that is can write no more, and
/// because one recoverer was decided on, which is this host. Its open intents were redone before
/// (L2). May be repeated by a recoverer after this one.
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
    use crate::fabric::simulated::SimulatedRack;
    use crate::layout::{Geometry, Superblock, format_superblock};
    use crate::member::{HostIdentity, HostTier, Member, ProcLiveness, ProcessIdentity};

    const LOCK: LockId = LockId(11);

    /// A host dies holding one lock and waiting for nothing; its recoverer clears its requests, more
    /// than once.
    fn a_cleared_node_holds_nothing(lock_protocol: LockProtocol) {
        let geometry = Geometry {
            region_bytes: 16 << 20,
            nodes: 2,
            locks: 16,
            chunk_bytes: 1 << 20,
            area_lines: 64,
            host_words: 0,
        };
        let rack = SimulatedRack::sticky(2, geometry.region_bytes);
        let superblock = Superblock { lock_protocol, ..Superblock::new([1, 2], geometry, [0; 6]) };
        format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
        let clock = SystemClock::start();
        let join = |host: usize| {
            let memory = rack.host_memory(host, HostTier::words_of(&geometry));
            let (node, me) = (u16::try_from(host).unwrap(), ProcessIdentity::current().unwrap());
            let identity = HostIdentity::simulated(host as u64);
            let fabric = rack.host(host);
            Member::join(fabric, memory, node, &identity, me, ProcLiveness, &clock).unwrap()
        };
        let (recoverer, victim) = (join(0), join(1));
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
        rack.crash(1);

        let mut pending = recoverer.begin_shared(LOCK, &clock);
        let mut look = |pending: &mut crate::lock::PendingLock<'_, _, _, _>| {
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
