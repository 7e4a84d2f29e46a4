//! What an agent has done, in figures.

use std::sync::{Arc, Mutex, PoisonError};

use kv_cache::{AgentLine, RestoreOutcome};
use kv_drive::encoding::EncoderFigures;
use kv_drive::volume::{Decoded, EncodedBlocks};

/// Counters of an agent since its start, and sizes of now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Blocks that were written to drives and acknowledged by them.
    pub backed_up: u64,
    /// Their bytes.
    pub backed_up_bytes: u64,
    /// Blocks that were not backed up because the backlog was full.
    pub dropped: u64,
    /// Blocks that were not backed up because too many others wait for their age.
    pub dropped_unlisted: u64,
    /// Windows that engines left for writes.
    pub windows: u64,
    /// Windows in which a write began.
    pub windows_used: u64,
    /// Bytes whose write began in a window.
    pub window_bytes: u64,
    /// Bytes whose write began while neither reads nor engines said anything, or while the agent
    /// stopped.
    pub idle_bytes: u64,
    /// Bytes whose write began because it had waited for long.
    pub late_bytes: u64,
    /// Blocks that left the pool, changed or were damaged before they were copied.
    pub lost_before: u64,
    /// Blocks that no drive took or kept, in the order of [`RefusedBy::ALL`].
    pub refused: [u64; RefusedBy::ALL.len()],
    /// Blocks that a drive did not write in time: it does not answer.
    pub given_up: u64,
    /// Not all folders are open and have their tables read: there may be more blocks.
    pub is_unread: bool,
    /// Folders that owe a clear: the first is bit 0. Bit 63 stands for all that have no bit.
    pub owing: u64,
    /// Blocks that came back into the pool.
    pub restored: u64,
    /// Their bytes.
    pub restored_bytes: u64,
    /// Blocks of those that somebody has used since.
    pub useful: u64,
    /// Blocks that left drives to make room.
    pub evicted: u64,
    /// Answers, in the order of [`RestoreOutcome::ALL`].
    pub answers: [u64; RestoreOutcome::ALL.len()],
    /// Blocks that admission found not worth a write.
    pub not_admitted: u64,
    /// Blocks that other hosts do not find, because the directory is full.
    pub unannounced: u64,
    /// Blocks that wait to be backed up, in bytes.
    pub backlog_bytes: u64,
    /// Blocks that other hosts know to be on drives of this one.
    pub announced: u64,
    /// Blocks on the drives.
    pub blocks: u64,
    /// Bytes that their extents take.
    pub used_bytes: u64,
    /// Bytes that the drives have for extents.
    pub capacity_bytes: u64,
    /// What the encoder of backups did.
    pub encoder: EncoderFigures,
    /// What encoded blocks on the drives take.
    pub encoded: EncodedBlocks,
    /// What was decoded of blocks that came back.
    pub decoded: Decoded,
    /// All blocks of the drives are announced, as far as the directory has room, clears are carried
    /// out, and backups have begun.
    pub is_ready: bool,
}

/// Why a block does not wait to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DropReason {
    /// Too many blocks wait for their age.
    TooManyWait,
    /// Too many bytes wait for the drives.
    BacklogFull,
}

/// Why a block that was to be backed up is on no drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedBy {
    /// The folders are at their capacity, or their devices have no room.
    Full,
    /// The devices failed a moment ago, and are not tried yet.
    Marked,
    /// No drive can keep a block of this length or encoding.
    Unfit,
    /// The write failed, or there was no memory for it.
    Failed,
    /// It was written, and the commit failed that would have made it durable.
    NotDurable,
}

impl RefusedBy {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::Full, Self::Marked, Self::Unfit, Self::Failed, Self::NotDurable];

    /// Its name in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Full => "drive_full",
            Self::Marked => "drive_marked",
            Self::Unfit => "unfit",
            Self::Failed => "write_failed",
            Self::NotDurable => "not_durable",
        }
    }

    /// Whether another try may succeed.
    #[must_use]
    pub(crate) const fn passes(self) -> bool {
        !matches!(self, Self::Unfit)
    }
}

impl Figures {
    /// Counts a block that no drive took.
    pub(crate) fn refused_by(&mut self, why: RefusedBy) {
        self.refused[why as usize] += 1;
    }

