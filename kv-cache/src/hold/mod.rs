//! Holds: a block that must not vanish between lookup and fetch, for instance from prefill to
//! decode.
//!
//! A reader announces its hold in the block's *reader word* (`format/reader_word.rs`): one word per
//! slot in its own node's array. So no two hosts write one line (MEM-M1), and no host is asked.
//!
//! ```text
//! reader   count in the host's table   reader word: held, published  READY, that generation? held
//! owner    EVICTING, published         fresh look at all reader words of the slot
//!              none held: FREE, published           held: READY again, the same generation
//! ```
//!
//! - **EVICT-H1** The reader publishes the reader word, then looks at the descriptor: READY of that
//!   generation means held. The owner publishes EVICTING, then looks at the reader words. One of
//!   the two always sees the other. Each attempt of the owner begins with EVICTING again. A reader
//!   that finds EVICTING looks again: its reader word stands, and the owner will decide.
//! - **EVICT-H2** EVICTING of the same generation is as good as READY for a fetch and for any
//!   second look: a held block passes through it.
//! - **EVICT-H3** A hold does not replace the second look (READ-F2).
//! - **EVICT-H4** Threads and processes of one host share a reader word. Their holds are counted in
//!   the host's DRAM (`heap/hold_table.rs`). Counts and reader words change under the heap lock,
//!   at most 1,024 at a time, so that a long prompt does not keep the lock from others.
//!   The last hold releases the reader word, and a touch leaves it unchanged. The holds of a
//!   process that died or left are dropped by the next process that cleans up after such processes.
//!   Only then does the place of that process pass on (HOST-N1 in `cxl_shm`'s `host/places.rs`). A
//!   release whose holder has lost its place does nothing.
//! - **EVICT-H5** A hold lasts as long as the reader word says, from when the *owner* first saw it,
//!   on the owner's clock ([`HoldWatch`](crate::evict::HoldWatch)). A dead reader blocks nothing
//!   for longer. Holds of a node that has left, or was declared dead, do not count. A node that
//!   joins again releases the reader words of its former life. An expired hold costs at most a
//!   miss, never a wrong byte.
//! - **EVICT-H6** Only the way from EVICTING back to READY, with the payload untouched, keeps a
//!   generation. A process that dies while it writes either state leaves the line torn and the
//!   block unchanged. Only the state or the seal of such a line is new. So the next process, in a
//!   sweep or as reclaimer, finds the truth by trying both states. A line that says neither state
//!   is not tried: its block was about to go, or not there yet.
//! - **EVICT-H7** EVICTING of an owner whose life is over counts as READY for a hold, after these
//!   looks in this order, behind the reader word. First: the owner is vacant, and no reclaimer's
//!   word in force names it, both freshly read. Then: the descriptor still says EVICTING of that
//!   generation. Any process that could have decided without seeing the reader word is over by
//!   then, and its writes have arrived (ORPHAN-W3). A process that comes later, a reclaimer or the
//!   next life, announces the block again, and then sees the reader word (EVICT-H1).
//!
//! A crash between count and reader word, or reader word and look, leaves a hold without a holder.
//! It expires, or is released earlier: after the sweep of the reader's host, a bounded number of
//! such reader words with each hold of its heap lock.

mod guard;
mod take;

pub use guard::HeldBlock;
pub use take::HoldError;
#[cfg(feature = "verify")]
pub(crate) use take::Look;

/// How long a hold lasts unless the holder says otherwise, in milliseconds.
pub const HOLD_MS: u64 = 30_000;
