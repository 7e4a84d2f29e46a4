//! Sessions: what an engine does with the pool, a batch of blocks at a time.
//!
//! A [`Session`] puts two halves together. `kv_cache` knows which block is where and whether a
//! block may be trusted. A [`DmaEngine`] moves the bytes. The session keeps the order between them:
//! descriptors say WRITING before the first byte is stored and READY after the last, and bytes are
//! loaded between the two looks at a descriptor.
//!
//! Fetches and publishes also go by layers, while the engine computes. Nothing of a block is
//! visible before its last layer is stored. A fetched block is known to be right when its last
//! layer has arrived.
//!
//! An engine need not check what a session returns: a block that failed in any way is a miss.

mod error;
mod fetch;
mod forwards;
mod hold;
mod one_layer;
mod prefetch;
mod publish;
mod restore;

#[cfg(test)]
mod one_layer_tests;
#[cfg(test)]
mod prefetch_tests;
#[cfg(test)]
mod restore_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unfinished_tests;

use std::sync::Arc;

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::node::{Backend, MappedBackend};
use kv_cache::{BlockHash, BlockKey, Cache, KeySpace, Latency, Metrics, PrefixMatch};

use crate::dma::{DmaEngine, HostDma, Layers};
use crate::options::SessionOptions;

pub use error::{OpenError, SessionError};
pub use fetch::{FetchReport, FetchStop};
pub use forwards::Forwards;
pub use hold::HoldReport;
pub(crate) use prefetch::Prefetches;
pub use prefetch::{Prefetch, PrefetchStop};
pub use publish::{LayeredBlocks, PublishOutcome, PublishReport};
pub(crate) use restore::Restoring;
pub use restore::{RestoreReport, RestoreStop};

/// An engine's way to the blocks of one model and namespace, on one thread: every call waits until
/// its work is done. [`Pool::session`](crate::Pool::session) opens one.
///
/// Copies are made by `E`: the CPU, or a GPU.
///
/// # Example
/// ```no_run
/// use rackline::{ChainHasher, NewBlock, Pool, SessionOptions};
/// # fn serve(options: SessionOptions) -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::attach("/dev/dax0.0", 3)?;
/// let session = pool.session(options)?; // of blocks of 2,048 bytes
///
/// let hashes = ChainHasher::new(b"", 4).chain(&[1, 2, 3, 4, 5, 6, 7, 8]);
/// let (keys, values) = ([1; 1024], [2; 1024]);
/// let blocks = NewBlock::chain(0, hashes.clone(), [[&keys[..], &values[..]]; 2]);
/// assert_eq!(session.publish(&blocks)?.available(), 2);
///
/// let held = session.lookup_and_hold(&hashes)?;
/// let (mut first, mut second) = ([0; 2048], [0; 2048]);
/// let report = session.fetch(&held.blocks(), vec![vec![&mut first], vec![&mut second]])?;
/// assert_eq!(report.valid_blocks(), 2);
/// # Ok(())
/// # }
/// ```
pub type Session<'p, E = HostDma> = SessionCore<'p, MappedBackend, E, SystemClock>;

