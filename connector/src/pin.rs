//! Pinning the blocks of a tenant in the whole pool.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cxl_shm::clock::Clock;
use cxl_shm::units::NodeId;
use kv_cache::{DirectiveError, Namespace, Pin, QUOTAS_MAX};

use crate::clear::POLL_MS;
use crate::pool::Pool;

/// Between two looks at all blocks of a node that does not answer.
const LOOK_MS: u64 = 1000;

impl Pool {
    /// Lets the blocks of `namespace` leave last when room is short, on all nodes, for `length`:
    /// as far as they take `percent` of a node's payload, from 1 to 50. Waits until all nodes with
    /// blocks have seen the pin, for at most `timeout`. Returns the nodes that have not: they pin
    /// when they continue.
    ///
    /// Each node measures `length` from when it sees the pin. A pinned block still leaves when there
    /// is nothing else, or when another node needs its chunk. Where the namespace has a quota on a
    /// host, the quota stays. A host has room for 64 quotas and pins; the log names the nodes that do
    /// not set the pin. A pin ends on a host with the host's last process. A later pin of the
    /// namespace replaces it. Namespaces with an equal 16-bit tag are pinned together.
    ///
    /// # Errors
    /// [`DirectiveError`].
    ///
    /// # Example
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rackline::{Namespace, Pool};
    ///
    /// let pool = Pool::attach("/dev/dax0.0", 3)?;
    /// let tenant = Namespace::new("tenant-a", b"");
    /// let two_hours = Duration::from_secs(7200);
    /// let unanswered = pool.pin(&tenant, 30, two_hours, Duration::from_secs(10))?;
    /// assert!(unanswered.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pin(
        &self,
        namespace: &Namespace,
        percent: u16,
        length: Duration,
        timeout: Duration,
    ) -> Result<Vec<NodeId>, DirectiveError> {
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let pin = Pin { percent, length_ms, asked_ms: unix_ms() };
        let number = self.cache().pin(self.clock(), namespace, pin)?;
        let unanswered = self.wait_for_answers(number, timeout)?;
        let refused = self.cache().refused(number);
        if !refused.is_empty() {
            let nodes: Vec<_> = refused.iter().map(ToString::to_string).collect();
            tracing::warn!(
                nodes = nodes.join(", "),
                "nodes do not set the pin: the tenant has a quota there, which stays, or the host \
                 has {QUOTAS_MAX} quotas and pins already; end one of these first"
            );
        }
        Ok(unanswered)
    }

    /// Ends the pin of `namespace` on all nodes, whichever node asked for the pin. Waits and returns
    /// as [`pin`](Self::pin) does.
    ///
    /// # Errors
    /// [`DirectiveError`].
    pub fn unpin(
        &self,
        namespace: &Namespace,
        timeout: Duration,
    ) -> Result<Vec<NodeId>, DirectiveError> {
        let number = self.cache().unpin(self.clock(), namespace, unix_ms())?;
        self.wait_for_answers(number, timeout)
    }

    /// Waits until no node is left that has not answered directive `number`. Returns those left.
    fn wait_for_answers(
        &self,
        number: u64,
        timeout: Duration,
    ) -> Result<Vec<NodeId>, DirectiveError> {
        let (cache, clock) = (self.cache(), self.clock());
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let end_ms = clock.now_ms().saturating_add(timeout_ms);
        let mut look_at_ms = clock.now_ms().saturating_add(LOOK_MS);
        loop {
            let mut unanswered = cache.unanswered(clock, number)?;
            if !unanswered.is_empty() && clock.now_ms() >= look_at_ms {
                // A node that runs a lock manager alone answers nothing, and has nothing to pin.
                look_at_ms = clock.now_ms().saturating_add(LOOK_MS);
                unanswered.retain(|node| cache.has_blocks(*node));
            }
            if unanswered.is_empty() || clock.now_ms() >= end_ms {
                return Ok(unanswered);
            }
            clock.sleep_ms(POLL_MS);
        }
    }
}

/// The time by the clock of this host. A clock before 1970 counts as 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the time is shown, and orders pins and drains of several nodes"
)]
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
