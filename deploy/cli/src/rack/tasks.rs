//! The protocol with workers: one JSON object per line, on their standard input and output.

use std::io::{BufRead, Write};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// In a worker: takes tasks until standard input ends. A failed task is reported, and the next one
/// is taken.
pub(crate) fn carry_out_tasks<T: DeserializeOwned>(
    mut carry_out: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let task =
            serde_json::from_str(&line?).context("a line on standard input is not a task")?;
        if let Err(error) = carry_out(task) {
            tell(&Err::<(), _>(format!("{error:#}")))?;
        }
    }
    Ok(())
}

/// In a worker: reports an event.
pub(crate) fn say(event: &impl Serialize) -> Result<()> {
    tell(&Ok::<_, String>(event))
}

fn tell(said: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    Ok(())
}
