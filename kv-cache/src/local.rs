//! What the threads of a process share: the replica, the counters, the order in which blocks
//! leave, and what they have yet to tell the host: blocks that were dropped before they were
//! complete, holds that were dropped, blocks that were used. All in the process's own memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use cxl_shm::member::MembershipLost;
use cxl_shm::units::NodeId;

use crate::area::Areas;
use crate::block::Claim;
use crate::descriptor::Handle;
use crate::evict::Order;
use crate::hold::Release;
use crate::metrics::Metrics;
use crate::replica::Replica;
use crate::ward::WardWatch;

/// This process's own knowledge of the pool. Shared by its threads, each of which works through a
/// [`Cache`](crate::Cache) of its own.
#[derive(Debug)]
pub struct Local {
    pub(crate) areas: Areas,
    replica: Mutex<Replica>,
    metrics: Mutex<Metrics>,
    pub(crate) abandoned: Mutex<Vec<Claim>>,
    pub(crate) released: Mutex<Vec<Release>>,
    pub(crate) touched: Mutex<Vec<Handle>>,
    order: Mutex<Order>,
    /// Nodes that nobody has the slot of, as this process sees them.
    pub(crate) wards: Mutex<BTreeMap<NodeId, WardWatch>>,
}

impl Local {
    pub(crate) fn new(areas: Areas) -> Self {
        let replica = Mutex::new(Replica::new(areas));
        Self {
            areas,
            replica,
            metrics: Mutex::default(),
            abandoned: Mutex::default(),
            released: Mutex::default(),
            touched: Mutex::default(),
            order: Mutex::default(),
            wards: Mutex::default(),
        }
    }

    /// What was counted so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let replica = self.replica();
        let (replica_blocks, replica_bytes) = (replica.blocks() as u64, replica.bytes() as u64);
        drop(replica);
        let mut metrics = *self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        (metrics.replica_blocks, metrics.replica_bytes) = (replica_blocks, replica_bytes);
        metrics
    }

    /// The replica. A thread that panicked left it no worse than stale (R1).
    pub(crate) fn replica(&self) -> MutexGuard<'_, Replica> {
        self.replica.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The replica, unless another thread is at it: for who holds the heap lock, for which the
    /// whole host waits, while a thread with the replica may be scanning segments.
    pub(crate) fn try_replica(&self) -> Option<MutexGuard<'_, Replica>> {
        match self.replica.try_lock() {
            Ok(replica) => Some(replica),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The order in which this node's blocks leave. Locked by who holds the heap lock. A thread that
    /// panicked left it no worse than stale: what it proposes is checked.
    pub(crate) fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this process does not take part in the region any more: for its metrics, and with
    /// one line in the log. The first cause stays.
    pub(crate) fn note_loss(&self, lost: MembershipLost) {
        let mut is_news = false;
        self.count(|metrics| is_news = metrics.lose(lost));
        if is_news {
            let (node, cause) = (lost.node, lost.cause.name());
            tracing::warn!(
                %node, cause,
                "this process takes part in the pool no more, and every call fails: {lost}"
            );
        }
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut Metrics)) {
        count(&mut self.metrics.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
