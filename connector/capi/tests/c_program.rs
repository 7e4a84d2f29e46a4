//! A C program, compiled with the system's compiler against the generated header and the library:
//! two processes of two nodes, the region mapped at different addresses.
#![expect(unsafe_code, reason = "calls a function of the C interface")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rackline_c::{CxlShmError, CxlShmLocks, cxl_shm_init};

/// The program, compiled into `folder`.
fn compile(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("two_processes");
    // The library lies beside the test's own program.
    let test = std::env::current_exe().unwrap();
    let libraries = test.parent().unwrap();
    let library = libraries.join("librackline_c.a");
    assert!(library.exists(), "{} was not built with the test", library.display());
    let status = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .arg("-I")
        .arg(root.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(root.join("tests/two_processes.c"))
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm"])
        .status()
        .expect("a C compiler (cc) is needed to test the C interface");
    assert!(status.success(), "the C program does not compile");
    program
}

fn start(program: &Path, region: &Path, node: u16, what: &str) -> Child {
    Command::new(program)
        .arg(region)
        .args([&node.to_string(), what, ROUNDS])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(child: Child) -> String {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}: {said}{errors}");
    said.into_owned()
}

/// Address and offset that the program printed.
fn place(said: &str) -> (String, String) {
    let mut words = said.split_whitespace().skip(1).map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

const ROUNDS: &str = "200";

#[test]
fn two_processes_share_objects_and_locks() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path());
    let region = folder.path().join("pool");
    let path = CString::new(region.to_str().unwrap()).unwrap();
    // SAFETY: a text that ends with a NUL and outlives the call.
    let made = unsafe { cxl_shm_init(path.as_ptr(), 64 << 20, 2, CxlShmLocks::Bakery as u32) };
    assert_eq!(made, CxlShmError::Ok);
    // SAFETY: as above.
    let again = unsafe { cxl_shm_init(path.as_ptr(), 64 << 20, 2, CxlShmLocks::Bakery as u32) };
    assert_eq!(again, CxlShmError::Region, "what exists is left alone");

    let written = place(&finish(start(&program, &region, 0, "write")));
    let counters = [0, 1].map(|node| start(&program, &region, node, "count"));
    let counted = counters.map(|counter| place(&finish(counter)));
    let said = finish(start(&program, &region, 1, "read"));
    let read = place(&said);

    assert_ne!(written.0, read.0, "the region is mapped at different addresses");
    assert_eq!(written.1, read.1, "and an object has the same offset");
    assert!(counted.iter().all(|(_, offset)| *offset == written.1));
    assert!(said.contains("counter 400"), "no count is lost: {said}");
}
