//! Holds: a block that must not vanish between lookup and fetch, for instance from prefill to
//! decode.
//!
//! A reader says so in the block's *stamp* ([`crate::stamp`]): one word a slot in its own node's
//! array, so no two hosts write one line (M1) and nobody is asked.
//!
//! ```text
//! reader   count in the host's table   stamp held, published   READY of that generation? held
//! owner    EVICTING, published         fresh look at all stamps of the slot
//!              none held: FREE, published           held: READY again, the same generation
//! ```
//!
//! - **H1** The reader publishes the stamp, then looks at the descriptor: READY of that generation
//!   means held. The owner publishes EVICTING, then looks at the stamps. One of the two always sees
//!   the other. Each attempt of the owner begins with EVICTING anew. A reader that finds EVICTING
//!   looks again: its stamp stands, and the owner decides one way or the other.
//! - **H2** EVICTING of the same generation is as good as READY for a fetch and for any second
//!   look: a held block passes through it.
//! - **H3** A hold does not spare the second look (F2).
//! - **H4** Threads and processes of one host share a stamp. Their holds are counted in the host's
//!   DRAM ([`table`]); counts and stamps change under the heap lock; the stamp is released at the
//!   last one, and a touch leaves it alone. Holds of a process that died or left are dropped by the
//!   next that looks after those that are gone, and only then does the place of that process pass on
//!   (N1 in `cxl_shm`'s `member/places.rs`). A release whose holder has lost its place does nothing.
//! - **H5** A hold lasts as long as the stamp says from when the *owner* first saw it, on its own
//!   clock ([`watch`]): a dead reader blocks nothing for longer. Holds of a node that has left, or
//!   was declared dead, do not count; a node that joins again releases what its former life left. One
//!   that has expired costs at most a miss, never a wrong byte.
//! - **H6** Only EVICTING back to READY, with the payload untouched, keeps a generation.
//!   Who dies within a line that says either leaves it torn, and the block as it was: of the line the
//!   state or the seal alone is new, so who comes after it, a sweep or a guardian, finds out by trying
//!   both states. A line that says neither is not tried: its block was about to go, or not there yet.
//! - **H7** EVICTING of an owner whose life is over counts as READY for a hold, when these looks follow
//!   the stamp, in this order: the owner is vacant and no guardian's word in force names it, both
//!   freshly read, and then the descriptor still says EVICTING of that generation. Whoever could have
//!   decided without the stamp is over by then, and what it wrote has arrived (W3). Whoever comes
//!   later, a guardian or the next life, announces the block anew and then sees the stamp (H1).
//!
//! A crash between count and stamp, or stamp and look, leaves a hold that nobody has. After the sweep of
//! the reader's host it is released, a bounded number of stamps with each hold of its heap lock, and
//! until then it expires.

mod guard;
mod table;
mod take;
mod watch;

pub use guard::HeldBlock;
pub(crate) use guard::Release;
pub(crate) use table::{HoldTable, words_needed};
pub use take::HoldError;
#[cfg(any(test, feature = "proof"))]
pub(crate) use take::Look;
pub(crate) use watch::HoldWatch;

/// How long a hold lasts unless the holder says otherwise, in milliseconds.
pub const HOLD_MS: u64 = 30_000;
