//! A C program, compiled with the system's compiler against the generated header and the library:
//! two processes of two nodes, the region mapped at different addresses.
#![expect(unsafe_code, reason = "calls a function of the C interface")]
#![expect(clippy::unwrap_used, reason = "a test")]

mod program;

use std::ffi::CString;
use std::path::Path;

use rackline_c::{CxlShmError, CxlShmLocks, cxl_shm_init};

use program::{compile, finish, start};

/// Address and offset that the program printed.
fn place(said: &str) -> (String, String) {
    let mut words = said.split_whitespace().skip(1).map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

const ROUNDS: &str = "200";

#[test]
fn two_processes_share_objects_and_locks() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("two_processes.c"), folder.path());
    let region = folder.path().join("pool");
    let path = CString::new(region.to_str().unwrap()).unwrap();
    // SAFETY: a text that ends with a NUL and outlives the call.
    let made = unsafe { cxl_shm_init(path.as_ptr(), 64 << 20, 2, CxlShmLocks::Bakery as u32) };
    assert_eq!(made, CxlShmError::Ok);
    // SAFETY: as above.
    let again = unsafe { cxl_shm_init(path.as_ptr(), 64 << 20, 2, CxlShmLocks::Bakery as u32) };
    assert_eq!(again, CxlShmError::Region, "what exists is left alone");

    let written = place(&finish(start(&program, &region, &["0", "write", ROUNDS])));
    let counters = ["0", "1"].map(|node| start(&program, &region, &[node, "count", ROUNDS]));
    let counted = counters.map(|counter| place(&finish(counter)));
    finish(start(&program, &region, &["0", "fork", ROUNDS]));
    finish(start(&program, &region, &["0", "die", ROUNDS]));
    let said = finish(start(&program, &region, &["1", "read", ROUNDS]));
    let read = place(&said);

    assert_ne!(written.0, read.0, "the region is mapped at different addresses");
    assert_eq!(written.1, read.1, "and an object has the same offset");
    assert!(counted.iter().all(|(_, offset)| *offset == written.1));
    assert!(said.contains("counter 400"), "no count is lost: {said}");
}
