//! A KV cache for racks of LLM servers that share CXL memory.
//!
//! Prefill workers publish blocks of KV into memory that every host of the rack maps, and decode
//! workers fetch them from there. No server stands in between: a process that attaches finds the
//! blocks of all others in the memory itself.
//!
//! # Words
//!
//! - A **region** is the shared memory: a devdax device (`/dev/dax0.0`), or a file. An operator
//!   formats it once (`rackline format`), for so many nodes.
//! - A **node** is a host of the rack, known by a number from 0. The processes of the host share
//!   the number, and each may publish and fetch.
//! - A **pool** is the cache in a region. [`Pool`] and [`AsyncPool`] are this process, attached to
//!   it.
//! - A **block** is the KV of some tokens in a row, 16 say. Its bytes are the engine's affair: a
//!   session knows their number.
//! - A **block hash** ([`BlockHash`]) names a block and all blocks before it in its prompt. An
//!   engine has such hashes, or takes those of [`ChainHasher`].
//! - A **model** ([`Model`], from [`KvGeometry`]) is everything that decides what the bytes mean.
//!   A **namespace** ([`Namespace`]) is a tenant, with a salt. Sessions share a block when hash,
//!   model, namespace and length are equal.
//! - A **session** is a way to the blocks of one model and namespace.
//!
//! # A first program
//!
//! ```
//! use rackline::{
//!     Attention, ChainHasher, Dtype, KvGeometry, NewBlock, Pool, ScratchRegion, SessionOptions,
//! };
//!
//! // An operator would have formatted a device for all hosts: `rackline format`.
//! let region = ScratchRegion::create(16 << 20, 2, 4096)?;
//! let heads = Attention::Heads { kv_heads: 2, head_dim: 16 };
//! let kv = KvGeometry::new(4, heads, Dtype::F16, 8)?; // blocks of 8 tokens: 4,096 bytes
//! let options = SessionOptions::new(kv.model("tiny", "1", 1), kv.rank_block_bytes());
//! let prompt: Vec<u32> = (0..24).collect();
//! let hashes = ChainHasher::new(b"", 8).chain(&prompt);
//!
//! // A prefill worker, on node 0.
//! let prefill = Pool::attach(region.path(), 0)?;
//! let payloads = [[1u8; 4096], [2; 4096], [3; 4096]];
//! let parts = payloads.each_ref().map(|payload| [&payload[..]]);
//! let blocks = NewBlock::chain(0, hashes.iter().copied(), parts);
//! assert_eq!(prefill.session(options)?.publish(&blocks)?.published(), 3);
//!
//! // A decode worker, on node 1.
//! let decode = Pool::attach(region.path(), 1)?;
//! let session = decode.session(options)?;
//! let held = session.lookup_and_hold(&hashes)?; // nobody evicts them meanwhile
//! let mut memory = [[0u8; 4096]; 3];
//! let destinations = memory.iter_mut().map(|block| vec![&mut block[..]]).collect();
//! let report = session.fetch(&held.blocks(), destinations)?;
//! assert_eq!(report.valid_blocks(), 3);
//! assert_eq!(memory, payloads);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Waiting, or not
//!
//! [`Pool`] gives [`Session`]s that wait: the calling thread does the work, from memory that it
//! borrows. A pool and its sessions belong to one thread at a time. This is for programs that
//! have a thread to spare.
//!
//! [`AsyncPool`] gives [`AsyncSession`]s that do not: any thread calls, every call returns at once,
//! and threads of the pool do the work. A [`Completion`] is polled, waited for, or awaited in any
//! executor. Memory is given to the transfer and comes back with the result ([`Source`],
//! [`Destination`]). This is for engines, whose schedulers must not be held up.
//!
//! Both go by layers, too: a block is fetched or published layer by layer while the engine computes
//! ([`AsyncSession::fetch_by_layers`], [`AsyncSession::publish_by_layers`]). With the feature
//! `cuda` blocks may be in the memory of a GPU (the module `cuda`).
//!
//! The folder `examples` has a program for each: `publish_and_fetch`, `asynchronous`, `layered`.
//!
//! # Routers
//!
//! An [`Index`] tells a router how long a prefix the pool has, and on which nodes. It is no member of
//! the region, and writes nothing.
//!
//! # Drives
//!
//! Where hosts have agents (`rackline agent`), blocks that left the pool are on their drives.
//! [`Session::lookup_and_restore`] goes on there behind the end of the pool's prefix, and waits until
//! agents have restored what is found, for as long as [`RestoreOptions`] says. A [`RestoreReport`] says
//! how much came, and why the next block did not ([`RestoreStop`]). A program that knows of a prompt
//! before it looks it up has its blocks restored ahead ([`Session::prefetch`]). An engine that says when it computes
//! ([`Session::report_forwards`]) lets the agent write to the drives meanwhile.
//!
//! # What other hosts see
//!
//! When a publish returns, or its completion says that it is done, every host that looks the block
//! up from then on finds it, whole. Before that no host sees anything of it: a host that dies in
//! between leaves nothing. A lookup that returns tells what was published before the call. It
//! takes no lock and no message. What it found may be evicted the next moment, unless it is held
//! ([`Session::lookup_and_hold`]). A fetch checks every block: one that was evicted, replaced or
//! damaged meanwhile is a miss, never wrong bytes. The blocks of a process outlive it.
//!
//! # Errors and misses
//!
//! A block that is not there is no error. A [`FetchReport`] says how many blocks, from the first
//! on, are valid, and why the next one is not ([`FetchStop`], [`Miss`]); a [`PublishReport`] says
//! what became of each block ([`PublishOutcome`]). An engine computes what is missing itself.
//!
//! Errors are of an operation: attaching ([`PoolError`]), opening a session ([`OpenError`]), using
//! it ([`SessionError`]), handing over work ([`SubmitError`], which gives the memory back).
//! [`SessionError::MembershipLost`] is final: this host was declared dead, or the region was
//! formatted again. The process then drops its pool, and attaches again when all processes of its
//! host have dropped theirs.
//!
//! # Processes
//!
//! Attach once a process. A child made by `fork` is not attached: it must attach itself.
//! Dropping a pool leaves it; the last process of a host that leaves writes back what its caches
//! hold, which takes time.
//!
//! Events of note are logged with [`tracing`](https://docs.rs/tracing). The library itself writes
//! nothing to standard error.
//!
//! It ends the process in one case: the driver can no longer wait for a copy of a GPU. That copy
//! could still write into the pool after its memory belongs to another block. The library logs an
//! event of level `error`, waits half a second for the log, and aborts.
//!
//! # Features
//!
//! - `cuda` (on by default): blocks in the memory of NVIDIA's GPUs. The driver is loaded when a GPU
//!   is opened; without one this is an error, and nothing else changes.
//! - `sim`: simulated memory for tests of this project. No semver.

