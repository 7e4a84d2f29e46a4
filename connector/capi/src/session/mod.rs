//! Sessions for C: the KV cache, over `rackline::AsyncPool`.
//!
//! The header `include/rackline.h` is generated from this folder and checked in; a test fails when
//! it is not current. `include/rackline.hpp` is a wrapper for C++, written by hand.
//!
//! - **CAPI-I5** What is open has a number, in a struct of its own type, and never an address.
//!   Numbers are not used again: one that was freed, or is of another kind, is an error, by
//!   whichever thread.
//! - **CAPI-I6** Every call is safe from any thread, with any handle, also while others use or free
//!   it. What a call works with stays until the call returns.
//! - **CAPI-I7** Memory is lent to a transfer until that is *over*: a wait for its result returned
//!   `RACKLINE_ERROR_OK` or `RACKLINE_ERROR_NO_RESULT`, a cancel said that it was revoked, or a
//!   free of it returned. What one transfer writes is lent to no other: `rackline::memory` refuses
//!   it. Memory of a GPU is lent like any other. A transfer by layers has all of its memory for as
//!   long, as far as other transfers are concerned. The program itself may write a layer that is
//!   published until it says that the layer is ready, or that the publish is finished; and it may
//!   use a layer that is fetched from when a wait for that layer, or a later one, returned
//!   `RACKLINE_ERROR_OK`.
//! - **CAPI-I8** A child of `fork` is refused everything that its parent has open, without a lock
//!   that the parent may have held. It may attach by itself.
//! - **CAPI-I9** No panic crosses into C: it becomes `RACKLINE_ERROR_PANICKED`.

mod arguments;
mod directives;
mod error;
mod fetch;
mod gpu;
mod handles;
mod hashes;
mod layered_fetch;
mod layered_publish;
mod layers;
mod lent;
mod lookup;
mod model;
mod opening;
mod options;
mod pending;
mod pool;
mod prefetch;
mod prefix;
mod publish;
mod reason;

pub use directives::{
    RacklineNamespace, rackline_clear, rackline_clear_all, rackline_pin, rackline_unpin,
};
pub use error::{RacklineError, rackline_error_message, rackline_error_name};
pub use fetch::{
    RacklineFetch, RacklineFetchResult, rackline_fetch, rackline_fetch_cancel, rackline_fetch_free,
    rackline_fetch_handles, rackline_fetch_handles_into_gpu, rackline_fetch_into_gpu,
    rackline_fetch_poll, rackline_fetch_wait,
};
pub use gpu::{
    RacklineGpu, RacklineGpuFigures, RacklineGpuReach, rackline_gpu_figures, rackline_gpu_free,
    rackline_gpu_open, rackline_gpu_reach,
};
pub use hashes::{RacklineBlockHash, rackline_chain_hashes};
pub use layered_fetch::{
    RacklineLayeredFetch, rackline_fetch_by_layers, rackline_fetch_by_layers_into_gpu,
    rackline_fetch_handles_by_layers, rackline_fetch_handles_by_layers_into_gpu,
    rackline_layered_fetch_cancel, rackline_layered_fetch_free, rackline_layered_fetch_wait,
    rackline_layered_fetch_wait_layer,
};
pub use layered_publish::{
    RacklineLayeredPublish, rackline_layered_publish_abort, rackline_layered_publish_finish,
    rackline_layered_publish_free, rackline_layered_publish_layer_ready,
    rackline_layered_publish_layer_ready_on_gpu, rackline_layered_publish_wait,
    rackline_publish_by_layers, rackline_publish_by_layers_from_gpu,
};
pub use layers::RacklineLayers;
pub use lent::{RacklineDestination, RacklineSource};
pub use lookup::{
    RacklineLookup, RacklineLookupResult, RacklineRestoreOptions, rackline_hold, rackline_lookup,
    rackline_lookup_and_hold, rackline_lookup_and_restore, rackline_lookup_cancel,
    rackline_lookup_free, rackline_lookup_poll, rackline_lookup_wait,
};
pub use model::{RacklineModel, rackline_model_fingerprint};
pub use opening::{
    RacklineSession, RacklineSessionOptions, rackline_session_free, rackline_session_open,
};
pub use options::{RacklinePoolOptions, RacklineQuota};
pub use pending::RACKLINE_FOREVER_MS;
pub use pool::{
    RacklinePool, rackline_pool_attach, rackline_pool_close, rackline_pool_metric,
    rackline_pool_metrics, rackline_pool_node,
};
pub use prefetch::{
    RacklinePrefetch, RacklinePrefetchResult, rackline_prefetch, rackline_prefetch_cancel,
    rackline_prefetch_free, rackline_prefetch_wait,
};
pub use prefix::{
    RacklineBlockHandle, RacklinePrefix, rackline_prefix_blocks, rackline_prefix_free,
    rackline_prefix_handles, rackline_prefix_held, rackline_prefix_release,
};
pub use publish::{
    RacklinePublish, RacklinePublishResult, rackline_publish, rackline_publish_cancel,
    rackline_publish_free, rackline_publish_from_gpu, rackline_publish_poll, rackline_publish_wait,
};
pub use reason::{RacklineOutcome, RacklineReason, rackline_outcome_label, rackline_reason_label};
