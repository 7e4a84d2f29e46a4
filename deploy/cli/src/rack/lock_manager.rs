//! The lock manager of a rack in a box.

use std::path::Path;

use anyhow::{Result, bail};
use cxl_shm::clock::SystemClock;
use cxl_shm::layout::Layout;
use cxl_shm::lock::ManagerSeen;
use cxl_shm::region::Region;
use rackline_workers::Process;
use rustix::process::Signal;

use super::Interrupt;
use super::process::{STOP_MS, this_program};

/// How long a heartbeat has stopped before its host is declared dead: when a worker ends unasked
/// the run is over anyway, and one that gets no CPU on a busy machine is not dead.
const DECLARE_MS: u64 = 60_000;

/// A lock manager. It ends, in order, when this is dropped, and with this process however it ends.
#[derive(Debug)]
pub(crate) struct LockManager {
    process: Process,
}

impl LockManager {
    /// Starts it on `node` and waits until it serves.
    pub(crate) fn start(
        region: &Region,
        layout: &Layout,
        node: u16,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        Self::start_with(DECLARE_MS, region, layout, node, interrupt)
    }

    /// Starts one that declares a host dead whose heartbeat has stopped for `declare_ms`.
    pub(crate) fn start_with(
        declare_ms: u64,
        region: &Region,
        layout: &Layout,
        node: u16,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (node, declare_ms) = (node.to_string(), declare_ms.to_string());
        let arguments = ["lock-manager", "--with-parent", "--node", &node];
        let arguments = arguments.into_iter().chain(["--declare-ms", &declare_ms, "--region"]);
        let mut arguments: Vec<String> = arguments.map(str::to_owned).collect();
        arguments.push(text_of(region.path())?.to_owned());
        let mut command = this_program(&arguments, &[])?;
        let mut process = Process::start(&mut command, "lock manager", STOP_MS)?;
        let clock = SystemClock::start();
        loop {
            interrupt.check()?;
            if let Some(ended) = process.ended() {
                bail!("{ended} before it served");
            }
            let seen = ManagerSeen::look(layout, region.fabric());
            if seen.is_some_and(|seen| seen.serving) {
                return Ok(Self { process });
            }
            clock.sleep_ms(5);
        }
    }

    /// An error when it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.process.ended() {
            Some(ended) => bail!("{ended}: its reason is above"),
            None => Ok(()),
        }
    }

    #[cfg(feature = "demo")]
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Drop for LockManager {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.signal(Signal::TERM);
    }
}

/// A path as an argument of another process.
pub(super) fn text_of(path: &Path) -> Result<&str> {
    match path.to_str() {
        Some(text) => Ok(text),
        None => bail!("{} is not UTF-8: rename it", path.display()),
    }
}
