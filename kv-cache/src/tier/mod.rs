//! Blocks on the drives of hosts: announced by the agent of their host, found by all, restored by
//! the agent that announced them.
//!
//! Everything that the region says of drives is a *hint*: that the agent of a node can restore a
//! block. Only the owner reads its drives. A restore is a publish by the owner, so a wrong hint
//! costs a miss and nothing else.
//!
//! ```text
//! agent of host A                        agent and engines of host B
//!   entry of the directory, published
//!   drive log, head             --->       agent: heads of all nodes, freshly;
//!                                          the host's table of blocks on drives
//!                                          engine: behind the end of the pool's prefix, the table
//!   requests, freshly           <---       request line, count of requests, published
//!   publish of the block in the pool
//!   answer, published           --->       answers, freshly; lookup, fetch
//! ```
//!
//! - **TIER-D1** An entry of a directory is published before the entry of the drive log that tells
//!   of it, and blank, published, before the log tells that it is gone. So a reader that scans a
//!   directory while it follows the log loses nothing.
//! - **TIER-D2** An agent that starts takes a new *life*, published, before it writes an entry.
//!   Entries of another life are blank. A reader that sees another life scans the directory.
//! - **TIER-D3** A node has one agent: the process that holds the host lock `Drives`. Only the
//!   agent writes the node's drive log, directory, beat and answers, so it needs no heap lock.
//! - **TIER-Q1** A request line is published before the count that counts it. The line is not
//!   written for another request before the request was answered. A ring without such a line is
//!   full: `ask_restore` refuses at once what has no line, and waits for nobody. A lookup that waits
//!   for drives asks again at each of its polls until its own wait is over; then it is a miss.
//!   Prefetches have half of the ring at most, so that a lookup finds room.
//! - **TIER-Q2** Numbers of requests grow, and survive processes and lives. An agent answers each
//!   number once: it leaves an answer of the same number or a later one alone. An agent that starts
//!   publishes the answers that its host's caches have, and finds the open requests by them. A
//!   process that asks publishes the count also where the ring is full. So nothing that a dead
//!   process stored and did not publish keeps a request open for ever.
//! - **TIER-Q3** A request that cannot be read was damaged, or its writer died while it took the
//!   request back: it is answered like the others, so no ring stays full.
//! - **TIER-Q4** The owner publishes a restored block before the answer. So an asking process that
//!   has the answer finds the block.

mod announce;
mod ask;
mod claim;
mod clears;
mod desk;
mod find;
mod forwards;
mod host_table;
mod replica;

pub use announce::{Announced, DriveAnnouncer};
pub use ask::{Asked, RestoreState, RestoreTicket};
pub use claim::{DriveClaim, DriveError};
pub use clears::{AskedClears, ClearNumbers, ClearSet};
pub use desk::{AskedRestore, RestoreDesk};
pub use find::{Found, TieredMatch};
pub use forwards::{ForwardReporter, ForwardSeen, ForwardShape};
pub use replica::{DriveReplica, DriveSync};