mod asynchronous;
mod binding;
mod block;
mod clear;
pub mod dma;
mod drain;
pub mod executor;
mod identities;
mod index;
mod options;
mod page_tables;
mod pin;
mod pool;
mod scratch;
pub mod session;
mod spawn;

// For sibling crates (C, Python): no semver.
#[doc(hidden)]
pub mod log;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub use asynchronous::Releaser;
#[doc(hidden)]
pub use cxl_shm::fork::ProcessMark;
#[doc(hidden)]
pub use kv_cache::KeySpace;
#[doc(hidden)]
pub use pool::LocalCache;

pub use asynchronous::{
    Arrivals, AsyncEngine, AsyncPool, AsyncPrefetch, AsyncSession, Completion, Destination,
    Fetched, LayeredFetch, LayeredPublish, LayeredPublished, Lost, Published, Share, Source,
    Stopped, SubmitError, SubmitErrorKind,
};
pub use block::NewBlock;
pub use clear::Cleared;
pub use dma::Layers;
pub use identities::{
    IDENTITY_BYTES_MAX, IdentitiesError, RegisteredIdentity, identity_hash, identity_in,
    identity_options, registered_identities,
};
pub use index::{Index, IndexError, IndexedModel};
pub use options::{
    AsyncOptions, COPY_THREADS_MAX, OptionsError, PoolOptions, QUEUE_DEPTH_MAX, QUOTA_BYTES_MAX,
    RestoreOptions, SessionOptions,
};
pub use pool::{Pool, PoolError};
pub use scratch::{ScratchError, ScratchRegion};
pub use session::{
    FetchReport, FetchStop, Forwards, HoldReport, OpenError, Prefetch, PrefetchStop,
    PublishOutcome, PublishReport, RestoreReport, RestoreStop, Session, SessionError,
};

pub use cxl_shm::host::{LossCause, MembershipLost};
pub use cxl_shm::lifecycle::AttachError;
pub use cxl_shm::units::NodeId;
pub use kv_cache::{
    Attention, BlockHash, ChainHasher, DirectiveError, Dtype, HoldError, KvGeometry,
    KvGeometryError, MatchedBlock, Metrics, Miss, Model, ModelFingerprint, Namespace, Part,
    PoolPrefix, PrefixMatch, Quota, Refusal, TooManyQuotas, UnknownDtype, WatermarkError,
    Watermarks,
};

/// Blocks in the memory of NVIDIA's GPUs.
///
/// [`AsyncPool::gpu`] opens a GPU, once; [`AsyncSession::on_gpu`] makes a session that publishes
/// from its memory and fetches into it. [`Pool::cuda`] is the same for sessions that wait.
#[cfg(feature = "cuda")]
pub mod cuda {
    #[cfg(doc)]
    use crate::{AsyncPool, AsyncSession, Pool};

    pub use crate::asynchronous::{Gpu, GpuError};
    pub use crate::dma::cuda::{
        CudaDma, CudaError, CudaFigures, CudaOptions, DeviceDestination, DeviceSource,
        EngineStream, PoolReach, Summing, gpus,
    };
}
