//! Why a region could not be opened, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::fabric::MapError;
use crate::layout::RegionKind;

/// Why a path could not be opened as a region. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is nothing at the path.
    #[error(
        "{} does not exist: check the path (`daxctl list` shows the devices), or make the region \
         with `rackline format`",
        .path.display()
    )]
    Missing {
        /// The path as given.
        path: PathBuf,
    },
    /// A directory, a block device, another kind of character device, ...
    #[error(
        "{} is {found}: a region is a devdax device (/dev/daxX.Y) or a regular file{}",
        .path.display(), .advice
    )]
    NotRegion {
        /// The path as given.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What to do when there is more to say than that; may be empty.
        advice: &'static str,
    },
    /// The caller asked for a devdax and this is a file, or the reverse.
    #[error("{} is {found}, but {expected} was asked for: give the path of one, or ask for {found}",
        .path.display())]
    WrongKind {
        /// The path as given.
        path: PathBuf,
        /// What the caller asked for.
        expected: RegionKind,
        /// What it is.
        found: RegionKind,
    },
    /// Size zero.
    #[error("{} is {kind} of 0 bytes: {}", .path.display(), advice_when_empty(*.kind))]
    Empty {
        /// The path as given.
        path: PathBuf,
        /// What it is.
        kind: RegionKind,
    },
    /// The size is not a multiple of what mappings are aligned to.
    #[error(
        "{} has {bytes} bytes, which is not a multiple of {align_bytes}: make it {} bytes",
        .path.display(), nearest_multiple(*.bytes, *.align_bytes)
    )]
    Misaligned {
        /// The path as given.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What the size must be a multiple of.
        align_bytes: u64,
    },
    /// Smaller than it has to be.
    #[error(
        "{} has {bytes} bytes, but at least {bytes_min} are needed: it was truncated, or is \
         another file than expected; restore it, or format a region of that size",
        .path.display()
    )]
    TooSmall {
        /// The path as given.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size it has to have.
        bytes_min: u64,
    },
    /// A devdax that the kernel uses as memory of its own.
    #[error(
        "{} is in system-ram mode: the kernel uses it as ordinary memory; give it back with \
         `daxctl reconfigure-device --mode=devdax {device}` (first `daxctl offline-memory {device}`)",
        .path.display()
    )]
    SystemRam {
        /// The path as given.
        path: PathBuf,
        /// Its name for `daxctl`.
        device: String,
    },
    /// A devdax that no driver serves.
    #[error(
        "{} has no driver: load the device_dax module, then `daxctl enable-device {device}`",
        .path.display()
    )]
    NoDriver {
        /// The path as given.
        path: PathBuf,
        /// Its name for `daxctl`.
        device: String,
    },
    /// This process may not open it.
    #[error(
        "no permission to {to} {}: run as its owner, or let its owner give this user \
         access (a udev rule for a device, chmod or chgrp for a file)",
        .path.display()
    )]
    Permission {
        /// The path as given.
        path: PathBuf,
        /// What it was opened for: `read`, or `read and write`.
        to: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// An attribute of the device cannot be used.
    #[error("cannot use {}: {reason}; check the device with `daxctl list`", .attribute.display())]
    Sysfs {
        /// The attribute.
        attribute: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The path names something else than a moment ago.
    #[error("{} was replaced or resized while it was opened: try again when no program changes it",
        .path.display())]
    Replaced {
        /// The path as given.
        path: PathBuf,
    },
    /// The operating system refused for another reason.
    #[error("cannot open {}: {source}", .path.display())]
    System {
        /// The path as given.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It is a region by all appearances, but could not be mapped.
    #[error("cannot map {}: {source}; {advice}", .path.display())]
    Map {
        /// The path as given.
        path: PathBuf,
        /// What failed.
        source: MapError,
        /// What to do.
        advice: &'static str,
    },
}

fn advice_when_empty(kind: RegionKind) -> &'static str {
    match kind {
        RegionKind::Devdax => "give it capacity with `daxctl create-device`",
        RegionKind::File => "remove it and make the region with `rackline format`",
    }
}

/// The greatest multiple of `align_bytes` up to `bytes`, but not zero.
fn nearest_multiple(bytes: u64, align_bytes: u64) -> u64 {
    (bytes - bytes % align_bytes).max(align_bytes)
}
