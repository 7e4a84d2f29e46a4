//! The protocol with workers: a task is answered by events, or by the reason why it failed.

use anyhow::Result;
use rackline_workers::{tasks, tell};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// In a worker: takes tasks until standard input ends. A failed task is reported, and the next one
/// is taken.
pub(crate) fn carry_out_tasks<T: DeserializeOwned>(
    mut carry_out: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    for task in tasks() {
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
