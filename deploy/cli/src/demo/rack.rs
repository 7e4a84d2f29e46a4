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

/// Starts a worker. It loads its model meanwhile: see [`wait_ready`].
pub(super) fn start_worker(
    role: Role,
    at: Option<(&OwnRegion, u16)>,
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
    let at = at.map(|(region, node)| (region.path(), node));
    let environment = demo::threads::environment(threads);
    Worker::start(name, &["demo-worker", "--model", model], at, &environment, interrupt)
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
