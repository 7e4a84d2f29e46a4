//! Programs that use the CUDA driver, with the stand-in for it of `gpu-check`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::compile_linked;

/// The program `source`, compiled into `folder` with the stand-in for the driver, which it has also
/// on a machine with a real one.
pub(crate) fn compile_with_driver(source: &Path, folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let driver = folder.join("libcuda.so");
    let built = Command::new("cc")
        // A later load of the driver by this name gets the library that is loaded already.
        .args(["-shared", "-fPIC", "-O2", "-pthread", "-Wl,-soname,libcuda.so", "-o"])
        .arg(&driver)
        .arg(root.join("../gpu-check/tests/fake_cuda.c"))
        .status();
    assert!(built.unwrap().success(), "the stand-in for the CUDA driver does not compile");
    let mut found_there = OsString::from("-Wl,-rpath,");
    found_there.push(folder);
    let headers = root.join("tests/programs");
    compile_linked(
        source,
        folder,
        &["-I".as_ref(), headers.as_ref(), driver.as_ref(), &found_there],
    )
}
