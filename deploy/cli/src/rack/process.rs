//! Processes that end with this one.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// How long a process may take to stop in order before it is killed.
pub(super) const STOP_MS: u64 = 3000;

/// This program again, with other arguments. It has no standard input or output of its own.
pub(crate) fn this_program(
    arguments: &[String],
    environment: &[(&str, String)],
) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        // What workers report comes as events; the log would tear the answers apart.
        .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Ctrl-C at a terminal is for us: we stop the others in order.
        .process_group(0);
    Ok(command)
}
