//! A rack in a box: a region in memory, a lock manager and workers, each a process of its own on
//! this machine. Whatever is made here is gone when it is dropped.

mod interrupt;
mod lock_manager;
mod own_region;
mod process;
mod tasks;
mod worker;

pub(crate) use interrupt::Interrupt;
pub(crate) use lock_manager::LockManager;
pub(crate) use own_region::OwnRegion;
pub(crate) use tasks::{carry_out_tasks, say};
pub(crate) use worker::Worker;

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error; hidden when that is no terminal.
pub(crate) fn progress_bar(length: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
