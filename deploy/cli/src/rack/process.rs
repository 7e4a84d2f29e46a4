//! Processes that end with this one.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use cxl_shm::clock::SystemClock;

/// How long a process may take to stop in order before it is killed.
const STOP_MS: u64 = 3000;

/// A process that is stopped when this is dropped.
#[derive(Debug)]
pub(super) struct OwnProcess {
    pub(super) child: Child,
    pub(super) name: String,
}

impl OwnProcess {
    /// Starts this program again with other arguments; one with pipes is spoken to by them.
    pub(super) fn start(
        name: &str,
        arguments: &[String],
        environment: &[(&str, String)],
        pipes: bool,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let pipe = || if pipes { Stdio::piped() } else { Stdio::null() };
        let child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            // What workers report comes as events; the log would tear the answers apart.
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned()))
            .stdin(pipe())
            .stdout(pipe())
            // Ctrl-C at a terminal is for us: we stop the others in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        Ok(Self { child, name: name.to_owned() })
    }

    pub(super) fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(format!("the {} ended ({status})", self.name)),
            Ok(None) => None,
            Err(error) => Some(format!("the {} cannot be waited for: {error}", self.name)),
        }
    }

    /// Asks it to stop in order.
    pub(super) fn stop(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        // A worker ends with its standard input.
        drop(self.child.stdin.take());
        let clock = SystemClock::start();
        for _ in 0..STOP_MS / 10 {
            if self.ended().is_some() {
                return;
            }
            clock.sleep_ms(10);
        }
        // It may have ended in between, which is all we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