/// A [`Session`] over any memory and clock, also simulated ones.
///
/// # Example
/// ```
/// # use std::cell::RefCell;
/// # use cxl_shm::verify::SimulatedBackend;
/// # use cxl_shm::verify::simulated::{DmaCache, SimulatedRack};
/// # use cxl_shm::layout::{Geometry, Layout, Superblock, format_superblock};
/// # use cxl_shm::host::{HostIdentity, HostTier, ProcLiveness, ProcessIdentity};
/// # use cxl_shm::node::Member;
/// # use cxl_shm::clock::Clock;
/// use rackline::dma::SimulatedDma;
/// use rackline::session::SessionCore;
/// use rackline::{Attention, ChainHasher, Dtype, KvGeometry, NewBlock, SessionOptions};
/// use kv_cache::{Cache, CacheGeometry};
///
/// # let cache = CacheGeometry::new(64, 64).unwrap();
/// # let geometry = Geometry {
/// #     region_bytes: 1 << 20, nodes: 1, locks: 8, chunk_bytes: 64 << 10,
/// #     area_lines: cache.area_lines(1), host_words: 0,
/// # };
/// # let host_words = cache.host_words(&Layout::new(geometry).unwrap()) as u64;
/// # let geometry = Geometry { host_words, ..geometry };
/// # let rack = SimulatedRack::sticky(1, geometry.region_bytes);
/// # let superblock = Superblock::new([1, 2], geometry, cache.encode());
/// # format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
/// # let memory = rack.host_memory(0, HostTier::words_of(&geometry));
/// # let me = ProcessIdentity::current().unwrap();
/// # let identity = HostIdentity::simulated(0);
/// # let member: Member<SimulatedBackend> = Member::join(
/// #     rack.host(0), memory, 0, &identity, me, ProcLiveness, &rack.clock(0)).unwrap();
/// # struct Serving<'a, T>(&'a dyn Fn(), T);
/// # impl<T: Clock> Clock for Serving<'_, T> {
/// #     fn now_ms(&self) -> u64 { self.1.now_ms() }
/// #     fn pause(&self, tries: u32) { (self.0)(); self.1.pause(tries) }
/// # }
/// # let mut manage = member.manage().unwrap();
/// # manage.claim().unwrap();
/// # let manage = RefCell::new(manage);
/// # let serve = || { member.beat(); manage.borrow_mut().poll(); };
/// # let clock = Serving(&serve, rack.clock(0));
/// let cache = Cache::attach(&member, &clock)?;
/// let dma = SimulatedDma::new(member.fabric().clone(), DmaCache::Bypass);
/// let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
/// let kv = KvGeometry::new(2, heads, Dtype::F16, 4)?;
/// let options = SessionOptions::new(kv.model("tiny", "1", 1), kv.rank_block_bytes());
/// let session = SessionCore::new(&cache, &dma, &clock, options);
///
/// let hashes = ChainHasher::new(b"", 4).chain(&[1, 2, 3, 4, 5, 6, 7, 8]);
/// assert_eq!(session.lookup(&hashes)?.blocks().len(), 0);
///
/// let (keys, values) = ([1; 1024], [2; 1024]);
/// let blocks = NewBlock::chain(0, hashes.clone(), [[&keys[..], &values[..]]; 2]);
/// assert_eq!(session.publish(&blocks)?.published(), 2);
///
/// let found = session.lookup(&hashes)?;
/// let (mut first, mut second) = ([0; 2048], [0; 2048]);
/// let report = session.fetch(found.blocks(), vec![vec![&mut first], vec![&mut second]])?;
/// assert_eq!(report.valid_blocks(), 2);
/// assert_eq!(first[1023..1025], [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SessionCore<'a, B: Backend, D, C> {
    cache: Cache<'a, B>,
    dma: &'a D,
    clock: &'a C,
    keys: KeySpace,
    /// Whose blocks take turns with its own in a transfer: those of the same blocks of an engine.
    others: Arc<[KeySpace]>,
    prefetches: Arc<Prefetches>,
    options: SessionOptions,
}

