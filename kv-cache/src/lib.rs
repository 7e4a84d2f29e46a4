//! Which KV block is where: identity, descriptors, prefix index, publish, lookup, fetch.
//!
//! A block's bytes lie in a chunk of the node that published it; a *descriptor* in that node's
//! segment says where, and whether they are complete. Every process keeps a *replica* of all
//! descriptors in its own DRAM, fed by the nodes' *publication logs*, and matches prefixes there.
//! No other process sees what a reader does: no lock, no message, no shared write.
//!
//! The folders are floors: each imports from those below it, and from none above it. `attach`,
//! `hold`, `tier` and `upkeep` share a floor, and so do `read` and `reclaim`, and `heap` and `replica`.
//!
//! ```text
//! publish    reserve, commit, and room for a publish that finds none
//! upkeep     the background: watermarks, batches of evictions, chunks given back
//! hold       a block that must not vanish between lookup and fetch
//! tier       blocks on the drives of hosts: announced, found, asked for
//! attach     beginning: what earlier lives and dead processes left comes first
//! reclaim    what dead processes of this host left, and what vacant nodes left
//! read       lookup, fetch, descriptors that are damaged
//! process    what the threads of a process share, and the cache as one thread uses it
//! evict      which block leaves next, which hosts hold it, and the protocol by which it leaves
//! replica    what a process believes is in the pool, and why a block was missed
//! audit      checks of a whole region, without membership
//! heap       this node's descriptors, payload and reader words, written under its host's heap lock
//! format     what lies in the region: sizes, areas, descriptors, segments, logs, reader words
//! identity   keys, namespaces, fingerprints, hash chains
//! ```
//!
//! Beside them stand the sizes of a model's KV ([`KvGeometry`]), and the planner of what stays on a
//! GPU ([`placement`]). Start reading at [`Cache`],
//! [`KeySpace`] and [`CacheGeometry`].
//!
//! Each module states the rules that it keeps: BLOCK-D (descriptors), BLOCK-E (heap), BLOCK-P
//! (payload slots), INDEX-S (segments), INDEX-G (logs), INDEX-R (replica), WRITE-B (publish),
//! READ-F (fetch), EVICT-V (eviction), EVICT-H (holds), TIER-D and TIER-Q (drives). MEM-M (memory) is in `cxl_shm::fabric`,
//! ORPHAN-W in `cxl_shm::lifecycle`. PLAN (placements) is in [`placement`].
//!
//! - EVICT-H2: EVICTING of the same generation is as good as READY for a reader. WRITING is fully
//!   published before the first byte of the payload changes.
//! - EVICT-H3: A reader always takes the second look, and compares state, generation and payload.

mod attach;
mod audit;
mod broken;
pub mod evict;
mod format;
mod heap;
mod hold;
mod identity;
mod model;
pub mod placement;
mod process;
mod publish;
mod read;
mod reclaim;
mod replica;
#[cfg(test)]
mod tests;
pub mod tier;
mod upkeep;
#[cfg(feature = "verify")]
pub mod verify;

pub use attach::AttachError;
pub use audit::{
    Audit, AuditReport, AuditStep, Checked, Fault, Gravity, PayloadSample, Repair, RepairError,
};
pub use cxl_shm::host::Histogram;
pub use format::{
    AgentLine, AgentSeen, AreaLine, BlockState, BlockUse, BlockUses, CacheGeometry,
    DESCRIPTOR_SLOTS_MAX, DESCRIPTOR_SLOTS_MIN, DRIVE_REQUESTS_MAX, DRIVE_SLOTS_MAX, Descriptor,
    DescriptorError, Directive, Drain, DriveGeometry, GeometryError, HOLD_MS_MAX, Handle,
    IssuedDirective, LOG_ENTRIES_MAX, LOG_ENTRIES_MIN, NodeSummary, OfDrain, PROBE_SLOTS,
    PeerSegment, Pin, RestoreOutcome, RestoreRequest, SlotContent, SummarySeen, agent_of,
    area_line, directives_of, held_by, holders_of, segment_of, summary_of,
};
pub use heap::{PERCENT_MAX as PIN_PERCENT_MAX, QUOTAS_MAX, Quota, TooManyQuotas};
pub use hold::{HOLD_MS, HeldBlock, HoldError};
pub use identity::{
    BlockHash, BlockKey, ChainHasher, IndexKey, KeySpace, Model, ModelFingerprint, Namespace,
    NamespaceTag, dynamo, vllm,
};
pub use model::{Attention, Dtype, KvGeometry, KvGeometryError, Part, UnknownDtype};
pub use process::{
    AttachedCache, Cache, HeapUse, HostFigures, Latency, Metrics, Occupancy, PrefetchCounts,
    ProcessState,
};
pub use publish::{BlockSpec, CommitError, ReadyBlock, Refusal, Reservation, WritingBlock};
pub use read::{MatchedBlock, OwnFeed, OwnNews, OwnUse, PrefixMatch, Ticket, Wanted};
pub use reclaim::{ReclaimInProgress, reclaim_dead_processes};
pub use replica::{Changes, Miss, PoolPrefix, PoolReader};
pub use upkeep::{Clearing, DirectiveError, Upkeep, WatermarkError, Watermarks};

/// The format drawn, and the protocols between hosts, step by step.
pub mod guide {
    #[doc = include_str!("../docs/format.md")]
    pub mod format {}
    #[doc = include_str!("../docs/protocols.md")]
    pub mod protocols {}
    #[doc = include_str!("../docs/placement.md")]
    pub mod placement {}
}
