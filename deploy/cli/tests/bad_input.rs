//! Bad input: one clear error that says what is wrong and what to do, and nothing is changed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use cxl_shm::clock::SystemClock;
use rackline::{BlockHash, Model, NewBlock, Pool, PublishOutcome, Refusal, SessionOptions};
use tempfile::TempDir;

/// Sizes that fit a region of 4 MiB.
const SMALL: [&str; 6] = ["--nodes", "2", "--chunk", "256KiB", "--block", "16KiB"];

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A formatted region of 4 MiB for two nodes.
    fn region(&self) -> PathBuf {
        let path = self.path("pool");
        ok(&format(&path, &["--create", "4MiB"]));
        path
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.0.path()).unwrap().count()
    }
}

fn rackline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.stdin(Stdio::null());
    command
}

/// Formats with [`SMALL`] sizes, where `arguments` do not say otherwise.
fn format(path: &Path, arguments: &[&str]) -> Output {
    let small = SMALL.chunks(2).filter(|pair| !arguments.contains(&pair[0])).flatten();
    let mut command = rackline();
    command.arg("format").arg("--region").arg(path).args(small).args(arguments);
    command.output().unwrap()
}

fn ok(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The error of a command that fails: one line.
fn error(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.lines().count(), 1, "one clear error: {text}");
    text
}

/// A lock manager that is stopped when dropped.
struct LockManager(Child);

impl LockManager {
    fn start(path: &Path) -> Self {
        let mut command = rackline();
        command.arg("lock-manager").arg("--region").arg(path).args(["--node", "0"]);
        let manager = Self(command.stderr(Stdio::null()).spawn().unwrap());
        for _ in 0..500 {
            let status =
                rackline().args(["status", "--json", "--region"]).arg(path).output().unwrap();
            if String::from_utf8_lossy(&status.stdout).contains("\"serving\":true") {
                return manager;
            }
            SystemClock::start().sleep_ms(10);
        }
        panic!("the lock manager does not serve");
    }
}