impl<'a, B, D, C> SessionCore<'a, B, D, C>
where
    B: Backend,
    D: DmaEngine,
    C: Clock,
{
    /// A session that moves bytes by `dma`, which reaches the same region.
    #[must_use]
    pub fn new(cache: &Cache<'a, B>, dma: &'a D, clock: &'a C, options: SessionOptions) -> Self {
        let keys = options.key_space();
        let (others, prefetches) = (Arc::default(), Arc::default());
        Self { cache: cache.clone(), dma, clock, keys, others, prefetches, options }
    }

    /// The same, which shares its prefetches with the sessions of its process.
    pub(crate) fn sharing(self, prefetches: &Arc<Prefetches>) -> Self {
        Self { prefetches: Arc::clone(prefetches), ..self }
    }

    /// The same, whose transfers have a block of each of `others` behind each of its own.
    pub(crate) fn taking_turns(self, others: Arc<[KeySpace]>) -> Self {
        Self { others, ..self }
    }

    /// The keys of block number `index` of a transfer.
    fn keys_at(&self, index: usize) -> &KeySpace {
        let turn = index % (1 + self.others.len());
        turn.checked_sub(1).map_or(&self.keys, |other| &self.others[other])
    }

    /// What the blocks are.
    #[must_use]
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// The longest prefix of `hashes` of which every block is in the pool, as far as was announced
    /// before the call. Takes no lock and writes nothing that others see.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`].
    pub fn lookup(&self, hashes: &[BlockHash]) -> Result<PrefixMatch, SessionError> {
        self.cache.check_member()?;
        let began_us = self.clock.now_us();
        let found = self.cache.lookup(&self.keys_of(hashes));
        self.found_prefetched(found.blocks().iter().map(|block| block.key));
        self.cache.took(Latency::Lookup, began_us, self.clock);
        Ok(found)
    }

    /// Which of `hashes` have their block in the pool, each one for itself, as far as was announced
    /// before the call. For blocks of which a prefix does not need all, such as those of a window.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`].
    pub fn present(&self, hashes: &[BlockHash]) -> Result<Vec<bool>, SessionError> {
        self.cache.check_member()?;
        Ok(self.cache.present(&self.keys_of(hashes)))
    }

    /// The same, with blocks that agents can restore from drives of hosts. What is on drives is a
    /// hint: [`lookup_and_restore`](Self::lookup_and_restore) brings it into the pool, or says why not.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`].
    pub fn present_with_drives(&self, hashes: &[BlockHash]) -> Result<Vec<bool>, SessionError> {
        self.cache.check_member()?;
        Ok(self.cache.present_with_drives(self.clock, &self.keys_of(hashes)))
    }

    /// The longest prefix of `hashes` ([`lookup`](Self::lookup)), as far as it is held
    /// ([`hold`](Self::hold)). Counted as hits are the blocks that are.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`].
    pub fn lookup_and_hold(&self, hashes: &[BlockHash]) -> Result<HoldReport, SessionError> {
        self.cache.check_member()?;
        let began_us = self.clock.now_us();
        let found = self.cache.find(&self.keys_of(hashes));
        let held = self.hold(found.blocks())?;
        self.found_prefetched(held.blocks().iter().map(|block| block.key));
        self.cache.count_lookup(hashes.len(), held.len());
        self.cache.took(Latency::Lookup, began_us, self.clock);
        Ok(held)
    }

    fn keys_of(&self, hashes: &[BlockHash]) -> Vec<BlockKey> {
        hashes.iter().map(|hash| self.keys.key(hash)).collect()
    }

    /// What this process did with the pool so far, in all its sessions.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.cache.process_state().metrics()
    }

    /// Checks that these are the layers of a block.
    fn check_layers(&self, layers: &Layers) -> Result<(), SessionError> {
        let (layers_bytes, block_bytes) = (layers.bytes(), self.options.block_bytes());
        if layers_bytes == block_bytes {
            Ok(())
        } else {
            Err(SessionError::Layers { layers_bytes, block_bytes })
        }
    }

    /// Checks that parts of these lengths make a block.
    fn check_length(
        &self,
        index: usize,
        lengths: impl Iterator<Item = usize>,
    ) -> Result<(), SessionError> {
        let parts_bytes = lengths.map(|length| length as u64).sum();
        let block_bytes = self.options.block_bytes();
        if parts_bytes == block_bytes {
            Ok(())
        } else {
            Err(SessionError::Length { index, parts_bytes, block_bytes })
        }
    }
}
