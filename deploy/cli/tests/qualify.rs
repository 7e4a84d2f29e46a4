//! `rackline qualify` with real processes: alone, as a pair, and what becomes of the profile.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pool;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cxl_shm::clock::SystemClock;
use cxl_shm::layout::{FenceEvidence, PayloadPolicy, Platform, PlatformProfile, read_superblock};
use cxl_shm::lifecycle::Attachment;
use cxl_shm::region::Region;
use cxl_shm::region::platform_of;
use rackline_qualify::store_profile;
use serde_json::Value;

use pool::Pool;

fn rackline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.stdin(Stdio::null());
    command
}

/// A region for three nodes, with a lock manager.
struct Rack {
    manager: Child,
    pool: Pool,
}

impl Rack {
    /// In memory, or in a file system where a file may be of more than one host.
    fn new(in_memory: bool) -> Self {
        let folder = if in_memory { "/dev/shm" } else { env!("CARGO_TARGET_TMPDIR") };
        let pool = Pool::format_in(folder);
        let manager = pool
            .rackline(&["lock-manager", "--node", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { manager, pool }
    }

    fn region(&self) -> PathBuf {
        self.pool.path()
    }

    fn qualify(&self, arguments: &[&str]) -> Command {
        let mut command = self.pool.rackline(&["qualify", "--rounds", "5"]);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn profile(&self) -> Option<PlatformProfile> {
        let region = Region::open(&self.region(), None).unwrap();
        read_superblock(region.fabric()).unwrap().0.profile
    }

    fn free_chunks(&self) -> (u64, u64) {
        let status = self.pool.rackline(&["status", "--json"]).output();
        let status: Value = serde_json::from_slice(&status.unwrap().stdout).unwrap();
        (status["chunks"].as_u64().unwrap(), status["chunks_free"].as_u64().unwrap())
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        let _ = self.manager.kill();
        let _ = self.manager.wait();
    }
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn one_host_is_measured_and_its_profile_kept() {
    let rack = Rack::new(true);
    assert_eq!(rack.profile(), None);
    let text = ok(&rack.qualify(&["--node", "0"]).output().unwrap());
    for says in ["verdict: fit", "store buffering", "skipped: this build has no GPU engine"] {
        assert!(text.contains(says), "{text}");
    }
    let profile = rack.profile().unwrap();
    // One host proves nothing about a fence.
    assert_eq!(profile.fence, FenceEvidence::Unproven);
    assert_eq!(profile.payload, PayloadPolicy::FlushBoth);
    assert_eq!(profile.platform, platform_of(&Region::open(&rack.region(), None).unwrap()));
    let (chunks, free) = rack.free_chunks();
    assert_eq!(chunks, free, "the chunk is given back");
    ok(&rack.qualify(&["--node", "0", "--assume-fence-waits", "--json"]).output().unwrap());
    assert_eq!(rack.profile().unwrap().fence, FenceEvidence::Assumed);
}

#[test]
fn two_processes_are_a_pair_in_any_order_and_say_that_they_share_a_host() {
    let rack = Rack::new(true);
    for order in [["1", "2"], ["2", "1"]] {
        let [first, second] = order;
        let json = ["--json"];
        let other = rack.qualify(&["--node", first, "--pair-with", second]).args(json).spawn();
        let outcome =
            rack.qualify(&["--node", second, "--pair-with", first]).args(json).output().unwrap();
        let other = other.unwrap().wait_with_output().unwrap();
        let [a, b] =
            [&outcome, &other].map(|output| serde_json::from_str::<Value>(&ok(output)).unwrap());
        assert_eq!((&a["fit"], &a["hosts"]), (&Value::Bool(true), &Value::from(1)));
        assert_eq!(a["findings"], b["findings"], "both have the same findings");
        assert_ne!(a["stored_by_this_node"], b["stored_by_this_node"]);
        assert_eq!(rack.profile().unwrap().fence, FenceEvidence::Unproven);
    }
    let (chunks, free) = rack.free_chunks();
    assert_eq!(chunks, free);
}

#[test]
fn a_pair_of_one_gives_up_and_leaves_nothing() {
    let rack = Rack::new(true);
    let alone = rack.qualify(&["--node", "1", "--pair-with", "2", "--timeout-s", "1"]);
    let says = refused(&{ alone }.output().unwrap());
    assert!(says.contains("run `rackline qualify` on it too"), "{says}");
    let (chunks, free) = rack.free_chunks();
    assert_eq!(chunks, free);
    assert_eq!(rack.profile(), None);
}

#[test]
fn bad_input_is_refused_and_says_what_to_do() {
    let rack = Rack::new(true);
    for (arguments, says) in [
        (&["--node", "9"][..], "nodes 0 to 2"),
        (&["--node", "1", "--pair-with", "1"], "is this node itself"),
        (&["--node", "1", "--pair-with", "7"], "nodes 0 to 2"),
    ] {
        let error = refused(&rack.qualify(arguments).output().unwrap());
        assert!(error.contains(says), "{error}");
    }
    // What cannot be parsed is refused by the parser, with its own code.
    for arguments in [
        &["--node", "1", "--rounds", "0"][..],
        &["--node", "1", "--timeout-s", "0"],
        &["--node", "1", "--pair-with", "2", "--assume-fence-waits"],
    ] {
        let mut command = rack.pool.rackline(&["qualify"]);
        assert_eq!(
            command.args(arguments).output().unwrap().status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
    let blank = rack.region().with_file_name("blank");
    std::fs::write(&blank, vec![0; 1 << 20]).unwrap();
    let mut command = rackline();
    command.args(["qualify", "--node", "0", "--region"]).arg(&blank);
    assert!(refused(&command.output().unwrap()).contains("not a Rackline region"));
}

fn store(region: &Path, change: impl FnOnce(PlatformProfile) -> PlatformProfile) {
    let attachment = Attachment::attach_to_measure(region, 1).unwrap();
    let profile = PlatformProfile {
        platform: platform_of(attachment.region()),
        fence: FenceEvidence::TwoHosts,
        payload: PayloadPolicy::FlushBoth,
        strict: false,
        measured_unix_s: 0,
    };
    let clock = SystemClock::start();
    store_profile(attachment.member(), Some(change(profile)), &clock, 30_000).unwrap();
}

#[test]
fn a_host_goes_by_the_profile_of_its_platform_and_falls_back_visibly_without() {
    use cxl_shm::fabric::ReadBack;
    let rack = Rack::new(false);
    let region = rack.region();
    let mode = || {
        let attachment = Attachment::attach(&region, 1).unwrap();
        let mode = attachment.region().fabric().read_back_mode();
        // Threads of the process publish alike.
        let thread = attachment.join_thread().unwrap();
        assert_eq!(thread.fabric().read_back_mode(), mode);
        attachment.leave_thread(thread);
        (mode, attachment.visibility().to_string())
    };
    let (unmeasured, says) = mode();
    assert_eq!(unmeasured, ReadBack::Needed);
    assert!(says.contains("no platform was measured yet"), "{says}");

    store(&region, |profile| profile);
    assert_eq!(mode().0, ReadBack::NotNeeded);

    let other = |profile: PlatformProfile| {
        let platform = Platform { vendor: *b"AnotherMaker", ..profile.platform };
        PlatformProfile { platform, ..profile }
    };
    store(&region, other);
    let (fallen_back, says) = mode();
    assert_eq!(fallen_back, ReadBack::Needed);
    assert!(says.contains("is not the platform that was measured (AnotherMaker"), "{says}");
    let status = rack.pool.rackline(&["status"]).output().unwrap();
    assert!(ok(&status).contains("on this host publishes read back: this host ("), "{status:?}");

    store(&region, |profile| PlatformProfile { strict: true, ..other(profile) });
    let error = Attachment::attach(&region, 1).unwrap_err().to_string();
    assert!(error.contains("run `rackline qualify` on this host"), "{error}");
    // Which is not refused, and mends it.
    ok(&rack.qualify(&["--node", "1", "--strict"]).output().unwrap());
    assert_eq!(mode().0, ReadBack::Needed, "one host proves nothing about a fence");
}
