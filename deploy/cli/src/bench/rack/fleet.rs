//! The worker processes of a rack, and what they say.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rackline_serving::{Device, Rack};
use rackline_workers::Process;

use super::protocol::{Event, Task};
use super::worker::Role;
use crate::rack::{Drives, Interrupt, LockManager, OwnRegion, this_program};

/// A worker has so long to end by itself.
const GRACE_MS: u64 = 3000;
/// How often a wait looks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(50);

/// What a worker needs to know.
#[derive(Clone, Debug)]
pub(super) struct Order {
    /// The text of a profile.
    pub(super) profile: String,
    pub(super) block_bytes: u64,
    pub(super) block_tokens: u64,
    pub(super) speed: f64,
    /// The link as the machine's clock sees it.
    pub(super) device: Option<Device>,
    pub(super) restore_wait_ms: u64,
}

/// A worker, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Who {
    pub(super) role: Role,
    pub(super) worker: u16,
}

/// What a worker did.
#[derive(Clone, Debug)]
pub(super) enum News {
    Said(Event),
    /// It was killed, and everything that it has said before was heard.
    Died,
}

/// What was heard of a worker: a line, or its end.
type Heard = (Who, Option<std::io::Result<String>>);

/// The worker processes. They end when this is dropped.
pub(super) struct Fleet<'r> {
    prefill: Vec<Process>,
    decode: Vec<Process>,
    heard: Receiver<Heard>,
    interrupt: Interrupt,
    /// Files of the hosts' links, until all workers have opened them.
    links: Vec<PathBuf>,
    rack: Rack,
    killed: HashSet<Who>,
    /// These end after the workers, in this order.
    drives: Option<Drives<'r>>,
    manager: LockManager,
}

