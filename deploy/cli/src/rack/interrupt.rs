//! Being asked to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set by signals: everything that waits looks at it.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// By SIGINT and SIGTERM.
    pub(crate) fn install() -> Result<Self> {
        Self::by(&[SIGINT, SIGTERM])
    }

    /// By these, and by the end of the terminal, for a command that leaves something behind otherwise.
    pub(crate) fn install_for_terminal() -> Result<Self> {
        match ignores_hangups() {
            true => Self::install(),
            false => Self::by(&[SIGINT, SIGTERM, SIGHUP]),
        }
    }

    fn by(signals: &[i32]) -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in signals {
            signal_hook::flag::register(*signal, Arc::clone(&flag))
                .context("cannot handle signals")?;
        }
        Ok(Self(flag))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// Whether the process was started to go on when its terminal is closed, as by `nohup`.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal n is bit n - 1.
    ignored.is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0)
}