    /// Blocks that no drive took or kept.
    #[must_use]
    pub fn refused_by_drives(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Counts a block that is not backed up.
    pub(crate) fn dropped(&mut self, why: DropReason) {
        match why {
            DropReason::TooManyWait => self.dropped_unlisted += 1,
            DropReason::BacklogFull => self.dropped += 1,
        }
    }

    /// Counts an answer.
    pub fn answered(&mut self, outcome: RestoreOutcome) {
        if let Some(at) = RestoreOutcome::ALL.iter().position(|it| *it == outcome) {
            self.answers[at] += 1;
        }
    }

    /// How many requests were answered so.
    #[must_use]
    pub fn answers_of(&self, outcome: RestoreOutcome) -> u64 {
        let at = RestoreOutcome::ALL.iter().position(|it| *it == outcome);
        at.map_or(0, |at| self.answers[at])
    }

    /// What the agent says of itself in the region.
    #[must_use]
    pub fn line(&self, runs: bool) -> AgentLine {
        AgentLine {
            runs,
            is_unread: self.is_unread,
            given_up_blocks: self.given_up,
            owing_drives: self.owing,
            encoded_blocks: self.encoded.blocks,
            encoded_bytes: self.encoded.bytes,
            encoded_raw_bytes: self.encoded.raw_bytes,
            decoded_bytes: self.decoded.bytes,
            capacity_bytes: self.capacity_bytes,
            used_bytes: self.used_bytes,
            blocks: self.blocks,
            announced_blocks: self.announced,
            unannounced_blocks: self.unannounced,
            backlog_bytes: self.backlog_bytes,
            backed_up_blocks: self.backed_up,
            backed_up_bytes: self.backed_up_bytes,
            dropped_blocks: self.dropped,
            unlisted_blocks: self.dropped_unlisted,
            lost_blocks: self.lost_before,
            refused_blocks: self.refused_by_drives(),
            windows: self.windows,
            windows_used: self.windows_used,
            window_bytes: self.window_bytes,
            idle_bytes: self.idle_bytes,
            late_bytes: self.late_bytes,
            removed_blocks: self.evicted,
            restored_bytes: self.restored_bytes,
            outcomes: self.answers,
        }
    }

    /// What the blocks on the drives would take more if none was encoded.
    #[must_use]
    pub const fn saved_bytes(&self) -> u64 {
        self.encoded.raw_bytes - self.encoded.bytes
    }

    /// Writes a line of the log.
    pub fn log(&self, what: &str) {
        let Self { blocks, used_bytes, announced, backlog_bytes, backed_up, dropped, .. } = *self;
        let Self { not_admitted, evicted, restored, .. } = *self;
        let Self { windows_used, window_bytes, idle_bytes, late_bytes, .. } = *self;
        let asked: u64 = self.answers.iter().sum();
        let EncoderFigures { bytes_before, bytes_after, cpu_ns, .. } = self.encoder;
        tracing::info!(
            blocks,
            used_bytes,
            announced,
            backlog_bytes,
            backed_up,
            not_admitted,
            dropped,
            evicted,
            asked,
            restored,
            windows_used,
            window_bytes,
            idle_bytes,
            late_bytes,
            "{what}"
        );
        if self.encoded.blocks > 0 || cpu_ns > 0 {
            tracing::info!(
                encoded_blocks = self.encoded.blocks,
                saved_bytes = self.saved_bytes(),
                bytes_before,
                bytes_after,
                encode_cpu_ms = cpu_ns / 1_000_000,
                decoded_bytes = self.decoded.bytes,
                decode_cpu_ms = self.decoded.cpu_ns / 1_000_000,
                "encoding"
            );
        }
    }

    /// Counts a block that came back.
    pub fn restored(&mut self, bytes: u64) {
        self.restored += 1;
        self.restored_bytes += bytes;
    }

    /// Counts a block that is durable on a drive.
    pub fn backed_up(&mut self, bytes: u64) {
        self.backed_up += 1;
        self.backed_up_bytes += bytes;
    }
}

/// Figures that the threads of an agent share.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFigures(Arc<Mutex<Figures>>);

impl SharedFigures {
    /// Counts something.
    pub(crate) fn count(&self, count: impl FnOnce(&mut Figures)) {
        count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The figures of now.
    #[must_use]
    pub(crate) fn get(&self) -> Figures {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
