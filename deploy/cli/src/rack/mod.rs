//! A rack in a box: a region in memory, a lock manager and workers, each a process of its own on
//! this machine. Whatever is made here is gone when it is dropped.

pub(crate) mod block_bytes;
mod drive_agent;
mod drives;
mod free_chunk;
mod interrupt;
mod lock_manager;
mod own_region;
mod process;
mod sizes;
mod tasks;
mod worker;

use drive_agent::DriveAgent;
#[cfg(feature = "demo")]
pub(crate) use drives::Restart;
pub(crate) use drives::{Drives, bytes_of};
pub(crate) use free_chunk::has_free_chunk;
pub(crate) use interrupt::Interrupt;
pub(crate) use lock_manager::LockManager;
pub(crate) use own_region::OwnRegion;
pub(crate) use process::this_program;
pub(crate) use sizes::Sizes;
pub(crate) use tasks::{carry_out_queued_tasks, carry_out_tasks, say};
pub(crate) use worker::Worker;
