//! A rack in a box: a region in memory, a lock manager and workers, each a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cxl_shm::clock::SystemClock;
use cxl_shm::layout::{Layout, Superblock};
use cxl_shm::member::{HOST_TIER_FOLDER, HostTierFile, ManagerSeen};
use cxl_shm::region::Region;

use super::protocol::{Event, Task};

/// Set by SIGINT and SIGTERM: everything that waits looks at it.
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(super) fn install() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .context("cannot handle signals")?;
        }
        Ok(Self(flag))
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// A region in a file that is removed when this is dropped, with all its host tiers.
#[derive(Debug)]
pub(super) struct OwnRegion {
    pub(super) region: Region,
    pub(super) superblock: Superblock,
    pub(super) layout: Layout,
}

impl OwnRegion {
    pub(super) fn path(&self) -> &Path {
        self.region.path()
    }
}

impl Drop for OwnRegion {
    fn drop(&mut self) {
        if let Err(error) = self.region.remove_file() {
            eprintln!("rackline: {error}");
        }
        // A worker that was killed could not remove the tier of its host.
        let folder = Path::new(HOST_TIER_FOLDER);
        if let Err(error) = HostTierFile::remove_all(folder, &self.superblock, &self.layout) {
            eprintln!("rackline: {error}");
        }
    }
}

/// A process that is stopped when this is dropped.
#[derive(Debug)]
struct OwnProcess {
    child: Child,
    name: String,
}

/// How long a process may take to stop in order before it is killed.
const STOP_MS: u64 = 3000;

impl OwnProcess {
    /// Starts this program again with other arguments.
    fn start(name: &str, arguments: &[String], worker: bool) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let pipe = || if worker { Stdio::piped() } else { Stdio::null() };
        let threads = std::thread::available_parallelism().context("cannot count the CPUs")?;
        let child = Command::new(program)
            .args(arguments)
            .envs(demo::threads::environment(threads))
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

    fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(format!("the {} ended ({status})", self.name)),
            Ok(None) => None,
            Err(error) => Some(format!("the {} cannot be waited for: {error}", self.name)),
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

/// The lock manager of the rack. It ends, in order, when the demonstration closes its region.
#[derive(Debug)]
pub(super) struct LockManager {
    process: OwnProcess,
}

impl LockManager {
    /// Starts it on node 0 and waits until it serves.
    pub(super) fn start(region: &OwnRegion, interrupt: &Interrupt) -> Result<Self> {
        let arguments = ["lock-manager", "--with-parent", "--node", "0", "--region"];
        let mut arguments = arguments.map(str::to_owned).to_vec();
        arguments.push(region.path().display().to_string());
        let mut process = OwnProcess::start("lock manager", &arguments, false)?;
        let clock = SystemClock::start();
        loop {
            interrupt.check()?;
            if let Some(ended) = process.ended() {
                bail!("{ended} before it served");
            }
            let seen = ManagerSeen::look(&region.layout, region.region.fabric());
            if seen.is_some_and(|seen| seen.serving) {
                return Ok(Self { process });
            }
            clock.sleep_ms(5);
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.child.id()
    }
}

impl Drop for LockManager {
    fn drop(&mut self) {
        stop(&self.process.child);
    }
}

/// Asks a process to stop in order.
fn stop(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// What a worker is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Prefill,
    Decode,
    Alone,
}

/// A worker process, spoken to by tasks and events.
#[derive(Debug)]
pub(super) struct Worker {
    stdin: ChildStdin,
    events: Receiver<String>,
    process: OwnProcess,
    interrupt: Interrupt,
}

impl Worker {
    /// Starts a worker. It loads its model meanwhile: see [`Self::wait_ready`].
    pub(super) fn start(
        role: Role,
        at: Option<(&OwnRegion, u16)>,
        model: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let mut arguments = vec!["demo-worker".to_owned(), "--model".to_owned()];
        arguments.push(model.display().to_string());
        let mut name = match role {
            Role::Prefill => "prefill worker",
            Role::Decode => "decode worker",
            Role::Alone => "worker without a pool",
        }
        .to_owned();
        if let Some((region, node)) = at {
            name.push_str(&format!(" on node {node}"));
            arguments.extend(["--node".to_owned(), node.to_string(), "--region".to_owned()]);
            arguments.push(region.path().display().to_string());
        }
        let mut process = OwnProcess::start(&name, &arguments, true)?;
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
        Ok(Self { stdin, events, process, interrupt: interrupt.clone() })
    }

    pub(super) fn wait_ready(&mut self) -> Result<()> {
        match self.next()? {
            Event::Ready => Ok(()),
            other => bail!("the {} said {other:?} instead of being ready", self.process.name),
        }
    }

    /// Gives it a task. One at a time.
    pub(super) fn give(&mut self, task: &Task) -> Result<()> {
        let line = serde_json::to_string(task)?;
        writeln!(self.stdin, "{line}")
            .with_context(|| format!("the {} does not listen any more", self.process.name))
    }

    /// Its next event. An end of the process and a failed task are errors.
    pub(super) fn next(&mut self) -> Result<Event> {
        loop {
            self.interrupt.check()?;
            match self.events.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    let event = serde_json::from_str(&line)
                        .with_context(|| format!("the {} said {line:?}", self.process.name))?;
                    if let Event::Failed { reason } = event {
                        bail!("the {} failed: {reason}", self.process.name);
                    }
                    return Ok(event);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.child.wait()?;
                    bail!("the {} ended ({status})", self.process.name);
                }
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.child.id()
    }
}

/// A name for the region that no other demonstration has.
pub(super) fn region_path() -> PathBuf {
    PathBuf::from(format!("/dev/shm/rackline-demo-{}", std::process::id()))
}
