//! Output and logs that cannot be written: nothing panics, and no lock manager ends or stands
//! still.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pool;

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::process::{Child, Stdio};

use cxl_shm::clock::SystemClock;
use rustix::process::{Pid, Signal, kill_process};

use pool::Pool;

/// How often it is looked whether a lock manager serves, before the test has failed.
const LOOKS: u32 = 100;

struct Rack {
    pool: Pool,
}

impl Rack {
    fn new() -> Self {
        Self { pool: Pool::format_in("/dev/shm") }
    }

    fn is_served(&self) -> bool {
        (0..LOOKS).any(|_| {
            SystemClock::start().sleep_ms(10);
            let status = self.pool.rackline(&["status", "--json"]).output().unwrap();
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            status.contains("\"serving\":true,\"alive\":true")
        })
    }
}

/// A lock manager, stopped in order when it is dropped.
struct Manager(Child);

impl Manager {
    fn start(rack: &Rack, log: impl Into<Stdio>) -> Self {
        let mut command = rack.pool.rackline(&["lock-manager", "--node", "0"]);
        Self(command.env("RUST_LOG", "trace").stderr(log).spawn().unwrap())
    }

    /// Its exit status after it was told to stop.
    fn stop(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// A pipe that is full, and stays so until the reader is dropped.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    std::thread::spawn(move || while filler.write_all(&[0; 4096]).is_ok() {});
    (reader, writer)
}

#[test]
fn a_log_that_cannot_be_written_neither_ends_nor_stops_the_lock_manager() {
    let rack = Rack::new();
    let full_disk = File::options().write(true).open("/dev/full").unwrap();
    let (reader, without_reader) = pipe().unwrap();
    drop(reader);
    let (_nobody_reads, full) = full_pipe();
    for (log, what) in [
        (Stdio::from(full_disk), "a full disk"),
        (without_reader.into(), "a closed pipe"),
        (full.into(), "a full pipe"),
    ] {
        let mut manager = Manager::start(&rack, log);
        assert!(rack.is_served(), "{what}");
        assert!(manager.0.try_wait().unwrap().is_none(), "{what}");
        assert_eq!(manager.stop(), Some(0), "{what}");
    }
}

#[test]
fn output_that_nobody_takes_is_one_error_at_most() {
    let rack = Rack::new();
    for arguments in [vec!["status"], vec!["status", "--json"]] {
        let run = |output: Stdio| {
            rack.pool.rackline(&arguments).stdout(output).stderr(Stdio::piped()).output()
        };
        let (reader, closed) = pipe().unwrap();
        drop(reader);
        let quiet = run(closed.into()).unwrap();
        assert_eq!((quiet.status.code(), quiet.stderr.len()), (Some(0), 0), "{quiet:?}");

        let full = File::options().write(true).open("/dev/full").unwrap();
        let failed = run(full.into()).unwrap();
        let error = String::from_utf8_lossy(&failed.stderr);
        assert_eq!((failed.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains("cannot write to standard output"), "{error}");
    }
    // Nor where the error cannot be told.
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let failed = rack.pool.rackline(&["status"]).stdout(full()).stderr(full()).status();
    assert_eq!(failed.unwrap().code(), Some(1));
}
