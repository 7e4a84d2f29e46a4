//! The worker processes of the demonstration.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::protocol::{Event, Task};
use crate::rack::{self, Interrupt, OwnRegion};

/// What a worker is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Prefill,
    Decode,
    Alone,
}

/// A worker, spoken to by tasks and events.
pub(super) type Worker = rack::Worker<Task, Event>;

/// How long a lookup waits for blocks on drives.
const RESTORE_WAIT_MS: &str = "10000";

/// Where a worker finds blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'r> {
    pub(super) region: &'r OwnRegion,
    pub(super) node: u16,
    /// Whether there are drives behind the pool.
    pub(super) drives: bool,
}

/// Starts a worker. It loads its model meanwhile: see [`wait_ready`].
pub(super) fn start_worker(
    role: Role,
    at: Option<At<'_>>,
    model: &Path,
    interrupt: &Interrupt,
) -> Result<Worker> {
    let name = match role {
        Role::Prefill => "prefill worker",
        Role::Decode => "decode worker",
        Role::Alone => "worker without a pool",
    };
    let model = model.to_str().context("the path of the model is not UTF-8: rename it")?;
    let threads = std::thread::available_parallelism().context("cannot count the CPUs")?;
    let mut arguments = vec!["demo-worker", "--model", model];
    if at.is_some_and(|at| at.drives) {
        arguments.extend(["--restore-wait-ms", RESTORE_WAIT_MS]);
    }
    let at = at.map(|at| (at.region.path(), at.node));
    let environment = demo::threads::environment(threads);
    Worker::start(name, &arguments, at, &environment, interrupt)
}

pub(super) fn wait_ready(worker: &mut Worker) -> Result<()> {
    match worker.next()? {
        Event::Ready => Ok(()),
        other => bail!("the {} said {other:?} instead of being ready", worker.name()),
    }
}

/// A name for the region that no other demonstration has.
pub(super) fn region_path() -> PathBuf {
    PathBuf::from(format!("/dev/shm/rackline-demo-{}", std::process::id()))
}