impl<'r> Fleet<'r> {
    /// Starts the workers, and waits until all have attached. Then the files of the region and of the
    /// links go: nothing is left of them, whichever process is killed.
    pub(super) fn start(
        rack: &Rack,
        region: &OwnRegion,
        order: &Order,
        (manager, drives): (LockManager, Option<Drives<'r>>),
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (sender, heard) = channel();
        let links = (0..rack.nodes()).map(|node| link_path(region.path(), node)).collect();
        let interrupt = interrupt.clone();
        let (prefill, decode) = (Vec::new(), Vec::new());
        let (rack, killed) = (*rack, HashSet::new());
        let mut fleet =
            Self { prefill, decode, heard, interrupt, links, rack, killed, manager, drives };
        for link in fleet.links.iter().filter(|_| order.device.is_some()) {
            std::fs::write(link, [0; 8])
                .with_context(|| format!("cannot make {}", link.display()))?;
        }
        let prefill = (0..rack.prefill()).map(|it| (Role::Prefill, it, rack.prefill_node(it)));
        let decode = (0..rack.decode()).map(|it| (Role::Decode, it, rack.decode_node(it)));
        for (role, worker, node) in prefill.chain(decode) {
            let arguments = arguments(role, node, region.path(), order)?;
            let name = format!("{} worker {worker} on node {node}", role.name());
            let (who, sender) = (Who { role, worker }, sender.clone());
            let mut command = this_program(&arguments, &[])?;
            command.stdin(Stdio::piped());
            let tell = move |line| sender.send((who, line)).is_ok();
            let process = Process::start_with_pipes(&mut command, name, GRACE_MS, tell)?;
            fleet.of(role).push(process);
        }
        for _ in 0..rack.prefill() + rack.decode() {
            let (who, news) = fleet.next(None)?.context("a wait without an end has ended")?;
            if !matches!(news, News::Said(Event::Ready)) {
                bail!("a {} worker said {news:?} before it was ready", who.role.name());
            }
        }
        region.unlink()?;
        fleet.unlink();
        Ok(fleet)
    }

    fn of(&mut self, role: Role) -> &mut Vec<Process> {
        match role {
            Role::Prefill => &mut self.prefill,
            Role::Decode => &mut self.decode,
        }
    }

    fn unlink(&mut self) {
        for link in self.links.drain(..) {
            // Without an imposed device there is none.
            let _ = std::fs::remove_file(link);
        }
    }

    /// Kills the workers of a node, and the agent of its drive, as `kill -9` does. What each has said
    /// before is still heard.
    pub(super) fn kill(&mut self, node: u16) -> Result<()> {
        let of = |role| move |worker| Who { role, worker };
        let prefill = self.rack.prefill_of(node).into_iter().map(of(Role::Prefill));
        let decode = self.rack.decode_of(node).into_iter().map(of(Role::Decode));
        for who in prefill.chain(decode) {
            self.of(who.role)[usize::from(who.worker)].kill();
            self.killed.insert(who);
        }
        self.drives.as_mut().map_or(Ok(()), |drives| drives.kill(node))
    }

    /// Gives a worker a task. One that was killed gets none.
    pub(super) fn give(&mut self, who: Who, task: &Task) -> Result<()> {
        if self.killed.contains(&who) {
            return Ok(());
        }
        let mut line = serde_json::to_vec(task)?;
        line.push(b'\n');
        self.of(who.role)[usize::from(who.worker)].write(&line)
    }

    /// What a worker did next; `None` when there was nothing for so long. An end of a worker that was
    /// not killed and a failed task are errors.
    pub(super) fn next(&mut self, within: Option<Duration>) -> Result<Option<(Who, News)>> {
        let mut left = within;
        loop {
            self.interrupt.check()?;
            self.manager.check()?;
            self.drives.as_mut().map_or(Ok(()), Drives::check)?;
            let look = left.map_or(LOOK, |left| left.min(LOOK));
            match self.heard.recv_timeout(look) {
                Ok((who, Some(line))) => {
                    let event = self.event(who, line);
                    match event {
                        // A death may leave a line half said.
                        Err(_) if self.killed.contains(&who) => {}
                        event => return Ok(Some((who, News::Said(event?)))),
                    }
                }
                Ok((who, None)) if self.killed.contains(&who) => {
                    return Ok(Some((who, News::Died)));
                }
                Ok((who, None)) => {
                    let process = &mut self.of(who.role)[usize::from(who.worker)];
                    let status = process.wait()?;
                    bail!("the {} ended ({status}): its reason is above", process.name());
                }
                Err(RecvTimeoutError::Timeout) => match &mut left {
                    None => {}
                    Some(left) => {
                        *left = left.saturating_sub(look);
                        if left.is_zero() {
                            return Ok(None);
                        }
                    }
                },
                Err(RecvTimeoutError::Disconnected) => bail!("all workers have ended"),
            }
        }
    }

    fn event(&mut self, who: Who, line: std::io::Result<String>) -> Result<Event> {
        let name = self.of(who.role)[usize::from(who.worker)].name().to_owned();
        let line = line.with_context(|| format!("cannot hear the {name}"))?;
        let event: Result<Event, String> =
            serde_json::from_str(&line).with_context(|| format!("the {name} said {line:?}"))?;
        event.map_err(|reason| anyhow!("the {name} failed: {reason}"))
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        self.unlink();
        // They end within a second, all at the same time.
        for process in self.prefill.iter_mut().chain(&mut self.decode) {
            process.close_input();
        }
    }
}

fn link_path(region: &Path, node: u16) -> PathBuf {
    region.with_extension(format!("link-{node}"))
}

fn arguments(role: Role, node: u16, region: &Path, order: &Order) -> Result<Vec<String>> {
    let text = |path: &Path| -> Result<String> {
        Ok(path.to_str().context("a path is not UTF-8: rename it")?.to_owned())
    };
    let mut arguments = vec!["bench-worker".to_owned()];
    let mut add = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
    add("role", role.name().to_owned());
    add("region", text(region)?);
    add("node", node.to_string());
    add("profile", order.profile.clone());
    add("block-bytes", format!("{}B", order.block_bytes));
    add("block-tokens", order.block_tokens.to_string());
    add("speed", order.speed.to_string());
    add("restore-wait-ms", order.restore_wait_ms.to_string());
    if let Some(device) = order.device {
        add("link", text(&link_path(region, node))?);
        add("bytes-per-s", device.bytes_per_s().to_string());
        add("latency-ns", device.latency_ns().to_string());
    }
    Ok(arguments)
}
