//! `rackline demo`: the tokens are equal, the first one comes sooner with the pool, and nothing is
//! left behind, however the run ends. The command under test is `$RACKLINE_COMMAND`, if that is
//! set.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod processes;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use self::processes::{children, mapped_files, wait_until};

/// One at a time: each takes all cores, and is measured.
static RUNNING: Mutex<()> = Mutex::new(());

/// A variable by which the processes of one run are known.
const MARK: &str = "RACKLINE_TEST_OF_DEMO";

/// A running demonstration.
struct Demo {
    process: Child,
    mark: String,
    files_before: BTreeSet<PathBuf>,
    folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Demo {
    fn start(arguments: &[&str]) -> Self {
        let alone = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let files_before = files();
        let mark = format!("{MARK}={}", folder.path().display());
        let command = std::env::var_os("RACKLINE_COMMAND");
        let command = command.unwrap_or_else(|| env!("CARGO_BIN_EXE_rackline").into());
        // Files, and not pipes: what is left behind would hold a pipe open, and hide itself so.
        let said = |name: &str| File::create(folder.path().join(name)).unwrap();
        let process = Command::new(command)
            .arg("demo")
            .args(arguments)
            .env(MARK, folder.path())
            .stdin(Stdio::null())
            .stdout(said("output"))
            .stderr(said("errors"))
            .spawn()
            .unwrap();
        Self { process, mark, files_before, folder, _alone: alone }
    }

    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Waits until `reached`, which has to be before the end.
    fn wait_until(&mut self, what: &str, reached: impl Fn(&Self) -> bool) {
        wait_until(what, || {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before {what}: {}", self.said("errors"));
            reached(self)
        });
    }

    fn wait_until_it_serves(&mut self) {
        self.wait_until("the second request", |demo| demo.said("output").contains("\n[2] "));
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
    }

    /// Its workers in the order it started them: prefill first, decode last.
    fn workers(&self) -> Vec<i32> {
        let is_worker = |pid: &i32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).any(|argument| argument == b"demo-worker")
        };
        children(self.process.id()).into_iter().filter(is_worker).collect()
    }

    /// Waits for its end, after which nothing may be left of it.
    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("its end", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(self.processes(), [0; 0], "they outlived it");
        // Others may have made files meanwhile, which they use.
        let used: BTreeSet<_> = all_processes().into_iter().flat_map(mapped_files).collect();
        let left: Vec<_> =
            files().into_iter().filter(|file| !self.files_before.contains(file)).collect();
        let left: Vec<_> = left.iter().filter(|file| !used.contains(*file)).collect();
        assert!(left.is_empty(), "it left {left:?}");
        status.unwrap()
    }

    /// Kills it with SIGKILL, and waits until nothing of it runs. The region of a demonstration that
    /// could not end stays, and goes here.
    fn kill(&mut self) {
        kill_process(Pid::from_child(&self.process), Signal::KILL).unwrap();
        let status = self.process.wait().unwrap();
        assert!(!status.success(), "it had ended before");
        wait_until("the end of its processes", || self.processes().is_empty());
        for file in files().difference(&self.files_before) {
            let pid = self.process.id().to_string();
            if file.to_string_lossy().ends_with(&pid) {
                fs::remove_file(file).unwrap();
            }
        }
    }

    /// Its end, which is an error, and told as one.
    fn fails(&mut self) {
        let status = self.end();
        assert!(!status.success(), "it ended as if all was well");
        assert_ne!(self.said("errors").trim(), "", "it ended without a word on standard error");
    }

    /// What it reports in JSON, after which it has ended well.
    fn report(&mut self) -> Value {
        let status = self.end();
        let (output, errors) = (self.said("output"), self.said("errors"));
        assert!(status.success(), "it ended with {status}: {errors}");
        let report: Value = serde_json::from_str(&output).unwrap();
        assert!(report.is_object(), "{output}");
        assert_eq!(report["tokens_equal"], true, "with and without the pool");
        report
    }

    /// All processes of this run.
    fn processes(&self) -> Vec<i32> {
        let is_own = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|set| set == self.mark.as_bytes())
        };
        all_processes().into_iter().filter(is_own).collect()
    }
}

impl Drop for Demo {
    /// A test that failed leaves none of its processes.
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        let _ = self.process.wait();
    }
}

fn all_processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Files in shared memory that are ours.
fn files() -> BTreeSet<PathBuf> {
    let paths = fs::read_dir("/dev/shm").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.to_string_lossy().contains("rackline")).collect()
}

fn count(report: &Value, name: &str) -> u64 {
    let count = report[name].as_u64().unwrap_or(0);
    assert!(count > 0, "{name} is {}, not a number above 0", report[name]);
    count
}

fn time_ms(report: &Value, name: &str) -> f64 {
    let time = report[name].as_f64().unwrap_or(0.0);
    assert!(time > 0.0, "{name} is {}, not a time above 0", report[name]);
    time
}

