//! A child process as its parent has it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use cxl_shm::crash::{ARM_VARIABLE, Armed};
use rustix::process::{Pid, Signal, kill_process};

use super::child::Order;
use super::event::{Event, hear};

/// What comes from a child.
#[derive(Debug)]
pub(super) enum Heard {
    /// It said something.
    Event(Event),
    /// It will never say anything more: everything it said was heard.
    End,
}

/// A running child. Killed when dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts `program` with `arguments`. What it says goes to `heard` under the name `player`.
    pub(super) fn start(
        program: &Path,
        arguments: &[String],
        armed: Option<Armed>,
        player: usize,
        heard: &Sender<(usize, Heard)>,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env_remove(ARM_VARIABLE);
        if let Some(Armed { point, nth }) = armed {
            command.env(ARM_VARIABLE, format!("{}:{nth}", point.name()));
        }
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let process = Self { child, stdin };
        let stdout = BufReader::new(stdout.context("a child has a pipe for its output")?);
        let heard = heard.clone();
        let listen = move || {
            for line in stdout.lines() {
                let event = line.map_err(anyhow::Error::from).and_then(|line| hear(&line));
                let event = event.unwrap_or_else(|error| Event::Fault(format!("{error:#}")));
                if heard.send((player, Heard::Event(event))).is_err() {
                    return;
                }
            }
            // Nobody listens when the run is over.
            let _ = heard.send((player, Heard::End));
        };
        std::thread::Builder::new()
            .name(format!("listener-{player}"))
            .spawn(listen)
            .context("cannot start a thread")?;
        Ok(process)
    }

    /// Kills it with SIGKILL, if it still lives.
    pub(super) fn kill(&mut self) {
        // It may have ended in between, which is all we want.
        let _ = self.child.kill();
    }

    /// Stops it where it is, or lets it continue.
    pub(super) fn pause(&self, paused: bool) -> Result<()> {
        let signal = if paused { Signal::STOP } else { Signal::CONT };
        let pid = Pid::from_child(&self.child);
        // Our own child, not waited for yet: nobody else has its number.
        kill_process(pid, signal).context("cannot stop a child, or let it go on")
    }

    /// Tells it what to do.
    pub(super) fn order(&mut self, order: Order) {
        if let Some(stdin) = &mut self.stdin {
            // It may have died, which is heard of elsewhere.
            let _ = stdin.write_all(&[order.byte()]).and_then(|()| stdin.flush());
        }
    }

    /// Tells it to end in order.
    pub(super) fn tell_to_stop(&mut self) {
        drop(self.stdin.take());
    }

    /// Waits for its end, which is near: it has closed its pipe.
    pub(super) fn wait(mut self) -> Result<ExitStatus> {
        self.child.wait().context("cannot wait for a child")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // A child that is never waited for stays as a zombie until we end.
        let _ = self.child.wait();
    }
}
