//! A node: the lines of the region that one host writes, and what all hosts read of each other's.
//!
//! [`Member`] is this process as one of a node, on a [`Backend`]: mapped memory, or what a test
//! has instead. The folders above add what it does: locks, chunks, and its life. A slot is read
//! here, whichever host lives in it; what changes it is in [`lifecycle`](crate::lifecycle).

mod agent;
mod backend;
#[cfg(feature = "verify")]
mod carried;
mod handle;
mod heartbeat;
mod marks;
mod member;
mod moved_lines;
mod places;
mod slot;
mod slot_watch;
mod stillness;

pub(crate) use agent::OfficeWatch;
pub use agent::STALLED_BEATS;
pub use backend::{Backend, MappedBackend};
#[doc(hidden)]
pub use handle::NodeHandle;
pub(crate) use heartbeat::send_heartbeat;
pub use heartbeat::{HEARTBEAT_MS, RESIGN_BEATS, SUSPECT_MS};
pub(crate) use marks::{Call, Mark, Marks, name_of};
pub use member::Member;
pub(crate) use slot::{
    Slot, is_freed, is_over, is_taken, is_unreadable, last_named, make_good, recoverers_at_work,
    recoveries_of,
};
pub(crate) use slot_watch::SlotWatch;
pub use stillness::{LOOK_GAP_MAX_MS, Stillness};
