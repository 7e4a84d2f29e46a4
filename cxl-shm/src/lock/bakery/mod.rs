//! The shared tier `bakery`: Lamport's bakery over single-writer words, without a lock manager.
//!
//! Each node has one word per lock in its request lines: zero when it wants nothing, *choosing*
//! while it chooses its number, else its number. To acquire, a node publishes *choosing*, looks at
//! the words of all nodes at once, publishes a number larger than any it saw, and waits until no
//! node that was there before is left: two publishes and two parallel looks. Release and
//! withdrawal are the same write, zero, and always legal.
//!
//! - **LOCK-B1** One word holds both *choosing* and the number, so it changes from one to the other
//!   at once.
//! - **LOCK-B2** The number is chosen after *choosing* is published in full (MEM-M2): a node that
//!   did not see it has a number that the look finds.
//! - **LOCK-B3** A node is waited for while it chooses, and while its number, or at equal numbers
//!   its place among the nodes, is smaller. Seen otherwise once, it need not be looked at again:
//!   whatever it takes next is larger than ours, which it sees. So a hand-over is one visible
//!   transfer: the next in line looks at the word of the one before it.
//! - **LOCK-B4** A node that was seen with a smaller number than ours, and chooses again, is not
//!   waited for: it had its turn, began again after our number was published, and finds our number.
//!   Without this rule a hand-over to a neighbour would wait for the former holder's next number.
//! - **LOCK-B5** First come, first served: no node that begins later overtakes a node that has its
//!   number.
//! - **LOCK-B6** A number beyond counting, or a word that is both choosing and a number, was
//!   written by no node (MEM-M5): it may hide a holder, and nobody enters while it is there.
//!
//! A host that dies leaves its word, and the lock waits for the recoverer, which redoes the intents
//! of the host and clears the word (LOCK-L2). Data is published before the release and refreshed
//! after the entry (LOCK-A3, LOCK-L1).

mod client;
mod number;

pub(crate) use client::{Acquire, clear_requests};
pub(crate) use number::number_wanted;
