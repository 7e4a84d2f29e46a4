//! Processes of two pid namespaces that share the folder of host tiers: two containers of one
//! machine.
//!
//! Needs `unshare`, and leave to make a pid namespace; says so when it has neither.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use cxl_shm::host::{HOST_TIER_FOLDER, HostTierFile};
use cxl_shm::layout::{Geometry, LockProtocol, Superblock, format_superblock};
use cxl_shm::lifecycle::Attachment;
use cxl_shm::region::Region;
use rustix::process::{Pid, Signal, kill_process};

/// Where a process of this test finds the region that it is to attach to.
const REGION: &str = "RACKLINE_TEST_REGION";
const TEST: &str = "a_frozen_process_of_another_pid_namespace_is_not_taken_for_dead";
const REGION_BYTES: u64 = 8 << 20;

/// Attaches to `region`, says so, and continues until its input ends.
fn attach_and_wait(region: &Path) {
    let attachment = Attachment::attach(region, 0).unwrap_or_else(|error| panic!("{error}"));
    println!("attached");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    attachment.member().check_member().unwrap();
    drop(attachment);
    println!("left in order");
}

/// This test again, as the process that attaches.
fn again(program: &mut Command, region: &Path) -> Command {
    let mut command = std::mem::replace(program, Command::new("true"));
    command.args(["--exact", TEST, "--nocapture"]).env(REGION, region);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn here(region: &Path) -> Command {
    again(&mut Command::new(std::env::current_exe().unwrap()), region)
}

fn elsewhere(region: &Path) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    again(unshare.arg(std::env::current_exe().unwrap()), region)
}

/// A process that has attached.
struct Attached {
    child: Child,
    // Open as long as it is to stay.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Attached {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut attached = Self { child, stdin, stdout: BufReader::new(stdout) };
        attached.wait_for("attached");
        attached
    }

    fn wait_for(&mut self, said: &str) {
        let mut line = String::new();
        while !line.contains(said) {
            line.clear();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "it ended before: {said}");
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn leave(mut self) {
        drop(self.stdin.take());
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.stdout, &mut rest).unwrap();
        assert!(self.child.wait().unwrap().success() && rest.contains("left in order"), "{rest}");
    }
}

impl Drop for Attached {
    /// Also when it is stopped.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A region in a file, and the host tier that its processes make.
struct Bed {
    _folder: tempfile::TempDir,
    region: PathBuf,
    tier: PathBuf,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(HOST_TIER_FOLDER).unwrap();
        let path = folder.path().join("region");
        let region = Region::create_file(&path, REGION_BYTES).unwrap();
        let geometry = Geometry {
            region_bytes: region.bytes(),
            nodes: 2,
            locks: 16,
            chunk_bytes: 1 << 20,
            area_lines: 1,
            host_words: 0,
        };
        let uuid = [u64::from(std::process::id()), 0x5eed];
        let superblock = Superblock {
            lock_protocol: LockProtocol::Bakery,
            ..Superblock::new(uuid, geometry, [0; 6])
        };
        let layout = format_superblock(region.fabric(), &superblock, |_, _| ()).unwrap();
        let node = layout.node(0).unwrap();
        let tier = HostTierFile::path_in(Path::new(HOST_TIER_FOLDER), &superblock, node);
        Self { _folder: folder, region: path, tier }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.tier);
    }
}

#[test]
fn a_frozen_process_of_another_pid_namespace_is_not_taken_for_dead() {
    if let Some(region) = std::env::var_os(REGION) {
        return attach_and_wait(Path::new(&region));
    }
    let may = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output();
    if !may.as_ref().is_ok_and(|output| output.status.success()) {
        // Not by a macro, whose output a test that passes keeps to itself.
        let skipped = format!("SKIPPED {TEST}: no pid namespace can be made here: {may:?}\n");
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
        return;
    }
    let bed = Bed::new();
    let refused = |mut command: Command| {
        let Output { status, stdout, stderr } =
            command.stderr(Stdio::piped()).stdin(Stdio::null()).output().unwrap();
        let said =
            [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(!status.success(), "it was let in beside a process that lives: {said}");
        assert!(said.contains("share one pid namespace"), "{said}");
    };
    // In one namespace a stopped process is seen, and others join beside it.
    let first = Attached::start(here(&bed.region));
    first.signal(Signal::STOP);
    Attached::start(here(&bed.region)).leave();
    // From another one it cannot be seen, and stands as still as a dead one.
    refused(elsewhere(&bed.region));
    first.signal(Signal::CONT);
    refused(elsewhere(&bed.region));
    first.leave();
    // The other way round: a process of a container is not seen from outside, and is there.
    let inside = Attached::start(elsewhere(&bed.region));
    refused(here(&bed.region));
    inside.leave();
    // One that was killed is gone for all.
    drop(Attached::start(here(&bed.region)));
    Attached::start(elsewhere(&bed.region)).leave();
}
