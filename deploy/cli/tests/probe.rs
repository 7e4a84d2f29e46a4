//! `rackline status --check`, as a monitoring system runs it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use cxl_shm::clock::{Clock as _, SystemClock};
use rackline::Pool;

/// More than any step takes, also where much else runs.
const LIMIT_MS: u64 = 120_000;

fn rackline(arguments: &[&str], region: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.args(arguments).arg("--region").arg(region).stdin(Stdio::null());
    command
}

/// The exit code, and what was said.
fn probe(region: &Path, more: &[&str]) -> (i32, String) {
    let output = rackline(&[&["status", "--check"], more].concat(), region).output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code().unwrap(), text.concat())
}

struct Manager(Child);

impl Drop for Manager {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_exit_code_says_how_bad_it_is() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = folder.path().join("pool");
    let (code, said) = probe(&region, &[]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("does not exist"), "{said}");
    let sizes = ["format", "--create", "32MiB", "--chunk", "1MiB", "--block", "64KiB"];
    let formatted = rackline(&[&sizes[..], &["--nodes", "2"]].concat(), &region).output().unwrap();
    assert!(formatted.status.success(), "{formatted:?}");
    // Nobody uses it: that no lock manager has run is a note.
    let (code, said) = probe(&region, &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("nothing is wrong"), "{said}");
    let _pool = Pool::attach(&region, 1).unwrap();
    let (code, said) = probe(&region, &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("none has run yet") && !said.contains("nothing is wrong"), "{said}");
    let (code, said) = probe(&region, &["--json"]);
    assert_eq!(code, 2, "{said}");
    let findings: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(findings[0]["level"], "bad");
    let mut manager = rackline(&["lock-manager", "--node", "0"], &region);
    let _manager = Manager(manager.stderr(Stdio::null()).spawn().unwrap());
    let clock = SystemClock::start();
    loop {
        let (code, said) = probe(&region, &[]);
        if (code, said.as_str()) == (0, "nothing is wrong\n") {
            break;
        }
        assert!(clock.now_ms() < LIMIT_MS, "{code}: {said}");
        clock.sleep_ms(100);
    }
}
