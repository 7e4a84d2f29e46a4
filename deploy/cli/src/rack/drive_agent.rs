//! The agent of a node of a rack in a box.

use std::path::Path;

use anyhow::{Result, bail};
use rackline_workers::Process;
use rustix::process::Signal;

use super::lock_manager::text_of;
use super::process::{STOP_MS, this_program};

/// An agent. It ends, in order, when this is dropped, and with this process however it ends.
#[derive(Debug)]
pub(crate) struct DriveAgent {
    process: Process,
}

impl DriveAgent {
    /// Starts it on `node` with one folder of a drive, which may take `drive_bytes`. It backs all
    /// blocks up, as soon as it can.
    pub(crate) fn start(region: &Path, node: u16, folder: &Path, drive_bytes: u64) -> Result<Self> {
        let drive = format!("{}:{drive_bytes}B", text_of(folder)?);
        let node_text = node.to_string();
        let place = ["agent", "--with-parent", "--region", text_of(region)?, "--node", &node_text];
        let soon = ["--admission", "all", "--backup-age-ms", "0", "--commit-ms", "20"];
        let arguments = place.into_iter().chain(["--drive", &drive]).chain(soon);
        let arguments: Vec<String> = arguments.map(str::to_owned).collect();
        let mut command = this_program(&arguments, &[])?;
        let process = Process::start(&mut command, format!("agent of node {node}"), STOP_MS)?;
        Ok(Self { process })
    }

    #[cfg(feature = "demo")]
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills it as `kill -9` does, and waits for its end.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill();
        self.process.wait()?;
        Ok(())
    }

    /// An error when it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.process.ended() {
            Some(ended) => bail!("{ended}: its reason is above"),
            None => Ok(()),
        }
    }
}

impl Drop for DriveAgent {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.signal(Signal::TERM);
    }
}
