//! A worker process, spoken to by tasks and events.

use std::path::Path;

use anyhow::{Result, bail};
use rackline_workers::Conversation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Interrupt;
use super::lock_manager::text_of;
use super::process::{STOP_MS, this_program};

/// A worker that takes tasks `T` and reports events `E`. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Worker<T, E> {
    conversation: Conversation<T, Result<E, String>>,
    interrupt: Interrupt,
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
        let mut command = this_program(&arguments, environment)?;
        let conversation = Conversation::start(&mut command, name, STOP_MS)?;
        Ok(Self { conversation, interrupt: interrupt.clone() })
    }

    /// Gives it a task. One at a time.
    pub(crate) fn give(&mut self, task: &T) -> Result<()> {
        self.conversation.give(task)
    }

    /// Its next event. An end of the process and a failed task are errors.
    pub(crate) fn next(&mut self) -> Result<E> {
        match self.conversation.next(|| self.interrupt.check())? {
            Ok(event) => Ok(event),
            Err(reason) => bail!("the {} failed: {reason}", self.conversation.process().name()),
        }
    }

    #[cfg(feature = "demo")]
    pub(crate) fn name(&self) -> &str {
        self.conversation.process().name()
    }

    #[cfg(feature = "demo")]
    pub(crate) fn pid(&self) -> u32 {
        self.conversation.process().pid()
    }
}
