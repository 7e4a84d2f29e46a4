//! What an agent is told.

use std::path::PathBuf;

use kv_cache::Watermarks;
use kv_drive::encoding::EncodingOptions;
use kv_drive::io::EngineKind;
use kv_drive::policy::AdmissionKind;

/// A folder of a drive, and how much of the drive it may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriveFolder {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes that it may have allocated. `None`: nine tenths of what its file system has for it.
    pub capacity_bytes: Option<u64>,
}

/// How blocks are restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreSettings {
    /// Reads of a device that are under way at once.
    pub depth: usize,
    /// Restores of a device that wait at most.
    pub queue_max: usize,
}

/// When blocks are written to the drives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScheduleSettings {
    /// Writes that are under way at once.
    pub depth: usize,
    /// While no engine says when it computes, writes begin when no read was there for so long, in
    /// microseconds. An engine that has said nothing for so long counts for nothing.
    pub idle_us: u64,
    /// A block that has waited for so long is written whatever reads and engines do, in
    /// microseconds.
    pub write_wait_us: u64,
}

/// How blocks are backed up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackupSettings {
    /// How long a block is READY before it is backed up, in milliseconds.
    pub age_ms: u64,
    /// Which blocks are worth a write.
    pub admission: AdmissionKind,
    /// Bytes of blocks that may wait for a drive.
    pub backlog_bytes: u64,
    /// Written blocks become durable, and are announced, after that many milliseconds at most.
    pub commit_ms: u64,
    /// Or after that many bytes.
    pub commit_bytes: u64,
    /// A device that leaves a write unfinished for so long, beyond what it waits for reads, does not
    /// answer: the write is given up. In milliseconds.
    pub silent_ms: u64,
    /// Blocks that were dropped or refused are looked at again after so long, and so are those that the
    /// directory had no room for. In milliseconds.
    pub retry_ms: u64,
    /// When blocks are written.
    pub schedule: ScheduleSettings,
    /// Between which shares of its room each folder is kept.
    pub watermarks: Watermarks,
    /// How blocks are encoded.
    pub encoding: EncodingOptions,
}

/// What an agent is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The region: a devdax device, or a file.
    pub region: PathBuf,
    /// The node of this host.
    pub node: u16,
    /// Folders on drives of this host. Without any the agent only follows what other hosts announce.
    pub drives: Vec<DriveFolder>,
    /// How payload reaches the drives.
    pub engine: EngineKind,
    /// Whether folders of another host are taken over.
    pub take_over: bool,
    /// How blocks are restored.
    pub restore: RestoreSettings,
    /// How blocks are backed up.
    pub backup: BackupSettings,
}
