//! The protocol with workers: a task is answered by events, or by the reason why it failed.

use std::sync::mpsc::channel;

use anyhow::{Context as _, Result};
use cxl_shm::clock::SystemClock;
use rackline_workers::{tasks, tell};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a worker with a queue goes on when its parent has ended, or has told it to end.
const END_MS: u64 = 1000;

/// In a worker: takes tasks until standard input ends. A failed task is reported, and the next one
/// is taken.
pub(crate) fn carry_out_tasks<T: DeserializeOwned>(
    carry_out: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    carry_out_all(tasks(), carry_out)
}

/// In a worker whose tasks take long: a thread takes them off the standard input, so that the parent
/// never waits to give one. When the standard input has ended, the process ends a second later,
/// whatever it does.
pub(crate) fn carry_out_queued_tasks<T: DeserializeOwned + Send + 'static>(
    carry_out: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let (queue, queued) = channel();
    let take = move || {
        for task in tasks() {
            if queue.send(task).is_err() {
                break;
            }
        }
        drop(queue);
        SystemClock::start().sleep_ms(END_MS);
        // Nobody reads what it says any more.
        std::process::exit(0);
    };
    let thread = std::thread::Builder::new().name("tasks".to_owned());
    thread.spawn(take).context("cannot start a thread")?;
    carry_out_all(queued, carry_out)
}

fn carry_out_all<T>(
    tasks: impl IntoIterator<Item = Result<T>>,
    mut carry_out: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    for task in tasks {
        if let Err(error) = carry_out(task?) {
            tell(&Err::<(), _>(format!("{error:#}")))?;
        }
    }
    Ok(())
}

/// In a worker: reports an event.
pub(crate) fn say(event: &impl Serialize) -> Result<()> {
    tell(&Ok::<_, String>(event))
}
