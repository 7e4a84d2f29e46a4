//! The fence `command`: a configured program that cuts the host off.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{Fence, FenceOrder, FenceState};
use crate::layout::Case;
use crate::units::NodeId;

/// After a failure, how long until the program is run again.
const AGAIN_MS: u64 = 10_000;

/// Runs a program with the node number and the host name as arguments. It must return only when
/// no access of that host can arrive any more (power off, port of the fabric closed), with exit
/// status 0. Any other status, a signal, or a time-out means that the host is not fenced.
#[derive(Debug)]
pub struct CommandFence {
    program: PathBuf,
    timeout_ms: u64,
    runs: Vec<Run>,
}

#[derive(Debug)]
struct Run {
    victim: NodeId,
    case: Case,
    since_ms: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Running(Child),
    Fenced,
    Failed(String),
}

impl CommandFence {
    /// A fence that runs `program`, for at most `timeout_ms` each time.
    #[must_use]
    pub fn new(program: PathBuf, timeout_ms: u64) -> Self {
        Self { program, timeout_ms, runs: Vec::new() }
    }

    fn start(&self, order: &FenceOrder) -> Stage {
        let mut command = Command::new(&self.program);
        command.arg(order.victim.to_string()).arg(&order.host).stdin(Stdio::null());
        match command.spawn() {
            Ok(child) => Stage::Running(child),
            Err(error) => Stage::Failed(format!("cannot run {}: {error}", self.program.display())),
        }
    }
}

impl Fence for CommandFence {
    fn poll(&mut self, order: &FenceOrder, now_ms: u64) -> FenceState {
        let (victim, case) = (order.victim, order.case);
        let at = self.runs.iter().position(|run| (run.victim, run.case) == (victim, case));
        let index = at.unwrap_or_else(|| {
            let stage = self.start(order);
            self.runs.retain(|run| run.victim != victim);
            self.runs.push(Run { victim, case, since_ms: now_ms, stage });
            self.runs.len() - 1
        });
        let again = now_ms.saturating_sub(self.runs[index].since_ms) >= AGAIN_MS;
        if again && matches!(self.runs[index].stage, Stage::Failed(_)) {
            let stage = self.start(order);
            self.runs[index].stage = stage;
            self.runs[index].since_ms = now_ms;
        }
        let (program, timeout_ms) = (self.program.display().to_string(), self.timeout_ms);
        self.runs[index].look(&program, timeout_ms, now_ms)
    }
}

impl Run {
    fn look(&mut self, program: &str, timeout_ms: u64, now_ms: u64) -> FenceState {
        if let Stage::Running(child) = &mut self.stage {
            let late = now_ms.saturating_sub(self.since_ms) >= timeout_ms;
            let next = match child.try_wait() {
                Ok(Some(status)) if status.success() => Some(Stage::Fenced),
                Ok(Some(status)) => Some(Stage::Failed(format!("{program} ended with {status}"))),
                Ok(None) if late => {
                    end(child);
                    Some(Stage::Failed(format!("{program} did not end within {timeout_ms} ms")))
                }
                Ok(None) => None,
                Err(error) => {
                    end(child);
                    Some(Stage::Failed(format!("cannot wait for {program}: {error}")))
                }
            };
            if let Some(next) = next {
                self.stage = next;
                // A failure is tried again some time after it, not after its start.
                self.since_ms = now_ms;
            }
        }
        match &self.stage {
            Stage::Running(_) => FenceState::Running,
            Stage::Fenced => FenceState::Fenced,
            Stage::Failed(reason) => FenceState::NotFenced(reason.clone()),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Stage::Running(child) = &mut self.stage {
            end(child);
        }
    }
}

/// Kills and reaps. A child that cannot be killed has ended.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::units::Incarnation;
    use std::os::unix::fs::PermissionsExt;

    fn outcome(script: &str, timeout_ms: u64) -> FenceState {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("fence");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let order = FenceOrder {
            victim: NodeId(3),
            case: Case { incarnation: Incarnation(1), appointment: 1 },
            host: "rack-4".to_owned(),
            machine: None,
        };
        let (mut fence, clock) = (CommandFence::new(program, timeout_ms), SystemClock::start());
        loop {
            match fence.poll(&order, clock.now_ms()) {
                FenceState::Running => clock.sleep_ms(1),
                end => return end,
            }
        }
    }

    #[test]
    fn only_success_is_a_fence() {
        let sound = "test \"$1\" = 3 && test \"$2\" = rack-4";
        assert_eq!(outcome(sound, 60_000), FenceState::Fenced, "it is told whom to fence");
        for (script, timeout_ms) in [("exit 1", 60_000), ("kill -9 $$", 60_000), ("sleep 60", 50)] {
            assert!(matches!(outcome(script, timeout_ms), FenceState::NotFenced(_)), "{script}");
        }
        let none = CommandFence::new("/nowhere/fence".into(), 1).start(&FenceOrder {
            victim: NodeId(0),
            case: Case { incarnation: Incarnation(1), appointment: 1 },
            host: String::new(),
            machine: None,
        });
        assert!(matches!(none, Stage::Failed(_)));
    }
}
