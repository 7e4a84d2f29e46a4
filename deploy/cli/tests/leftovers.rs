//! `rackline leftovers` in a folder of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::Path;
use std::process::{Command, Stdio};

use cxl_shm::host::HostTierFile;
use cxl_shm::layout::{Superblock, read_superblock};
use cxl_shm::region::Region;
use cxl_shm::units::NodeId;

fn rackline(arguments: &[&str], paths: &[(&str, &Path)]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.args(arguments).stdin(Stdio::null());
    for (flag, path) in paths {
        command.arg(flag).arg(path);
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), text.concat())
}

fn formatted(region: &Path) -> Superblock {
    let sizes = ["format", "--create", "32MiB", "--chunk", "1MiB", "--nodes", "4"];
    let (made, said) = rackline(&sizes, &[("--region", region)]);
    assert!(made, "{said}");
    let region = Region::open_read_only(region).unwrap();
    read_superblock(region.fabric()).unwrap().0
}

/// The file of a host whose processes were killed.
fn left(folder: &Path, superblock: &Superblock, node: u16) -> std::path::PathBuf {
    let path = HostTierFile::path_in(folder, superblock, NodeId(node));
    HostTierFile::lock(&path).unwrap().map(4096).unwrap();
    path
}

/// The states of all files, by node.
fn states(paths: &[(&str, &Path)], more: &[&str]) -> Vec<(u64, String, bool)> {
    let (done, said) = rackline(&[&["leftovers", "--json"], more].concat(), paths);
    assert!(done, "{said}");
    let files: Vec<serde_json::Value> = serde_json::from_str(&said).unwrap();
    let of = |file: &serde_json::Value| {
        let state = file["state"].as_str().unwrap().to_owned();
        (file["node"].as_u64().unwrap(), state, file["removed"].as_bool().unwrap())
    };
    let mut states: Vec<_> = files.iter().map(of).collect();
    states.sort();
    states
}

#[test]
fn files_of_regions_that_are_gone_are_listed_and_removed_and_no_others() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let (here, there) = (folder.path().join("pool"), elsewhere.path().join("pool"));
    let (of_here, of_there) = (formatted(&here), formatted(&there));
    let gone = Superblock::new([1, 2], of_here.geometry, of_here.application);
    let first = left(folder.path(), &of_here, 0);
    let second = left(folder.path(), &of_there, 1);
    let third = left(folder.path(), &gone, 2);
    // Not the file of a host: the command goes on.
    let odd = HostTierFile::path_in(folder.path(), &gone, NodeId(4));
    std::fs::write(&odd, [0; 64]).unwrap();
    std::fs::set_permissions(&odd, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let used = HostTierFile::path_in(folder.path(), &gone, NodeId(3));
    let file = HostTierFile::lock(&used).unwrap();
    let member = file.map(4096).unwrap();
    file.use_for_life().unwrap();
    drop(file);
    let at = ("--folder", folder.path());
    let both = [at, ("--region", there.as_path())];
    let listed = |removed| {
        [
            (0, "of_region".to_owned(), false),
            (1, "of_region".to_owned(), false),
            (2, "gone".to_owned(), removed),
            (3, "in_use".to_owned(), false),
            (4, if removed { "unknown" } else { "gone" }.to_owned(), false),
        ]
    };
    assert_eq!(states(&both, &[]), listed(false));
    assert!(third.exists(), "nothing is removed without --remove");
    // What is told of a region that cannot be read is not known: nothing is removed.
    let wrong = elsewhere.path().join("none");
    let (done, said) = rackline(&["leftovers", "--remove"], &[at, ("--region", &wrong)]);
    assert!(!done && said.contains("none") && third.exists(), "{said}");
    assert_eq!(states(&both, &["--remove"]), listed(true));
    assert!(!third.exists() && first.exists() && second.exists() && used.exists());
    // The region in the folder is formatted anew: its file is of no use.
    let again = ["format", "--force", "--chunk", "1MiB"];
    let (made, said) = rackline(&again, &[("--region", &here)]);
    assert!(made, "{said}");
    let (done, said) = rackline(&["leftovers", "--remove"], &both);
    assert!(done && said.contains("; removed"), "{said}");
    assert!(said.contains("removed 1 files of regions that are gone"), "{said}");
    assert!(!first.exists() && second.exists() && used.exists());
    drop(member);
}

#[test]
fn a_process_says_that_its_region_was_removed_or_replaced() {
    use std::io::{BufRead as _, BufReader};
    use std::sync::mpsc;
    use std::time::Duration;

    for (is_replaced, expected) in
        [(false, "was removed while processes use it"), (true, "names another file or device")]
    {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let region = folder.path().join("pool");
        formatted(&region);
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
        command.args(["lock-manager", "--node", "0", "--region"]).arg(&region);
        let mut manager = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = mpsc::channel();
        let log = BufReader::new(manager.stderr.take().unwrap());
        std::thread::spawn(move || log.lines().try_for_each(|line| tell.send(line.unwrap())));
        let said = |text: &str| {
            let next = || lines.recv_timeout(Duration::from_secs(120)).ok();
            std::iter::from_fn(next).any(|line| line.contains(text))
        };
        assert!(said(": serves region="), "it is not attached");
        if is_replaced {
            let other = folder.path().join("other");
            formatted(&other);
            std::fs::rename(&other, &region).unwrap();
        } else {
            std::fs::remove_file(&region).unwrap();
        }
        let is_told = said(expected);
        manager.kill().unwrap();
        manager.wait().unwrap();
        assert!(is_told, "{expected}");
    }
}
