//! Which KV block is where: identity, descriptors, prefix index, publish, lookup, fetch.
//!
//! A block's bytes lie in a chunk of the node that published it; a *descriptor* in that node's
//! segment says where, and whether they are complete. Every process keeps a *replica* of all
//! descriptors in its own DRAM, fed by the nodes' *publication logs*, and matches prefixes there.
//! Nothing a reader does is seen by anybody else: no lock, no message, no shared write.
//!
//! - identity: [`Model`], [`Namespace`], [`KeySpace`], [`BlockHash`]; hashers of others' chains:
//!   [`ChainHasher`], [`vllm`], [`dynamo`]
//! - sizes: [`KvGeometry`], [`KNOWN_MODELS`]
//! - eviction: [`evict::policy`], and [`replay`] of request traces through it
//! - format: [`CacheGeometry`], and the module documentation of `area`, `descriptor`, `segment`, `log`
//! - use: [`Cache`]: `reserve`, `commit`, `lookup`, `open`, `close`, `retire`, `reap`
//!
//! Rules are numbered where they are kept: D (descriptors), S (segments), G (logs), R (replica),
//! E (heap), P (payload slots), B (publish), F (fetch), V (eviction), W (wards). Rules M are those of `cxl_shm::fabric`;
//! rules H, of holds, are kept where they are cited already.
//!
//! - **H2** EVICTING of the same generation is as good as READY for a reader. WRITING is fully
//!   published before the first byte of the payload changes.
//! - **H3** A reader always takes the second look, and compares state, generation and payload.

mod area;
mod block;
mod broken;
mod cache;
mod damage;
mod descriptor;
pub mod evict;
mod fetch;
mod geometry;
mod gone;
mod hash;
mod heap;
mod hold;
mod key;
mod local;
mod log;
mod lookup;
mod metrics;
mod miss;
mod model;
#[cfg(any(test, feature = "proof"))]
pub mod proof;
mod publish;
mod reclaim;
pub mod replay;
mod replica;
mod segment;
mod stamp;
#[cfg(test)]
mod tests;
mod ward;

pub use block::{BlockSpec, ReadyBlock, WritingBlock};
pub use cache::{AttachError, Cache, HeapUse};
pub use descriptor::{BlockState, Descriptor, DescriptorError, Handle, SlotContent};
pub use fetch::{Ticket, Wanted};
pub use geometry::{
    CacheGeometry, DESCRIPTOR_SLOTS_MAX, DESCRIPTOR_SLOTS_MIN, GeometryError, LOG_ENTRIES_MAX,
    LOG_ENTRIES_MIN,
};
pub use hash::{ChainHasher, dynamo, vllm};
pub use hold::{HOLD_MS, HeldBlock, HoldError};
pub use key::{BlockHash, BlockKey, KeySpace, Model, ModelFingerprint, Namespace, NamespaceTag};
pub use local::Local;
pub use lookup::{MatchedBlock, PrefixMatch};
pub use metrics::Metrics;
pub use miss::Miss;
pub use model::{
    Attention, Dtype, KNOWN_MODELS, KnownModel, KvGeometry, KvGeometryError, Part, UnknownDtype,
    known_model,
};
pub use publish::{CommitError, Refusal, Reservation};
pub use reclaim::reclaim_dead_processes;
pub use segment::{PROBE_SLOTS, PeerSegment, segment_of};
pub use stamp::{HOLD_MS_MAX, held_by};
pub use ward::BeingEmptied;
