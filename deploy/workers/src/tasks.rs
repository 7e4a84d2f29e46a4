//! The side of the worker.

use std::io::{BufRead, Write, stdin, stdout};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// In a worker: the tasks that its parent gives, until standard input ends.
pub fn tasks<T: DeserializeOwned>() -> impl Iterator<Item = Result<T>> {
    stdin().lock().lines().map(|line| read(&line.context("cannot read standard input")?))
}

fn read<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line)
        .with_context(|| format!("a line on standard input is not a task: {line:?}"))
}

/// In a worker: says `what` on standard output, as one line. After the return it is the parent's,
/// also when this process is killed. A line that a pipe takes whole goes in one write: a death
/// leaves none half said.
///
/// # Errors
/// When the parent does not listen any more.
pub fn tell(what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let mut out = stdout().lock();
    out.flush().context("the parent does not listen")?;
    // Past the buffer of the standard output, which may split what it gets.
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&out, rest));
        rest = &rest[written.context("the parent does not listen")?..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_task_is_shown() {
        assert_eq!(read::<u32>("7").unwrap(), 7);
        let refused = read::<u32>("seven").unwrap_err().to_string();
        assert_eq!(refused, "a line on standard input is not a task: \"seven\"");
    }
}
