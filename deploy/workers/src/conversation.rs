//! A worker process, spoken to by lines of JSON.

use std::io::Result as IoResult;
use std::marker::PhantomData;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::process::Process;

/// How often a parent that waits looks whether it is to go on waiting.
const LOOK: Duration = Duration::from_millis(50);

/// A worker that takes tasks `T` and answers with `A`.
#[derive(Debug)]
pub struct Conversation<T, A> {
    process: Process,
    lines: Receiver<IoResult<String>>,
    speaks: PhantomData<fn(T) -> A>,
}

impl<T: Serialize, A: DeserializeOwned> Conversation<T, A> {
    /// Starts `command` as a worker: see [`Process::start`].
    ///
    /// # Errors
    /// When the program or a thread does not start.
    pub fn start(command: &mut Command, name: impl Into<String>, grace_ms: u64) -> Result<Self> {
        let (sender, lines) = channel();
        // The end of the sender is the end of the lines.
        let heard = move |line| match line {
            Some(line) => sender.send(line).is_ok(),
            None => false,
        };
        let process = Process::start_with_pipes(command, name, grace_ms, heard)?;
        Ok(Self { process, lines, speaks: PhantomData })
    }

    /// Gives it a task. One at a time.
    ///
    /// # Errors
    /// When it has ended.
    pub fn give(&mut self, task: &T) -> Result<()> {
        let mut line = serde_json::to_vec(task)?;
        line.push(b'\n');
        self.process.write(&line)
    }

    /// Its next answer. Every 50 ms `check` says whether to go on waiting.
    ///
    /// # Errors
    /// That of `check`; an end of the process; a line that is no answer.
    pub fn next(&mut self, mut check: impl FnMut() -> Result<()>) -> Result<A> {
        loop {
            check()?;
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => {
                    let name = self.process.name();
                    let line = line.with_context(|| format!("cannot hear the {name}"))?;
                    return serde_json::from_str(&line)
                        .with_context(|| format!("the {name} said {line:?}"));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.wait()?;
                    bail!("the {} ended ({status})", self.process.name());
                }
            }
        }
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Conversation<u32, u32> {
        let mut command = Command::new("sh");
        Conversation::start(command.args(["-c", script]), "worker", 0).unwrap()
    }

    #[test]
    fn tasks_are_answered_one_by_one() {
        let mut worker = start("while read task; do echo $((task + 1)); done");
        for task in [1, 41] {
            worker.give(&task).unwrap();
            assert_eq!(worker.next(|| Ok(())).unwrap(), task + 1);
        }
    }

    #[test]
    fn a_death_is_an_error_after_the_last_answer() {
        let mut worker = start("echo 7; exit 3");
        assert_eq!(worker.next(|| Ok(())).unwrap(), 7);
        let ended = worker.next(|| Ok(())).unwrap_err().to_string();
        assert_eq!(ended, "the worker ended (exit status: 3)");
    }

    #[test]
    fn a_line_that_is_no_answer_is_shown() {
        let refused = start("echo hello").next(|| Ok(())).unwrap_err().to_string();
        assert_eq!(refused, "the worker said \"hello\"");
    }

    #[test]
    fn whoever_waits_can_be_interrupted() {
        let (mut worker, mut looks) = (start("exec sleep 600"), 0);
        let interrupted = worker.next(|| {
            looks += 1;
            if looks == 3 { bail!("interrupted") } else { Ok(()) }
        });
        assert_eq!(interrupted.unwrap_err().to_string(), "interrupted");
    }
}
