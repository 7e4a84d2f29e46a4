//! Holding a run of blocks, from a lookup to the fetch.

use std::sync::Arc;

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::node::Backend;
use kv_cache::{HeldBlock, HoldError, Latency, MatchedBlock};

use super::{SessionCore, SessionError};
use crate::dma::DmaEngine;

/// The blocks of a prefix that stay in the pool while this lives, for at most the time that they
/// were held for.
#[derive(Debug)]
#[must_use = "what is not kept in a variable is released again"]
pub struct HoldReport {
    held: Vec<HeldBlock>,
    /// The same, to be fetched: listed by the thread that holds them.
    blocks: Arc<Vec<MatchedBlock>>,
    stop: Option<HoldError>,
    /// Started before the first of them was held.
    since: SystemClock,
}

impl HoldReport {
    /// Of blocks that are held, and why the next one is not. `since` was started before.
    pub(super) fn new(held: Vec<HeldBlock>, stop: Option<HoldError>, since: SystemClock) -> Self {
        let blocks = Arc::new(held.iter().map(HeldBlock::block).collect());
        Self { held, blocks, stop, since }
    }

    /// For how long the blocks are held by now, the block that was held first.
    pub(crate) fn age_ms(&self) -> u64 {
        self.since.now_ms()
    }

    /// A clock that was started before the first of them was held.
    pub(super) const fn since(&self) -> SystemClock {
        self.since
    }

    /// What holds the blocks.
    pub(super) fn into_blocks(self) -> Vec<HeldBlock> {
        self.held
    }

    /// The blocks that are held, from the first of the prefix on: to be fetched.
    #[must_use]
    pub fn blocks(&self) -> Vec<MatchedBlock> {
        self.blocks.to_vec()
    }

    /// The same, shared. For sibling crates: no semver.
    #[doc(hidden)]
    #[must_use]
    pub fn shared_blocks(&self) -> Arc<Vec<MatchedBlock>> {
        Arc::clone(&self.blocks)
    }

    /// How many blocks are held.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Why the block after those is not held; `None` when all are.
    #[must_use]
    pub fn stop(&self) -> Option<HoldError> {
        self.stop
    }
}

impl<B, D, C> SessionCore<'_, B, D, C>
where
    B: Backend,
    D: DmaEngine,
    C: Clock,
{
    /// Holds `blocks`, which a lookup found one after the other: their owners do not evict them for
    /// as long as the session says
    /// ([`SessionOptions::with_hold`](crate::SessionOptions::with_hold)), or until this is dropped
    /// or this process dies. Nothing after the first block that is not available is held.
    ///
    /// What is held may still turn out to be damaged when it is fetched.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`]; nothing is held then.
    pub fn hold(&self, blocks: &[MatchedBlock]) -> Result<HoldReport, SessionError> {
        self.cache.check_member()?;
        let (since, began_us) = (SystemClock::start(), self.clock.now_us());
        let wanted: Vec<_> =
            blocks.iter().enumerate().map(|(index, block)| self.wanted(index, block)).collect();
        let mut held = Vec::with_capacity(blocks.len());
        let mut stop = None;
        let mut behind = Vec::new();
        for outcome in self.cache.hold(self.clock, &wanted, self.options.hold_ms()) {
            match outcome {
                Ok(block) if stop.is_none() => held.push(block),
                Ok(block) => behind.push(block),
                Err(error) => {
                    stop.get_or_insert(error);
                }
            }
        }
        if !behind.is_empty() {
            self.cache.release(self.clock, behind);
        }
        self.cache.took(Latency::Hold, began_us, self.clock);
        if let Some(HoldError::MembershipLost(lost)) = stop {
            return Err(lost.into());
        }
        Ok(HoldReport::new(held, stop, since))
    }

    /// Releases what is held, at once.
    pub fn release(&self, held: HoldReport) {
        self.cache.release(self.clock, held.held);
    }
}
