//! What `install` leaves is enough to build a program and to run it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::program::{compile_with, finish, start};
use crate::region::Pool;

/// The flags in `line` of the description for pkg-config.
fn flags(description: &str, line: &str) -> Vec<String> {
    let value = |name: &str| {
        let mut lines = description.lines();
        lines.find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"))
    };
    let flags = value(line).replace("${prefix}", value("prefix="));
    flags.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn an_installed_library_is_found_by_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let prefix = folder.path().join("prefix");
    let test = std::env::current_exe().unwrap();
    let status = Command::new(root.join("install"))
        .arg(&prefix)
        .env("RACKLINE_BUILT", test.parent().unwrap())
        .status();
    assert!(status.unwrap().success());

    let libraries = prefix.join("lib");
    let description = std::fs::read_to_string(libraries.join("pkgconfig/rackline.pc")).unwrap();
    assert!(description.contains(concat!("\nVersion: ", env!("CARGO_PKG_VERSION"), "\n")));
    let shared = vec![format!("-Wl,-rpath,{}", libraries.display())];
    for (name, more) in [("shared", shared), ("static", flags(&description, "Libs.private:"))] {
        let all = [flags(&description, "Cflags:"), flags(&description, "Libs:"), more].concat();
        let all: Vec<_> = all.iter().map(OsStr::new).collect();
        let program = folder.path().join(name);
        compile_with(Path::new("misuse.c"), &all, &program);
        if name == "shared" {
            // Only who builds needs the name without a version; without it the static one is found.
            std::fs::remove_file(libraries.join("librackline_c.so")).unwrap();
        } else {
            std::fs::remove_dir_all(&libraries).unwrap();
        }
        finish(start(&program, Pool::new(16 << 20).path(), &[]));
    }
    let output = Command::new(folder.path().join("shared")).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "it ran with the shared library: {output:?}");
}
