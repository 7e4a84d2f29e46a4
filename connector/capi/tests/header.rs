//! The headers that are checked in are the ones that the sources say.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;

/// The sources with calls of shared memory, in the order of the header.
const SHARED_MEMORY: &[&str] = &[
    "attached",
    "error",
    "heap",
    "init",
    "locks",
    "log",
    "memory",
    "per_process",
    "roots",
    "text",
];

/// The sources of sessions, in the order of the header.
const SESSIONS: &[&str] = &[
    "error",
    "options",
    "pool",
    "directives",
    "model",
    "opening",
    "hashes",
    "pending",
    "lookup",
    "prefetch",
    "prefix",
    "lent",
    "layers",
    "gpu",
    "publish",
    "fetch",
    "layered_publish",
    "layered_fetch",
    "reason",
    "arguments",
    "handles",
];

fn check(name: &str, folder: &str, sources: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = root.join(format!("{name}.cbindgen.toml"));
    let mut builder =
        cbindgen::Builder::new().with_config(cbindgen::Config::from_file(config).unwrap());
    for source in sources {
        builder = builder.with_src(root.join(folder).join(format!("{source}.rs")));
    }
    let files = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.is_file());
    let mut forgotten: BTreeSet<_> =
        files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    for source in sources.iter().chain(&["lib", "mod"]) {
        forgotten.remove(*source);
    }
    assert!(forgotten.is_empty(), "{forgotten:?} of {folder} are in no list above");
    let bindings =
        builder.generate().unwrap_or_else(|error| panic!("{name}.h cannot be generated: {error}"));
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let path = root.join(format!("include/{name}.h"));
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    if generated == current {
        return;
    }
    if std::env::var_os("RACKLINE_WRITE_HEADER").is_some() {
        std::fs::write(&path, generated).unwrap();
        return;
    }
    panic!(
        "{} is not what the sources say; write it anew with \
         `RACKLINE_WRITE_HEADER=1 cargo test -p rackline-capi --test header` and look at the \
         difference",
        path.display()
    );
}

#[test]
fn the_header_of_shared_memory_is_current() {
    check("cxl_shm", "src", SHARED_MEMORY);
}

#[test]
fn the_header_of_sessions_is_current() {
    check("rackline", "src/session", SESSIONS);
}