#[test]
fn layers_that_are_in_the_pool_alone_give_the_same_tokens() {
    // Of shorter prompts too much stays in memory in any case, and one runs after the other.
    let size = ["--conversations", "1", "--turns", "1", "--document-tokens", "400"];
    let offload = ["--json", "--offload", "--max-tokens", "24"];
    let report = Demo::start(&[&offload[..], &size[..]].concat()).report();
    let offloaded = &report["offloaded"];
    assert_eq!(offloaded["tokens_equal"], true, "{offloaded:#}");
    let figure = |name: &str| offloaded[name].as_u64().unwrap();
    assert!(figure("plans") > 0 && figure("streamed_bytes") > 0, "{offloaded:#}");
    assert!(figure("peak_kv_bytes") <= figure("limit_kv_bytes"), "{offloaded:#}");
    assert!(figure("limit_kv_bytes") < figure("whole_kv_bytes"), "{offloaded:#}");
    assert_eq!(figure("unpooled_blocks"), 0, "{offloaded:#}");
    // The block that was damaged while a layer of it was in the pool alone.
    assert_eq!(offloaded["lost_blocks"]["checksum"], 1, "{offloaded:#}");
}

#[test]
fn the_tokens_are_equal_and_the_first_comes_sooner() {
    let report = Demo::start(&["--json"]).report();
    for name in ["requests", "kv_bytes_published", "kv_bytes_fetched"] {
        count(&report, name);
    }
    let found = count(&report, "prefix_hit_tokens");
    assert!(found <= count(&report, "prompt_tokens"), "more was found than the prompts have");
    let (with, without) = (time_ms(&report, "ttft_pool_ms"), time_ms(&report, "ttft_cold_ms"));
    assert!(with < without, "first token after {with} ms with the pool, {without} ms without");
}

#[test]
fn a_pool_smaller_than_its_working_set_evicts_and_the_tokens_are_equal() {
    // Less than half of what these two conversations fill.
    let small = ["--region-size", "32MiB", "--conversations", "1", "--max-tokens", "8"];
    let report = Demo::start(&[&["--json"][..], &small].concat()).report();
    count(&report, "blocks_evicted");
    count(&report, "kv_bytes_published");
}

#[test]
fn blocks_that_left_the_pool_come_back_from_drives_and_agents_may_be_killed() {
    let folder = tempfile::tempdir().unwrap();
    let drive = format!("{}:256MiB", folder.path().display());
    // Four conversations of some 20 blocks, and room for those of two.
    let small = ["--document-tokens", "200", "--conversations", "1", "--max-tokens", "8"];
    let arguments = [&["--json", "--drive", &drive, "--region-size", "24MiB"][..], &small].concat();
    let report = Demo::start(&arguments).report();
    count(&report, "blocks_evicted");
    let from_drives = count(&report, "drive_hit_tokens");
    assert!(from_drives <= count(&report, "prefix_hit_tokens"), "more than was found at all");
    let killed = &report["agents_killed"];
    assert!(count(killed, "found_again") >= count(killed, "announced_before"), "{killed}");
    assert!(count(killed, "drive_hit_tokens_after") <= from_drives, "{killed}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "each agent has a folder, which stays: {left:?}");
}

/// Everything of a demonstration dies at whatever it does. The next one has another region, and finds
/// the blocks of the first on the drives.
#[test]
fn killed_and_started_again_it_finds_its_blocks_on_drives() {
    let folder = tempfile::tempdir().unwrap();
    let drive = format!("{}:256MiB", folder.path().display());
    let small = ["--document-tokens", "200", "--conversations", "1", "--max-tokens", "8"];
    let arguments = [&["--drive", &drive, "--region-size", "24MiB"][..], &small].concat();
    let mut first = Demo::start(&arguments);
    first.wait_until("blocks on drives", |demo| demo.said("output").contains("blocks found again"));
    first.kill();
    drop(first);
    let report = Demo::start(&[&["--json"][..], &arguments].concat()).report();
    let served = &report["served"][0];
    assert!(count(served, "drive_tokens") <= count(served, "cached_tokens"), "{served}");
    count(&report, "blocks_evicted");
}

#[test]
fn interrupted_while_the_region_is_made_ready() {
    let mut demo = Demo::start(&[]);
    let region = PathBuf::from(format!("/dev/shm/rackline-demo-{}", demo.process.id()));
    demo.wait_until("its region", |_| region.exists());
    demo.interrupt();
    demo.fails();
}

#[test]
fn interrupted_in_the_middle_of_the_conversations() {
    let mut demo = Demo::start(&[]);
    demo.wait_until_it_serves();
    demo.interrupt();
    demo.fails();
}

#[test]
fn killed_workers_end_it() {
    for which in [0, 3] {
        let mut demo = Demo::start(&[]);
        demo.wait_until_it_serves();
        let workers = demo.workers();
        assert_eq!(workers.len(), 4, "{workers:?}");
        kill_process(Pid::from_raw(workers[which]).unwrap(), Signal::KILL).unwrap();
        demo.fails();
    }
}
