//! Sessions: what an engine does with the pool, a batch of blocks at a time.
//!
//! A [`Session`] puts two halves together: `kv_cache` knows which block is where and whether it may
//! be believed, a [`DmaEngine`] moves the bytes. It keeps the order between them: descriptors say
//! WRITING before the first byte is stored and READY after the last, bytes are loaded between the
//! two looks at a descriptor.
//!
//! Fetches and publishes also go by layers, while the engine computes: nothing of a block is visible
//! before its last layer is stored, and what was fetched is known to be right when its last layer is.
//!
//! Nothing an engine gets from a session needs to be checked again: a block that failed in any way
//! is a miss.

mod fetch;
mod hold;
mod publish;

#[cfg(test)]
mod tests;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::{Liveness, MembershipLost};
use kv_cache::{
    BlockHash, BlockKey, Cache, KeySpace, Metrics, ModelFingerprint, Namespace, PrefixMatch,
};

use crate::dma::{DmaEngine, Layers};

pub use fetch::{FetchReport, FetchStop};
pub use hold::HoldReport;
pub use publish::{LayeredBlock, LayeredBlocks, PublishBlock, PublishOutcome, PublishReport};

/// What the blocks of a session are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    /// The model, as its [`fingerprint`](kv_cache::Model::fingerprint).
    pub model: ModelFingerprint,
    /// Who shares the blocks.
    pub namespace: Namespace,
    /// Length of every block in bytes.
    pub block_bytes: u64,
    /// How long a publish waits for other hosts when its node needs a further chunk, in
    /// milliseconds.
    pub chunk_timeout_ms: u64,
}

/// A call that was not carried out at all: the caller's buffers do not fit the session, or this
/// process does not take part in the pool any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// The parts of a block are not as long as a block.
    #[error("the parts of block {index} have {parts_bytes} bytes, a block has {block_bytes}")]
    Length {
        /// Index of the block in the batch.
        index: usize,
        /// Length of its parts in bytes.
        parts_bytes: u64,
        /// Length of a block in bytes.
        block_bytes: u64,
    },
    /// The layers are not as long as a block.
    #[error("the layers have {layers_bytes} bytes, a block has {block_bytes}")]
    Layers {
        /// Sum of their lengths in bytes.
        layers_bytes: u64,
        /// Length of a block in bytes.
        block_bytes: u64,
    },
    /// Not one destination for each block.
    #[error("{blocks} blocks are to be fetched into {destinations} destinations")]
    Destinations {
        /// Blocks asked for.
        blocks: usize,
        /// Destinations given.
        destinations: usize,
    },
    /// This process does not take part in the pool any more. It attaches anew, when all processes of
    /// its host have ended or left.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
}

/// An engine's way to the blocks of one model and namespace, on one thread.
///
/// # Example
/// ```
/// # use std::cell::RefCell;
/// # use cxl_shm::fabric::simulated::{DmaCache, SimulatedRack};
/// # use cxl_shm::layout::{Geometry, Layout, Superblock, format_superblock};
/// # use cxl_shm::member::{HostIdentity, HostTier, Member, ProcLiveness, ProcessIdentity};
/// # use cxl_shm::clock::Clock;
/// use connector::dma::SimulatedDma;
/// use connector::session::{PublishBlock, Session, SessionOptions};
/// use kv_cache::{Cache, CacheGeometry, ChainHasher, Model, Namespace};
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
/// # let member = Member::join(
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
/// let model = Model {
///     name: "tiny", revision: "1", dtype: "f16", layout_version: 1, block_tokens: 4,
///     tensor_parallel_rank: 0, tensor_parallel_size: 1, layers: 2, kv_heads: 1, head_dim: 64,
/// };
/// let session = Session::new(&cache, &dma, &clock, SessionOptions {
///     model: model.fingerprint(),
///     namespace: Namespace::default(),
///     block_bytes: 2048,
///     chunk_timeout_ms: 1000,
/// });
///
/// let hashes = ChainHasher::new(b"", 4).chain(&[1, 2, 3, 4, 5, 6, 7, 8]);
/// assert_eq!(session.lookup(&hashes)?.blocks().len(), 0);
///
/// let (keys, values) = ([1; 1024], [2; 1024]);
/// let parts: &[&[u8]] = &[&keys, &values];
/// let blocks: Vec<_> = (0..).zip(&hashes)
///     .map(|(depth, hash)| PublishBlock { hash: *hash, depth, parts })
///     .collect();
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
pub struct Session<'a, F, H: HostMemory, L, D, C> {
    cache: &'a Cache<'a, F, H, L>,
    dma: &'a D,
    clock: &'a C,
    keys: KeySpace,
    options: SessionOptions,
    hold_ms: u64,
}

impl<'a, F, H, L, D, C> Session<'a, F, H, L, D, C>
where
    F: Fabric,
    H: HostMemory,
    L: Liveness,
    D: DmaEngine,
    C: Clock,
{
    /// A session that moves bytes by `dma`, which reaches the same region.
    #[must_use]
    pub fn new(
        cache: &'a Cache<'a, F, H, L>,
        dma: &'a D,
        clock: &'a C,
        options: SessionOptions,
    ) -> Self {
        let keys = KeySpace::new(options.model, options.namespace);
        Self { cache, dma, clock, keys, options, hold_ms: kv_cache::HOLD_MS }
    }

    /// The session with holds of this length in milliseconds, instead of [`kv_cache::HOLD_MS`]; at
    /// most [`kv_cache::HOLD_MS_MAX`].
    #[must_use]
    pub fn with_hold_ms(self, hold_ms: u64) -> Self {
        Self { hold_ms, ..self }
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
        Ok(self.cache.lookup(&self.keys_of(hashes)))
    }

    /// The longest such prefix, as far as it is held ([`hold`](Self::hold)). Counted as hits are the
    /// blocks that are.
    ///
    /// # Errors
    /// [`SessionError::MembershipLost`].
    pub fn lookup_and_hold(&self, hashes: &[BlockHash]) -> Result<HoldReport, SessionError> {
        self.cache.check_member()?;
        let found = self.cache.find(&self.keys_of(hashes));
        let held = self.hold(found.blocks())?;
        self.cache.count_lookup(hashes.len(), held.len());
        Ok(held)
    }

    fn keys_of(&self, hashes: &[BlockHash]) -> Vec<BlockKey> {
        hashes.iter().map(|hash| self.keys.key(hash)).collect()
    }

    /// What this process did with the pool so far, in all its sessions.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.cache.local().metrics()
    }

    /// Checks that these are the layers of a block.
    fn check_layers(&self, layers: &Layers) -> Result<(), SessionError> {
        let (layers_bytes, block_bytes) = (layers.bytes(), self.options.block_bytes);
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
        let block_bytes = self.options.block_bytes;
        if parts_bytes == block_bytes {
            Ok(())
        } else {
            Err(SessionError::Length { index, parts_bytes, block_bytes })
        }
    }
}
