//! Programs in C and C++, compiled with the system's compiler against the headers and the library.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;

/// The flags of all programs, and those of each language.
const FLAGS: &[&str] = &["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-pthread"];
const C: (&str, &str) = ("cc", "-std=c11");
const CPP: (&str, &str) = ("c++", "-std=c++17");
/// Every use of memory that is not the program's, and what C leaves undefined, ends the program.
const SANITIZERS: &[&str] =
    &["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-fno-omit-frame-pointer"];

/// Whether a program with the sanitizers can be made and run here.
static CAN_SANITIZE: LazyLock<bool> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("nothing.c"), folder.path().join("nothing"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let compiled = Command::new(C.0).args(SANITIZERS).arg("-o").arg(&program).arg(&source).output();
    let can = compiled.is_ok_and(|compiled| compiled.status.success())
        && Command::new(&program).status().is_ok_and(|status| status.success());
    if !can {
        warn(
            "the C compiler has no address and undefined-behaviour sanitizers: programs run without",
        );
    }
    can
});

/// Says what was not tried, past the harness of the tests, which keeps what a test that passes
/// says.
pub(crate) fn warn(what: &str) {
    let _ = std::io::stderr().write_all(format!("!!! {what}\n").as_bytes());
}

/// The program `source`, compiled into `folder` with the headers, the library that was built, and
/// the sanitizers where there are some. A path that is not absolute is one of `tests/programs`.
///
/// One that forks is compiled without: that of addresses has locks in its allocator, which a child
/// may find closed for good.
pub(crate) fn compile(source: &Path, folder: &Path) -> PathBuf {
    compile_linked(source, folder, &[])
}

/// As [`compile`], with flags of its own.
pub(crate) fn compile_linked(source: &Path, folder: &Path, with: &[&OsStr]) -> PathBuf {
    let text = std::fs::read_to_string(path_of(source)).unwrap();
    let sanitizers = if text.contains("fork()") || !*CAN_SANITIZE { &[] } else { SANITIZERS };
    // The library lies beside the test's own program.
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("librackline_c.a");
    assert!(library.exists(), "{} was not built with the test", library.display());
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut flags =
        vec![OsStr::new("-I"), headers.as_ref(), library.as_ref(), "-ldl".as_ref(), "-lm".as_ref()];
    flags.extend(with);
    flags.extend(sanitizers.iter().map(OsStr::new));
    let program = folder.join(source.file_stem().unwrap());
    compile_with(source, &flags, &program);
    program
}

fn path_of(source: &Path) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source)
}

/// Compiles `source` to `program` with these flags for headers and libraries.
pub(crate) fn compile_with(source: &Path, flags: &[&OsStr], program: &Path) {
    let source = path_of(source);
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
