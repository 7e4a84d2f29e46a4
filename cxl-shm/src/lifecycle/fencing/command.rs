//! The fence `command`: a configured program that cuts the host off.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::lifecycle::fencing::runs::Runs;
use crate::lifecycle::fencing::{Fence, FenceOrder, FenceState};

/// Argument in place of what is not known.
const UNKNOWN: &str = "-";
/// After a failure, how long until the program is run again.
const AGAIN_MS: u64 = 10_000;

/// Runs a program with the node number, and the machine-id(5) and the boot id that the region keeps
/// for the node: in hexadecimal without dashes, a dash for what is not known. It must return only
/// when no access of that host can arrive any more (power off, port of the fabric closed), with
/// exit status 0. Any other status, a signal, or a time-out means that the host is not fenced.
///
/// The program is mostly root's, and the host may be hostile: it is told no text that the host
/// wrote, its name above all. The two ids are the host's own words, too, but numbers; what to cut
/// off is chosen by the node number.
///
/// When nothing at all says which host it was, the program is not run: a host may have died on its
/// way into the slot, and the program could cut off one that lives.
#[derive(Debug)]
pub struct CommandFence {
    program: PathBuf,
    timeout_ms: u64,
    runs: Runs<Running>,
}

/// The program while it runs. Killed when dropped.
#[derive(Debug)]
struct Running(Child);

impl CommandFence {
    /// A fence that runs `program`, for at most `timeout_ms` each time.
    #[must_use]
    pub fn new(program: PathBuf, timeout_ms: u64) -> Self {
        Self { program, timeout_ms, runs: Runs::new(AGAIN_MS) }
    }
}

fn start(program: &Path, order: &FenceOrder) -> Result<Running, String> {
    if order.host.is_none() && order.machine.is_none() {
        let unknown = "nothing says which host it was, so it cannot be told to the fence's program";
        return Err(unknown.to_owned());
    }
    let ids = order.machine.map(|machine| [machine.machine_id, machine.boot_id].map(hex_of));
    let [machine_id, boot_id] = ids.unwrap_or_else(|| [UNKNOWN.to_owned(), UNKNOWN.to_owned()]);
    let mut command = Command::new(program);
    command.arg(order.victim.to_string()).args([machine_id, boot_id]).stdin(Stdio::null());
    let program = program.display();
    let child = command.spawn().map_err(|error| format!("cannot run {program}: {error}"))?;
    tracing::warn!(
        node = %order.victim, incarnation = %order.incarnation, %program,
        "runs the fencing program: this node was declared dead, because its heartbeat stopped"
    );
    Ok(Running(child))
}

/// An id as machine-id(5) writes it; a dash for one of zeros, which is none.
fn hex_of([high, low]: [u64; 2]) -> String {
    if [high, low] == [0; 2] { UNKNOWN.to_owned() } else { format!("{high:016x}{low:016x}") }
}

impl Fence for CommandFence {
    fn poll(&mut self, order: &FenceOrder, now_ms: u64) -> FenceState {
        let Self { program, timeout_ms, runs } = self;
        let (start, shown) = (|| start(program, order), program.display());
        runs.poll(order, now_ms, start, |Running(child), age_ms| match child.try_wait() {
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(Some(status)) => Some(Err(format!("{shown} ended with {status}"))),
            Ok(None) if age_ms >= *timeout_ms => {
                Some(Err(format!("{shown} did not end within {timeout_ms} ms")))
            }
            Ok(None) => None,
            Err(error) => Some(Err(format!("cannot wait for {shown}: {error}"))),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A program that cannot be killed has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::layout::{Case, Machine};
    use crate::units::{Incarnation, NodeId};
    use std::os::unix::fs::PermissionsExt;

    fn order(host: Option<&str>, machine: Option<Machine>) -> FenceOrder {
        FenceOrder {
            victim: NodeId(3),
            case: Case { incarnation: Incarnation(1), appointment: 1 },
            incarnation: Incarnation(1),
            host: host.map(str::to_owned),
            machine,
        }
    }

    fn outcome(script: &str, order: &FenceOrder, timeout_ms: u64) -> FenceState {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("fence");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (mut fence, clock) = (CommandFence::new(program, timeout_ms), SystemClock::start());
        loop {
            match fence.poll(order, clock.now_ms()) {
                FenceState::Running => clock.sleep_ms(1),
                end => return end,
            }
        }
    }

    #[test]
    fn only_success_is_a_fence() {
        let named = order(Some("rack-4"), None);
        for (script, timeout_ms) in [("exit 1", 60_000), ("kill -9 $$", 60_000), ("sleep 60", 50)] {
            let outcome = outcome(script, &named, timeout_ms);
            assert!(matches!(outcome, FenceState::NotFenced(_)), "{script}");
        }
        let none = CommandFence::new("/nowhere/fence".into(), 1).poll(&named, 0);
        assert!(matches!(none, FenceState::NotFenced(_)));
    }

    #[test]
    fn the_program_is_told_numbers_and_nothing_that_the_victim_wrote_as_text() {
        let machine = Machine { boot_id: [0xb, 1], machine_id: [0xa, 2] };
        let (machine_id, boot_id) =
            ("000000000000000a0000000000000002", "000000000000000b0000000000000001");
        for (order, told) in [
            (order(Some("rack-4"), None), "3 - -".to_owned()),
            (order(Some("$(reboot) rack-4"), Some(machine)), format!("3 {machine_id} {boot_id}")),
            (order(None, Some(machine)), format!("3 {machine_id} {boot_id}")),
            (
                order(None, Some(Machine { machine_id: [0; 2], ..machine })),
                format!("3 - {boot_id}"),
            ),
        ] {
            let script = format!("test \"$*\" = \"{told}\"");
            assert_eq!(outcome(&script, &order, 60_000), FenceState::Fenced, "{told}");
        }
        let unknown = outcome("exit 0", &order(None, None), 60_000);
        assert!(matches!(unknown, FenceState::NotFenced(_)), "a host that lives may be cut off");
    }
}
