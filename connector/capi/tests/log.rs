//! The lines of the library on standard error, which neither end nor delay a C program.
#![expect(clippy::unwrap_used, reason = "a test")]

#[expect(dead_code, reason = "these programs have a standard error of their own")]
mod program;
mod region;

use std::io::{Read as _, Write as _, pipe};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use program::compile;
use region::Pool;

/// How long a program may take that waits for nobody, with the compiler's sanitizers on a slow
/// machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs a C program that logs at least one line to `stderr`. Returns what the program said on
/// standard output.
fn attach_and_close(stderr: impl Into<Stdio>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("attach_close.c"), folder.path());
    let pool = Pool::new(16 << 20);
    let mut command = Command::new(program);
    command.arg(pool.path()).env("RACKLINE_LOG", "info").stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().unwrap();
    // The command has the other end of standard error.
    drop(command);
    let mut stdout = child.stdout.take().unwrap();
    let (sender, said) = channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        let _ = sender.send(text);
    });
    let said = said.recv_timeout(TIMEOUT);
    if said.is_err() {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}: {said:?}");
    said.unwrap()
}

#[test]
fn lines_are_written_before_the_program_ends() {
    let (mut reader, writer) = pipe().unwrap();
    assert_eq!(attach_and_close(writer), "left\n");
    let mut lines = String::new();
    reader.read_to_string(&mut lines).unwrap();
    assert!(lines.starts_with("rackline: INFO kv_cache::"), "{lines}");
    assert!(lines.ends_with('\n'), "{lines}");
}

#[test]
fn a_program_whose_standard_error_nobody_reads_any_more_goes_on() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    assert_eq!(attach_and_close(writer), "left\n");
}

#[test]
fn a_program_whose_standard_error_is_full_goes_on() {
    let (_reader, mut writer) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'x'; 64]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    assert_eq!(attach_and_close(writer), "left\n");
}
