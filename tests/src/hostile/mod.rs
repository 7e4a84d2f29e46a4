//! Bytes that a hostile or broken process, host or drive may leave: no program that reads them panics,
//! hangs, reads outside of them, or takes a wrong byte for a right one.
//!
//! Each target takes any bytes and makes damage of them. The tests run the kept inputs and inputs of a
//! generator; `tests/fuzz` lets a fuzzer, which sees what code an input reaches, look for others.

mod damaged_lines;
mod folder;
mod region;
mod superblock;

pub use folder::damaged_folder;
pub use region::damaged_region;
pub use superblock::damaged_superblock;

/// Something that reads what others may have damaged, as the input says.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of the fuzzer's program, and of the folder with its inputs.
    pub name: &'static str,
    /// Panics when something other than an error, a miss or a right answer comes of the input.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 3] = [
    Target { name: "region", run: damaged_region },
    Target { name: "superblock", run: damaged_superblock },
    Target { name: "folder", run: damaged_folder },
];
