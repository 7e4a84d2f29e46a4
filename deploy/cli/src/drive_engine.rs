//! How payload reaches a drive, as a flag.

use clap::ValueEnum;
use kv_drive::io::EngineKind;

/// How payload reaches the drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Io {
    /// One ring of the kernel. Where the kernel refuses it, the log says so and posix is used.
    Uring,
    /// Threads that read and write.
    Posix,
}

impl From<Io> for EngineKind {
    fn from(io: Io) -> Self {
        match io {
            Io::Uring => Self::Uring,
            Io::Posix => Self::Posix,
        }
    }
}
