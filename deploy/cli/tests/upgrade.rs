//! Regions of another format version: each program refuses them, names both versions, and leaves them as
//! they are.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cxl_shm::layout::{FORMAT_VERSION, pretend_format_version};
use cxl_shm::region::Region;
use rackline::Pool;

fn rackline(arguments: &[&str], region: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.args(arguments).arg("--region").arg(region).stdin(Stdio::null());
    command.output().unwrap()
}

/// A region as a program of another version has left it.
fn region_of(version: u32, folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("pool");
    let size = ["--create", "4MiB", "--nodes", "2", "--chunk", "256KiB", "--block", "16KiB"];
    let formatted = rackline(&[&["format"][..], &size].concat(), &path);
    assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
    let region = Region::open(&path, None).unwrap();
    pretend_format_version(region.fabric(), version);
    path
}

#[test]
fn every_program_refuses_a_region_of_another_version_and_says_what_to_do() {
    for version in [FORMAT_VERSION - 1, FORMAT_VERSION + 1] {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = region_of(version, &folder);
        let before = std::fs::read(&path).unwrap();
        let drive = folder.path().join("drive");
        let drive = drive.to_str().unwrap();
        let known = format!("this program knows {FORMAT_VERSION}");
        for arguments in [
            &["status"][..],
            &["fsck"],
            &["fsck", "--repair"],
            &["lock-manager", "--node", "0"],
            &["agent", "--node", "0", "--drive", drive],
            &["drain", "--node", "0"],
            &["fence", "--node", "0", "--confirm-off"],
            &["qualify", "--node", "0"],
        ] {
            let refused = rackline(arguments, &path);
            let error = String::from_utf8(refused.stderr).unwrap();
            assert!(!refused.status.success(), "{arguments:?}");
            let found = format!("the region has format version {version}");
            assert!(error.contains(&found) && error.contains(&known), "{arguments:?}: {error}");
            assert!(error.contains("rackline format --force"), "{arguments:?}: {error}");
        }
        let refused = Pool::attach(&path, 0).unwrap_err();
        let error = format!("{refused}");
        assert!(
            error.contains(&known) || format!("{refused:?}").contains("OtherVersion"),
            "{error}"
        );
        assert!(std::fs::read(&path).unwrap() == before, "the region is as it was");
    }
}

#[test]
fn a_region_of_another_version_is_formatted_only_by_force() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = region_of(FORMAT_VERSION - 1, &folder);
    let before = std::fs::read(&path).unwrap();
    let size = ["format", "--nodes", "2", "--chunk", "256KiB", "--block", "16KiB"];
    let refused = rackline(&size, &path);
    assert!(!refused.status.success());
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("--force"), "{error}");
    assert!(std::fs::read(&path).unwrap() == before, "the region is as it was");
    let formatted = rackline(&[&size[..], &["--force"]].concat(), &path);
    assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
    assert!(rackline(&["status"], &path).status.success());
    Pool::attach(&path, 0).unwrap();
}
