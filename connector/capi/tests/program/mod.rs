//! Programs in C and C++, compiled with the system's compiler against the headers and the library.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The flags of all programs, and those of each language.
const FLAGS: &[&str] = &["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-pthread"];
const C: (&str, &str) = ("cc", "-std=c11");
const CPP: (&str, &str) = ("c++", "-std=c++17");

/// The program `source`, compiled into `folder` with the headers and the library that were built. A
/// path that is not absolute is one of `tests/programs`.
pub(crate) fn compile(source: &Path, folder: &Path) -> PathBuf {
    // The library lies beside the test's own program.
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("librackline_c.a");
    assert!(library.exists(), "{} was not built with the test", library.display());
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let program = folder.join(source.file_stem().unwrap());
    let flags =
        [OsStr::new("-I"), headers.as_ref(), library.as_ref(), "-ldl".as_ref(), "-lm".as_ref()];
    compile_with(source, &flags, &program);
    program
}

/// Compiles `source` to `program` with these flags for headers and libraries.
pub(crate) fn compile_with(source: &Path, flags: &[&OsStr], program: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let is_c = source.extension() == Some(OsStr::new("c"));
    let (compiler, standard) = if is_c { C } else { CPP };
    let status = Command::new(compiler)
        .arg(standard)
        .args(FLAGS)
        .arg("-o")
        .arg(program)
        .arg(&source)
        .args(flags)
        .status()
        .unwrap_or_else(|error| panic!("a compiler ({compiler}) is needed: {error}"));
    assert!(status.success(), "{} does not compile", source.display());
}

/// Starts `program`.
pub(crate) fn start(program: &Path, region: &Path, arguments: &[&str]) -> Child {
    Command::new(program)
        .arg(region)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the program wrote. It must have ended well.
pub(crate) fn finish(child: Child) -> String {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}: {said}{errors}");
    said.into_owned()
}
