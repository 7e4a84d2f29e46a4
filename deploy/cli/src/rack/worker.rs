//! A worker process, spoken to by tasks and events.

use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::path::Path;
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Interrupt;
use super::lock_manager::text_of;
use super::process::OwnProcess;

/// A worker that takes tasks `T` and reports events `E`. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Worker<T, E> {
    stdin: ChildStdin,
    events: Receiver<String>,
    process: OwnProcess,
    interrupt: Interrupt,
    speaks: PhantomData<fn(T) -> E>,
}

impl<T: Serialize, E: DeserializeOwned> Worker<T, E> {
    /// Starts this program as a worker: a hidden subcommand with its arguments, and the region and
    /// node that it is to attach to.
    pub(crate) fn start(
        name: &str,
        arguments: &[&str],
        at: Option<(&Path, u16)>,
        environment: &[(&str, String)],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let mut arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let mut name = name.to_owned();
        if let Some((region, node)) = at {
            name.push_str(&format!(" on node {node}"));
            arguments.extend(["--node".to_owned(), node.to_string(), "--region".to_owned()]);
            arguments.push(text_of(region)?.to_owned());
        }
        let mut process = OwnProcess::start(&name, &arguments, environment, true)?;
        let (stdin, stdout) = match (process.child.stdin.take(), process.child.stdout.take()) {
            (Some(stdin), Some(stdout)) => (stdin, stdout),
            _ => bail!("the {name} has no pipes"),
        };
        let (sender, events) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { stdin, events, process, interrupt: interrupt.clone(), speaks: PhantomData })
    }

    /// Gives it a task. One at a time.
    pub(crate) fn give(&mut self, task: &T) -> Result<()> {
        let mut line = serde_json::to_vec(task)?;
        line.push(b'\n');
        self.stdin
            .write_all(&line)
            .with_context(|| format!("the {} does not listen any more", self.process.name))
    }

    /// Its next event. An end of the process and a failed task are errors.
    pub(crate) fn next(&mut self) -> Result<E> {
        loop {
            self.interrupt.check()?;
            match self.events.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    let said: Result<E, String> = serde_json::from_str(&line)
                        .with_context(|| format!("the {} said {line:?}", self.process.name))?;
                    match said {
                        Ok(event) => return Ok(event),
                        Err(reason) => bail!("the {} failed: {reason}", self.process.name),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.child.wait()?;
                    bail!("the {} ended ({status})", self.process.name);
                }
            }
        }
    }

    #[cfg(feature = "demo")]
    pub(crate) fn name(&self) -> &str {
        &self.process.name
    }

    #[cfg(feature = "demo")]
    pub(crate) fn pid(&self) -> u32 {
        self.process.child.id()
    }
}
