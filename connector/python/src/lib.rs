//! The native half of the Python package `rackline`: the session API over addresses and lengths.
//!
//! The package's type stubs (`rackline/_native.pyi`) describe what a caller sees.
//!
//! - **PYTHON-Y1** No call holds Python's lock while it waits or copies. (Dropping the last
//!   reference to a pool that was not closed waits for its threads; none of them wants the lock.)
//! - **PYTHON-Y2** Memory is used in whole blocks. A block is lent to one transfer that writes, or
//!   to several that read: [`memory`] refuses the rest, by address. A transfer by layers keeps the block for its whole time. It leaves two kinds of layers to the lender: those that are not ready yet, and
//!   those that have arrived.
//! - **PYTHON-Y3** The owner of the memory is kept alive until the last transfer on it is done.

mod clear;
mod completion;
mod error;
mod forwards;
mod gpu;
mod identities;
mod index;
mod layered;
mod listed;
mod log;
mod memory;
mod model;
mod options;
mod pin;
mod pool;
mod prefetch;
mod prefix;
mod records;
mod session;
mod shares;
mod transfers;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
mod rackline_native {
    #[pymodule_export]
    use crate::clear::clear;
    #[pymodule_export]
    use crate::completion::{Fetch, FetchResult, Lookup, Presence, Publish, PublishResult};
    #[pymodule_export]
    use crate::error::{Busy, Closed, Error, Forked, MembershipLost};
    #[pymodule_export]
    use crate::forwards::Forwards;
    #[pymodule_export]
    use crate::gpu::Gpu;
    #[pymodule_export]
    use crate::identities::{identities, identity_hash};
    #[pymodule_export]
    use crate::index::{Index, IndexModel, IndexPrefix};
    #[pymodule_export]
    use crate::layered::{LayeredFetch, LayeredPublish};
    #[pymodule_export]
    use crate::log::{begin_log, end_log, next_log_line};
    #[pymodule_export]
    use crate::memory::BlockMemory;
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::options::check_pool_options;
    #[pymodule_export]
    use crate::pin::{pin, unpin};
    #[pymodule_export]
    use crate::pool::Pool;
    #[pymodule_export]
    use crate::prefetch::{Prefetch, PrefetchResult};
    #[pymodule_export]
    use crate::prefix::Prefix;
    #[pymodule_export]
    const HANDLE_BYTES: usize = crate::records::HANDLE_BYTES;
    #[pymodule_export]
    const KEYLESS_HANDLE_BYTES: usize = crate::records::KEYLESS_HANDLE_BYTES;
    #[pymodule_export]
    const HASH_BYTES: usize = crate::records::HASH_BYTES;
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::shares::Shares;
}
