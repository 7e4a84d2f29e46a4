//! Draining a node before its host is stopped.

use std::time::Duration;

use cxl_shm::clock::Clock;
use cxl_shm::units::NodeId;
use kv_cache::{DirectiveError, Drain};

use crate::clear::POLL_MS;
use crate::pin::unix_ms;
use crate::pool::Pool;

impl Pool {
    /// Lets node `node` publish no new blocks, so that its host can be stopped. Waits until the node
    /// has seen that, for at most `timeout`, and returns whether it has. A node that takes part later
    /// sees it then.
    ///
    /// Blocks of the node stay in the pool, and every host reads them, also after the node has left:
    /// the memory is not the host's. Blocks come back from its drives until its agent stops. Each
    /// publish on the node is refused with [`Refusal::Drained`](crate::Refusal::Drained). That stays
    /// so when the node joins again, until [`undrain`](Self::undrain).
    ///
    /// # Errors
    /// [`DirectiveError`].
    ///
    /// # Example
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rackline::{NodeId, Pool};
    ///
    /// let pool = Pool::attach("/dev/dax0.0", 3)?;
    /// assert!(pool.drain(NodeId(3), Duration::from_secs(10))?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self, node: NodeId, timeout: Duration) -> Result<bool, DirectiveError> {
        let drain = Drain { node, asked_ms: unix_ms() };
        let number = self.cache().drain(self.clock(), drain)?;
        self.has_answered(node, number, timeout)
    }

    /// Lets node `node` publish again, whichever node asked to drain it. Waits and returns as
    /// [`drain`](Self::drain) does.
    ///
    /// # Errors
    /// [`DirectiveError`].
    pub fn undrain(&self, node: NodeId, timeout: Duration) -> Result<bool, DirectiveError> {
        let drain = Drain { node, asked_ms: unix_ms() };
        let number = self.cache().undrain(self.clock(), drain)?;
        self.has_answered(node, number, timeout)
    }

    fn has_answered(
        &self,
        node: NodeId,
        number: u64,
        timeout: Duration,
    ) -> Result<bool, DirectiveError> {
        let (cache, clock) = (self.cache(), self.clock());
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let end_ms = clock.now_ms().saturating_add(timeout_ms);
        loop {
            if !cache.unanswered(clock, number)?.contains(&node) {
                return Ok(true);
            }
            if clock.now_ms() >= end_ms {
                return Ok(false);
            }
            clock.sleep_ms(POLL_MS);
        }
    }
}
