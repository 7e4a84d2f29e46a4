//! Beginning to use the cache: what earlier lives of the node and dead processes left comes first.

use std::sync::Arc;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::HostMemory;
use cxl_shm::node::{Backend, Member};

use crate::format::{Areas, CacheGeometry, GeometryError};
use crate::heap::HOLDS_AT_ONCE;
use crate::process::{Cache, ProcessState};
use crate::reclaim::{ReclaimInProgress, end_reclaim, reclaim_dead_processes};

/// Why a member cannot use the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The region is not a cache, or one of another version.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Another host is at what this node published in an earlier life.
    #[error(transparent)]
    ReclaimInProgress(#[from] ReclaimInProgress),
    /// The host tier is too small, or another version's.
    #[error(
        "the host tier has {words} words for the cache, which needs {needed_words}, or another \
         version made it; stop all processes of this host that use the region, and start them \
         again"
    )]
    HostTier {
        /// Words that it has.
        words: usize,
        /// Words that are needed.
        needed_words: usize,
    },
}

impl<'m, B: Backend> Cache<'m, B> {
    /// The cache through `member`, with a replica of its own.
    ///
    /// The first one in a life of the node takes over what the node published in earlier lives.
    /// Reads the segments of all nodes, to know what is in the pool.
    ///
    /// # Errors
    /// [`AttachError`]; nothing is changed then.
    pub fn attach(member: &'m Member<B>, clock: &impl Clock) -> Result<Self, AttachError> {
        let layout = *member.layout();
        let region = layout.geometry();
        let application = member.superblock().application;
        let geometry = CacheGeometry::decode(application, region.nodes, region.area_lines)?;
        let process_state = Arc::new(ProcessState::new(Areas::new(layout, geometry)));
        Self::attach_beside(member, clock, process_state)
    }

    /// As [`attach`](Self::attach), for a further thread of the process that made `process_state`:
    /// of the same region.
    ///
    /// # Errors
    /// [`AttachError`]; nothing is changed then.
    pub fn attach_beside(
        member: &'m Member<B>,
        clock: &impl Clock,
        process_state: Arc<ProcessState>,
    ) -> Result<Self, AttachError> {
        let cache = Self::new(member, process_state);
        if !cache.heap().claim_format(clock) {
            let words = member.application().words();
            let needed_words = cache.geometry().host_words(cache.areas().layout());
            return Err(AttachError::HostTier { words, needed_words });
        }
        cache.heap().await_reclaimer(clock)?;
        // HOST-N1: from here on holds, descriptors and a chunk that is given back name our place.
        member.name_place();
        // Another cache of this member, which is gone.
        end_reclaim(member, clock);
        let me = member.process();
        let is_me = |process| process == me;
        let drained = cache.drain_in_force(member.node()).is_some();
        let (mut dropped, freed) = cache.locked(clock, |heap| {
            heap.begin_drained(drained);
            (heap.drop_holds_of(is_me), heap.free_writing_of(is_me))
        });
        while dropped == HOLDS_AT_ONCE as u64 {
            dropped = cache.locked(clock, |heap| heap.drop_holds_of(is_me));
        }
        cache.count(|metrics| metrics.reclaimed_blocks += freed);
        // This cleans up after processes that left before us, where no process stays that does so
        // now and then.
        let freed = reclaim_dead_processes(member, clock);
        cache.count(|metrics| metrics.reclaimed_blocks += freed);
        cache.sync();
        Ok(cache)
    }
}
