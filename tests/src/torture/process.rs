//! A child process as its parent has it.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::Sender;

use anyhow::Result;
use cxl_shm::crash::{ARM_VARIABLE, Armed};
use rackline_workers::Process;

use super::event::{Event, hear};

/// What comes from a child.
#[derive(Debug)]
pub(super) enum Heard {
    /// It said something.
    Event(Event),
    /// It will never say anything more: everything it said was heard.
    End,
}

/// Starts `program` with `arguments`. What it says goes to `heard` under the name `player`. It is
/// killed when the process is dropped.
pub(super) fn start(
    program: &Path,
    arguments: &[String],
    armed: Option<Armed>,
    player: usize,
    heard: &Sender<(usize, Heard)>,
) -> Result<Process> {
    let mut command = Command::new(program);
    command.args(arguments).env_remove(ARM_VARIABLE);
    if let Some(Armed { point, nth }) = armed {
        command.env(ARM_VARIABLE, format!("{}:{nth}", point.name()));
    }
    let heard = heard.clone();
    let tell = move |line: Option<std::io::Result<String>>| {
        let said = line.map_or(Heard::End, |line| {
            let event = line.map_err(anyhow::Error::from).and_then(|line| hear(&line));
            Heard::Event(event.unwrap_or_else(|error| Event::Fault(format!("{error:#}"))))
        });
        // Nobody listens when the run is over.
        heard.send((player, said)).is_ok()
    };
    Process::start_with_pipes(&mut command, format!("child of player {player}"), 0, tell)
}
