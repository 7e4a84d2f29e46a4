//! What a thread works on requests with.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use cxl_shm::clock::SystemClock;
use cxl_shm::lifecycle::LocalMember;
use kv_cache::AttachedCache;

use super::guest::Works;
use super::request::Piece;
use crate::dma::{DmaEngine, HostDma};
use crate::options::SessionOptions;
use crate::pool::LocalCache;
use crate::session::{Prefetches, Session, SessionCore};

/// What a thread works with.
pub(super) struct Desk<'p> {
    pub(super) cache: &'p LocalCache<'p>,
    pub(super) dma: &'p HostDma,
    pub(super) clock: &'p SystemClock,
    pub(super) prefetches: &'p Arc<Prefetches>,
}

impl Desk<'_> {
    /// A session whose bytes `engine` copies, which is over the memory of this pool.
    pub(super) fn session<'s, E: DmaEngine>(
        &'s self,
        engine: &'s E,
        options: SessionOptions,
    ) -> Session<'s, E> {
        SessionCore::new(self.cache, engine, self.clock, options).sharing(self.prefetches)
    }

    /// Does a piece. One that panics, which is printed, has no result; the thread continues, and with
    /// it the work of all other threads.
    pub(super) fn work_on(&self, piece: Piece) {
        // What a piece shares with others is either locks that a panic poisons, whose users know
        // what to make of that, or shared memory, whose protocols outlive whole processes.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| piece(self)));
    }
}

/// The desk at which a waiting thread works.
pub(super) type Guest = super::guest::Guest<Place>;

/// What the desk has until the pool is left.
pub(super) struct Place {
    pub(super) cache: AttachedCache,
    pub(super) member: LocalMember,
    pub(super) dma: HostDma,
    pub(super) clock: SystemClock,
    pub(super) prefetches: Arc<Prefetches>,
}

impl Works for Place {
    fn work_on(&self, piece: Piece) {
        let Self { cache, member, dma, clock, prefetches } = self;
        Desk { cache: &cache.through(member), dma, clock, prefetches }.work_on(piece);
    }
}
