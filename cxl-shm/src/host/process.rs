//! Processes of one host: who they are, and whether they still live.

use std::{fmt, fs};

/// Most places in a node's registry. A process takes one for each thread that is a member: an
/// attached process two, one with a pool three.
pub const PROCESSES_MAX: u16 = 256;

/// Index of a process in its node's registry, `0..PROCESSES_MAX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessSlot(pub u16);

/// A process, told apart from every other that had or will have its number: process id and start
/// time in clock ticks, one word. Zero is nobody.
///
/// The processes of a node must see each other under these ids: they share a pid namespace.
/// Attaching from another one is refused while a process of the node lives
/// ([`AttachError`](crate::lifecycle::AttachError)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcessIdentity(u64);

impl ProcessIdentity {
    /// Made of a process id and a start time (which wraps after 497 days: it is only compared).
    /// Of the process id the low 29 bits count; Linux uses 22.
    #[must_use]
    pub fn new(pid: u32, start_ticks: u32) -> Self {
        Self((u64::from(pid) << 32 | u64::from(start_ticks)) & Self::BITS)
    }

    /// The bits of a word that an identity may use.
    pub(crate) const BITS: u64 = (1 << 61) - 1;

    /// This process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn current() -> std::io::Result<Self> {
        let pid = std::process::id();
        let start = start_ticks(pid)?;
        let start = start.ok_or_else(|| std::io::Error::other("/proc/self/stat is malformed"))?;
        Ok(Self::new(pid, start))
    }

    /// The process id.
    #[must_use]
    pub fn pid(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or(0)
    }

    pub(crate) fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }
}

/// Tells whether a process of this host still lives. The operating system knows ([`ProcLiveness`]);
/// the simulator decides.
pub trait Liveness: fmt::Debug {
    /// False only when the process can never run again.
    fn is_alive(&self, process: ProcessIdentity) -> bool;
}

/// [`Liveness`] from `/proc`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcLiveness;

impl Liveness for ProcLiveness {
    fn is_alive(&self, process: ProcessIdentity) -> bool {
        match start_ticks(process.pid()) {
            Ok(Some(start)) => ProcessIdentity::new(process.pid(), start) == process,
            Ok(None) => false,
            // Only a definite "no such process" is a death.
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }
}

/// Start time of process `pid` in clock ticks since boot, cut to 32 bits. `None` for a zombie: it
/// will never run again.
fn start_ticks(pid: u32) -> std::io::Result<Option<u32>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&stat).ok_or_else(|| std::io::Error::other(format!("/proc/{pid}/stat is malformed")))
}

/// The start time in a stat file (proc_pid_stat(5), field 22); the inner `None` for a zombie, the
/// outer for what is no stat file.
fn parse_stat(stat: &str) -> Option<Option<u32>> {
    // The command name, in parentheses, may hold spaces and parentheses of its own.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let start: u64 = fields.nth(1)?.parse().ok()?;
    // A process whose first thread has ended looks like a zombie while others run.
    if matches!(state, "Z" | "X" | "x") && threads <= 1 {
        return Some(None);
    }
    Some(u32::try_from(start & u64::from(u32::MAX)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_a_reaped_child_does_not() {
        let me = ProcessIdentity::current().unwrap();
        assert!(ProcLiveness.is_alive(me));
        assert!(!ProcLiveness.is_alive(ProcessIdentity::new(me.pid(), 1)), "same pid, other start");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let start = start_ticks(child.id()).unwrap().unwrap();
        let identity = ProcessIdentity::new(child.id(), start);
        assert!(ProcLiveness.is_alive(identity));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!ProcLiveness.is_alive(identity));
    }

    #[test]
    fn stat_files_are_read_whatever_the_name() {
        let stat = |state, threads| {
            format!(
                "7 (a) b (c) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 {threads} 18 4242 20"
            )
        };
        assert_eq!(parse_stat(&stat("S", 1)), Some(Some(4242)));
        assert_eq!(parse_stat(&stat("Z", 1)), Some(None));
        assert_eq!(parse_stat(&stat("Z", 3)), Some(Some(4242)), "other threads run");
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("7 (x) S 1 2"), None);
    }
}
