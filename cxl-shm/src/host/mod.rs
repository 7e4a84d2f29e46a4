//! A host: what its processes share in its own DRAM, which is coherent and has atomic operations.
//!
//! The *host tier* is a file that all processes of a host map: the registry of processes, locks and
//! queues among threads of the host, and the words that a lock between hosts keeps here. Nothing in
//! this folder touches the memory that hosts share.

mod guard;
mod histogram;
mod identity;
mod life_lock;
mod lock;
mod lock_figures;
mod lock_kind;
mod lock_state;
mod loss;
mod places;
mod process;
mod queue;
mod stopped_watch;
mod tier;
mod tier_file;
mod tier_files;
mod turn;

pub use guard::HostGuard;
pub use histogram::Histogram;
pub use identity::HostIdentity;
pub use lock::{HolderToken, HostAcquire, HostLock};
pub(crate) use lock_figures::LockCounters;
pub use lock_figures::{Behind, LockFigures};
pub use lock_kind::LockKind;
pub(crate) use lock_state::{LockState, Phase, TERM_MAX, TICKET_BITS, TICKET_END, grant_word};
pub use loss::{LossCause, MembershipLost};
pub use places::GoneProcess;
pub use process::{Liveness, PROCESSES_MAX, ProcLiveness, ProcessIdentity, ProcessSlot};
pub(crate) use queue::Abandoned;
#[doc(hidden)]
pub use queue::{Cohort, HostQueue, Living, Place, Turn};
pub(crate) use stopped_watch::StoppedWatch;
pub use tier::{ApplicationMemory, ApplicationWords, HostLockName, HostTier};
#[doc(hidden)]
pub use tier::{FIGURE_WORDS, OBJECT_WORDS};
pub use tier_file::{HOST_TIER_FOLDER, HostTierError, HostTierFile};
pub use tier_files::{TierFileFound, host_tier_files};
pub(crate) use turn::{is_thorough, wait_for_host_lock, wait_for_host_lock_until};
