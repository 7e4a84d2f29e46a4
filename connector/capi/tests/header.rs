//! The header that is checked in is the one that the sources say.

use std::path::Path;

#[test]
fn the_header_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_crate(root)
        .generate()
        .unwrap_or_else(|error| panic!("the header cannot be generated: {error}"));
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let path = root.join("include/cxl_shm.h");
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
