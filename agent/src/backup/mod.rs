//! Backup: blocks of this node are copied to its drives while they are READY, in the background.
//!
//! ```text
//! follow   what this node publishes, and what any host uses of it
//! admit    blocks that are old enough, and worth a write
//! copy     first look, copy, second look, checksum: a fetch whose destination is memory of the agent
//! schedule when the drives have nothing else to do (`schedule`)
//! encode   where that takes fewer pages, and the settings ask for it
//! write    an extent
//! commit   durable, many blocks together
//! announce to the hosts of the rack
//! ```
//!
//! - **AGENT-B1** A backup changes nothing in the pool. Nothing waits for it, and an eviction does not
//!   ask for it.
//! - **AGENT-B2** The backlog has a bound in bytes. Blocks beyond it are dropped and counted, and no
//!   publisher is stopped. When the backlog is empty again, all blocks of the node are looked at once
//!   more. So they are after a drive has refused or lost blocks and may take them another time.
//! - **AGENT-B3** A block is announced after the commit that makes it durable, and withdrawn before it
//!   leaves the drive.
//! - **AGENT-B4** Of the blocks in the backlog those with the fewest blocks before them are written
//!   first: a block without its prefix is of no use.
//! - **AGENT-B5** Blocks are encoded on the thread of the backup. While more than half of the backlog
//!   waits they are written raw: encoding is not to fill the backlog.
//! - **AGENT-B6** A write that its device does not end in time is given up, counted, and not kept
//!   when it ends. Drains end, and writes to other devices go on. Nothing is written to the device
//!   before it has answered.

mod backlog;
mod kept_slack;
mod known;
mod mover;
mod turns;
mod uses;
mod writes;

pub(crate) use backlog::{Backlog, Candidate};
pub(crate) use mover::{BackupParts, Mover};
