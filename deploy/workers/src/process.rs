//! A child process as its parent has it.

use std::io::{BufRead, BufReader, Result as IoResult, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use cxl_shm::clock::SystemClock;
use rustix::process::{Pid, Signal, kill_process};

/// How often the end of a process is looked for.
const LOOK_MS: u64 = 10;

/// A running process. When this is dropped, its standard input is closed; if it has not ended after
/// its grace it is killed. The drop returns after its end.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    grace_ms: u64,
}

impl Process {
    /// Starts `command`, with the standard input and output that it has. Errors call the process
    /// `name`. A dropped process has `grace_ms` to end by itself: with 0 it is killed at once.
    ///
    /// # Errors
    /// When the program does not start.
    pub fn start(command: &mut Command, name: impl Into<String>, grace_ms: u64) -> Result<Self> {
        let name = name.into();
        let program = command.get_program().display().to_string();
        let mut child =
            command.spawn().with_context(|| format!("cannot start the {name} ({program})"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Ok(Self { child, name, stdin, stdout, grace_ms })
    }

    /// Starts `command` with pipes, and tells `heard` each line of its standard output, then `None`
    /// once. A thread calls `heard`, until it returns false.
    ///
    /// # Errors
    /// When the program or the thread does not start.
    pub fn start_with_pipes(
        command: &mut Command,
        name: impl Into<String>,
        grace_ms: u64,
        mut heard: impl FnMut(Option<IoResult<String>>) -> bool + Send + 'static,
    ) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Self::start(command, name, grace_ms)?;
        let stdout = process.stdout.take().context("a process has the pipe it was given")?;
        let listen = move || {
            for line in BufReader::new(stdout).lines() {
                // A pipe that cannot be read says nothing more.
                let last = line.is_err();
                if !heard(Some(line)) {
                    return;
                }
                if last {
                    break;
                }
            }
            heard(None);
        };
        let thread = std::thread::Builder::new().name("listener".to_owned());
        thread.spawn(listen).context("cannot start a thread")?;
        Ok(process)
    }

    /// What errors call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes `bytes` to its standard input.
    ///
    /// # Errors
    /// When it has ended, or was told to.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let stdin = self.stdin.as_mut();
        let stdin = stdin.with_context(|| format!("the {} was told to end", self.name))?;
        let written = stdin.write_all(bytes).and_then(|()| stdin.flush());
        written.with_context(|| format!("the {} does not listen any more", self.name))
    }

    /// Tells it to end in order: closes its standard input.
    pub fn close_input(&mut self) {
        drop(self.stdin.take());
    }

    /// Sends it a signal, if it has not been waited for.
    ///
    /// # Errors
    /// Those of kill(2); one that has ended is none.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // Our own child, not waited for yet: no other process has its number.
        let sent = kill_process(Pid::from_child(&self.child), signal);
        sent.with_context(|| format!("cannot send a signal to the {}", self.name))
    }

    /// Kills it with SIGKILL, if it still lives.
    pub fn kill(&mut self) {
        // It may have ended in between, which is as good.
        let _ = self.child.kill();
    }

    /// How it ended, in words; `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(format!("the {} ended ({status})", self.name)),
            Ok(None) => None,
            Err(error) => Some(format!("the {} cannot be waited for: {error}", self.name)),
        }
    }

    /// Waits for its end, with its standard input closed.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.close_input();
        self.child.wait().with_context(|| format!("cannot wait for the {}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.close_input();
        let (clock, mut waited_ms) = (SystemClock::start(), 0);
        while waited_ms < self.grace_ms && self.ended().is_none() {
            clock.sleep_ms(LOOK_MS);
            waited_ms += LOOK_MS;
        }
        self.kill();
        // A child that is never waited for stays as a zombie until its parent ends.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::mpsc::{Receiver, channel};

    const LONG_MS: u64 = 60_000;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn start(script: &str, grace_ms: u64) -> (Process, Receiver<Option<String>>) {
        let (sender, heard) = channel();
        let tell =
            move |line: Option<IoResult<String>>| sender.send(line.map(Result::unwrap)).is_ok();
        let process = Process::start_with_pipes(&mut shell(script), "shell", grace_ms, tell);
        (process.unwrap(), heard)
    }

    fn lives(pid: u32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn all_that_was_said_is_heard_before_the_end_also_after_a_death() {
        let (mut process, heard) = start("echo one; echo two; kill -9 $$", 0);
        let said: Vec<_> = heard.iter().collect();
        assert_eq!(said, [Some("one".to_owned()), Some("two".to_owned()), None]);
        assert_eq!(process.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_process_gets_what_is_written_and_ends_with_its_input() {
        let (mut process, heard) = start("while read line; do echo got $line; done", LONG_MS);
        process.write(b"this\n").unwrap();
        assert_eq!(heard.recv().unwrap(), Some("got this".to_owned()));
        assert_eq!(process.ended(), None);
        process.close_input();
        assert_eq!(heard.recv().unwrap(), None);
        assert!(process.wait().unwrap().success());
        let refused = process.write(b"more\n").unwrap_err().to_string();
        assert_eq!(refused, "the shell was told to end");
    }

    #[test]
    fn a_write_to_the_dead_is_an_error_that_names_it() {
        let (mut process, heard) = start("exec 0<&-; echo deaf; exec sleep 600", 0);
        assert_eq!(heard.recv().unwrap(), Some("deaf".to_owned()));
        let refused = process.write(b"x").unwrap_err().to_string();
        assert_eq!(refused, "the shell does not listen any more");
    }

    #[test]
    fn what_is_dropped_has_ended_by_itself_or_is_killed_after_its_grace() {
        for (script, grace_ms) in
            [("read line", LONG_MS), ("exec sleep 600", 0), ("exec sleep 600", 50)]
        {
            let (process, _heard) = start(script, grace_ms);
            let pid = process.pid();
            assert!(lives(pid));
            drop(process);
            assert!(!lives(pid), "{script}");
        }
    }

    #[test]
    fn a_process_can_be_stopped_and_told_to_end() {
        let (mut process, heard) = start("exec sleep 600", 0);
        process.signal(Signal::TERM).unwrap();
        assert_eq!(heard.recv().unwrap(), None);
        assert_eq!(process.wait().unwrap().signal(), Some(15));
    }

    #[test]
    fn a_program_that_does_not_start_is_named() {
        let command = &mut Command::new("/nowhere/program");
        let refused = Process::start(command, "worker", 0).unwrap_err().to_string();
        assert_eq!(refused, "cannot start the worker (/nowhere/program)");
    }
}