impl Drop for LockManager {
    fn drop(&mut self) {
        // In order, so that it leaves nothing in /dev/shm.
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn too_small_a_region_is_not_made() {
    let folder = Folder::new();
    let error = error(&format(&folder.path("pool"), &["--create", "256KiB"]));
    assert!(error.contains("too small") && error.contains("larger region"), "{error}");
    assert_eq!(folder.files(), 0, "nothing is left behind");
}

#[test]
fn a_new_file_has_its_memory_unless_it_is_to_be_sparse() {
    use std::os::unix::fs::MetadataExt as _;

    let folder = Folder::new();
    let backed_bytes = |name: &str| folder.path(name).metadata().unwrap().blocks() * 512;
    ok(&format(&folder.path("whole"), &["--create", "32MiB"]));
    assert!(backed_bytes("whole") >= 32 << 20);
    ok(&format(&folder.path("sparse"), &["--create", "32MiB", "--sparse"]));
    assert!(backed_bytes("sparse") < 16 << 20);
    let refused = format(&folder.path("other"), &["--sparse"]);
    assert!(!refused.status.success());
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.contains("--create"), "{error}");
}

#[test]
fn impossible_sizes_are_refused_before_there_is_a_file() {
    let folder = Folder::new();
    for (arguments, word) in [
        (["--create", "64MiB", "--nodes", "99"], "nodes"),
        (["--create", "64MiB", "--locks", "1"], "locks"),
        (["--create", "64MiB", "--chunk", "3MiB"], "power of two"),
        // Found with a gigabyte: no node can store such a block.
        (["--create", "1GiB", "--block", "65MiB"], "at most the 256.0 KiB of a chunk"),
        (["--create", "1GiB", "--block", "0"], "at least one byte"),
        (["--create", "1GiB", "--block", "16000000TiB"], "larger --chunk"),
    ] {
        let error = error(&format(&folder.path("pool"), &arguments));
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(folder.files(), 0);
}

#[test]
fn a_region_is_not_formatted_again_by_accident() {
    let folder = Folder::new();
    let path = folder.region();
    let before = std::fs::read(&path).unwrap();
    let message = error(&format(&path, &[]));
    assert!(message.contains("holds region") && message.contains("--force"), "{message}");
    assert!(std::fs::read(&path).unwrap() == before, "nothing is changed");
    ok(&format(&path, &["--force"]));
    assert!(std::fs::read(&path).unwrap() != before);
}

#[test]
fn an_error_says_each_thing_once() {
    let folder = Folder::new();
    let path = folder.path("zeros");
    std::fs::write(&path, vec![0; 4 << 20]).unwrap();
    for command in
        [vec!["status"], vec!["qualify", "--node", "0"], vec!["lock-manager", "--node", "0"]]
    {
        let text = error(&rackline().args(&command).arg("--region").arg(&path).output().unwrap());
        assert_eq!(text.matches("is not a Rackline region").count(), 1, "{text}");
    }
}

#[test]
fn a_fence_that_cannot_work_is_refused_when_the_lock_manager_starts() {
    let folder = Folder::new();
    let path = folder.region();
    let not_executable = folder.path("fence");
    std::fs::write(&not_executable, "#!/bin/sh\n").unwrap();
    let not_executable = not_executable.to_str().unwrap();
    for (arguments, words) in [
        (vec!["--fence", "command"], ["--fence-command", "required"]),
        (
            vec!["--fence-command", "/bin/true"],
            ["add --fence command", "the program would never run"],
        ),
        (
            vec!["--fence", "none", "--fence-command", "/bin/true"],
            ["add --fence command", "the program would never run"],
        ),
        (
            vec!["--fence", "command", "--fence-command", "/nowhere/fence"],
            ["/nowhere/fence cannot be run", "No such file"],
        ),
        (
            vec!["--fence", "command", "--fence-command", "no-such-fence"],
            ["no-such-fence cannot be run", "PATH"],
        ),
        (
            vec!["--fence", "command", "--fence-command", not_executable],
            ["is not executable", "chmod +x"],
        ),
        (vec!["--declare-ms", "1499"], ["1499", "1500.."]),
    ] {
        let mut command = rackline();
        command.arg("lock-manager").arg("--region").arg(&path).args(["--node", "0"]);
        let output = command.args(&arguments).stdout(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{arguments:?}: {text}");
        }
    }
}

#[test]
fn other_data_is_not_overwritten_by_accident() {
    let folder = Folder::new();
    let path = folder.path("letter");
    std::fs::write(&path, vec![b'x'; 4 << 20]).unwrap();
    let message = error(&format(&path, &[]));
    assert!(message.contains("not blank") && message.contains("--force"), "{message}");
    assert!(std::fs::read(&path).unwrap() == vec![b'x'; 4 << 20]);
    let message = error(&rackline().args(["status", "--region"]).arg(&path).output().unwrap());
    assert!(message.contains("not a Rackline region"), "{message}");
}

#[test]
fn a_file_is_no_device_and_a_missing_path_is_said() {
    let folder = Folder::new();
    let path = folder.region();
    let message = error(&format(&path, &["--kind", "devdax", "--force"]));
    assert!(message.contains("devdax") && message.contains("regular file"), "{message}");
    let message = error(&format(Path::new("/dev/null"), &["--kind", "devdax"]));
    assert!(message.contains("/dev/null"), "{message}");
    let missing = folder.path("nowhere");
    let message = error(&rackline().args(["status", "--region"]).arg(&missing).output().unwrap());
    assert!(message.contains("does not exist"), "{message}");
}

#[test]
fn a_region_of_another_size_is_refused() {
    let folder = Folder::new();
    let path = folder.region();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8 << 20).unwrap();
    let message = error(&rackline().args(["status", "--region"]).arg(&path).output().unwrap());
    assert!(message.contains("4194304") && message.contains("8388608"), "{message}");
}

#[test]
fn an_unknown_node_is_refused() {
    let folder = Folder::new();
    let path = folder.region();
    let mut command = rackline();
    command.arg("lock-manager").arg("--region").arg(&path).args(["--node", "7"]);
    let message = error(&command.output().unwrap());
    assert!(message.contains("node 7 does not exist") && message.contains("0 to 1"), "{message}");
}

#[test]
fn a_region_in_use_is_not_formatted_and_has_one_lock_manager_a_host() {
    let folder = Folder::new();
    let path = folder.region();
    let manager = LockManager::start(&path);
    let message = error(&format(&path, &["--force"]));
    assert!(message.contains("in use"), "{message}");
    let mut second = rackline();
    second.arg("lock-manager").arg("--region").arg(&path).args(["--node", "0"]);
    let message = error(&second.output().unwrap());
    assert!(message.contains("another lock manager"), "{message}");
    drop(manager);
    ok(&format(&path, &["--force"]));
}

const BLOCK_BYTES: usize = 16 << 10;

/// Publishes 256 blocks, four times what there is room for, one by one, or until one is refused.
fn publish_until_refused(pool: &Pool) -> (usize, Option<Refusal>) {
    let model = Model {
        name: "none",
        revision: "1",
        dtype: "u8",
        layout_version: 1,
        block_tokens: 1,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
    };
    let options = SessionOptions::new(model, BLOCK_BYTES as u64);
    let session = pool.session(options.with_chunk_timeout(Duration::from_secs(5))).unwrap();
    let payload = vec![7; BLOCK_BYTES];
    for number in 0u8..=255 {
        let hash = BlockHash::new([number; 32]);
        let block = NewBlock { hash, depth: 0, bytes: [&payload[..]] };
        let report = session.publish(&[block]).unwrap();
        if let PublishOutcome::Refused(refusal) = &report.outcomes()[0] {
            return (usize::from(number), Some(*refusal));
        }
    }
    (256, None)
}

#[test]
fn a_full_pool_makes_room_for_what_is_new() {
    let folder = Folder::new();
    let path = folder.region();
    let _manager = LockManager::start(&path);
    let pool = Pool::attach(&path, 1).unwrap();
    assert_eq!(publish_until_refused(&pool), (256, None));
    let metrics = pool.metrics();
    assert_eq!((metrics.published_blocks, metrics.refused), (256, 0));
    assert!(metrics.evicted_blocks > 0, "{metrics:?}");
}

#[test]
fn without_a_lock_manager_only_new_chunks_are_missing() {
    let folder = Folder::new();
    let path = folder.region();
    let pool = Pool::attach(&path, 1).unwrap();
    let (published, refusal) = publish_until_refused(&pool);
    assert_eq!(published, 0);
    let message = refusal.unwrap().to_string();
    assert!(message.contains("rackline lock-manager"), "{message}");

    let manager = LockManager::start(&path);
    assert_eq!(publish_until_refused(&pool), (256, None));
    drop(manager);
}
