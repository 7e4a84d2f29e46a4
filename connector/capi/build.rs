//! Names the shared library by its version, so that a program finds the one that it was linked
//! with.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Before 1.0 every minor version may change the interface.
    let version = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")].join(".");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librackline_c.so.{version}");
}
