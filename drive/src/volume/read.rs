//! Blocks on their way back.

use std::io;
use std::sync::Arc;

use crc_fast::CrcAlgorithm;
use kv_cache::{BlockKey, NamespaceTag};

use super::{Volume, bytes_of, offset_of};
use crate::format::{Page, pages_of, read_directory};
use crate::index::Located;
use crate::io::{Buffer, Direction, FileId, Finished, Transfer};

/// A block that is kept, without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredBlock {
    /// What it is known by.
    pub key: BlockKey,
    /// Length of its payload in bytes.
    pub bytes: u32,
    /// CRC-32C of its payload, as it was published.
    pub crc: u32,
    /// Blocks before it in its prefix.
    pub depth: u16,
    /// Its namespace, for accounting.
    pub tag: NamespaceTag,
}

/// Why a block was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadMiss {
    /// It is not on the drive.
    #[error("the block is not on the drive")]
    NotFound,
    /// It left the drive while it was read.
    #[error("the block was removed while it was read")]
    Removed,
    /// Its bytes are not those of its publication. It is removed.
    #[error("the block is damaged: its checksum differs; it is removed")]
    Damaged,
    /// The buffer is shorter than the block in whole pages, or lent for writes.
    #[error("the buffer does not take the block, which needs {needed} bytes in whole pages")]
    BufferTooShort {
        /// Bytes of the block, in whole pages of 4 KiB.
        needed: usize,
    },
    /// The queue of the device is full.
    #[error("the queue of the device is full")]
    QueueFull,
    /// The device failed a moment ago. It is tried again by itself.
    #[error("the device failed before, and is not tried again yet")]
    Marked,
    /// The device failed.
    #[error("cannot read the block: {0}")]
    System(#[source] io::Error),
}

/// Bytes that were read, and are not yet checked.
#[derive(Debug)]
pub struct Unverified {
    volume: Arc<Volume>,
    key: BlockKey,
    at: Located,
    finished: Finished,
}

/// Called once when a read is over.
pub type ReadDone = Box<dyn FnOnce(Unverified) + Send>;

impl Volume {
    /// Length of a block in bytes, when it is here.
    #[must_use]
    pub fn find(&self, key: &BlockKey) -> Option<u32> {
        self.state().index.find(key).map(|at| at.bytes)
    }

    /// A block without its payload, when it is here.
    #[must_use]
    pub fn block(&self, key: &BlockKey) -> Option<StoredBlock> {
        let Located { bytes, crc, depth, tag, .. } = self.state().index.find(key)?;
        Some(StoredBlock { key: *key, bytes, crc, depth, tag })
    }

    /// Begins to read a block to the beginning of `buffer`: memory of the caller's, or the payload
    /// slot that a restore has reserved ([`Buffer::lent`]). `done` is called on a thread of the drive.
    /// That the block is used the caller says itself ([`used`](Self::used)).
    ///
    /// # Errors
    /// The buffer, and why the block is a miss at once.
    pub fn read(
        self: &Arc<Self>,
        key: BlockKey,
        buffer: Buffer,
        done: ReadDone,
    ) -> Result<(), (Buffer, ReadMiss)> {
        let (at, file) = match self.begin_read(&key) {
            Ok(found) => found,
            Err(miss) => return Err((buffer, miss)),
        };
        let needed = bytes_of(pages_of(at.bytes));
        if buffer.capacity() < needed || !buffer.may_be_written() {
            return Err((buffer, ReadMiss::BufferTooShort { needed }));
        }
        let transfer = Transfer {
            file,
            offset: offset_of(at.first_page),
            buffer,
            buffer_offset: 0,
            bytes: needed,
            direction: Direction::Read,
        };
        let volume = Arc::clone(self);
        let ends = move |finished: Finished| done(Unverified { volume, key, at, finished });
        let refused = self.drive.submit(transfer, Box::new(ends));
        refused.map_err(|transfer| (transfer.buffer, ReadMiss::QueueFull))
    }

    fn begin_read(&self, key: &BlockKey) -> Result<(Located, FileId), ReadMiss> {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let at = state.index.find(key).ok_or(ReadMiss::NotFound)?;
        if !state.health.reads.allows(now_ms) {
            return Err(ReadMiss::Marked);
        }
        let data = state.segment(at.slot).map(|segment| segment.data);
        data.map(|data| (at, data)).ok_or(ReadMiss::NotFound)
    }

    /// The caller waited for a read until its deadline, and waits no longer. Three in a row mark
    /// the device.
    pub fn read_was_late(&self) {
        let now_ms = self.now_ms();
        self.state().health.read_was_late(now_ms);
    }

    /// The pages that a block consists of, each with its identity.
    ///
    /// # Errors
    /// [`ReadMiss`].
    pub fn pages(&self, key: &BlockKey) -> Result<Option<Vec<Page>>, ReadMiss> {
        let (at, data) = self.begin_read(key)?;
        if at.directory_pages == 0 {
            return Ok(None);
        }
        let first_page = at.first_page + pages_of(at.bytes);
        let Some(segment) = self.state().segment(at.slot).map(|segment| segment.id) else {
            return Err(ReadMiss::Removed);
        };
        let (tell, told) = crossbeam_channel::bounded(1);
        let bytes = bytes_of(at.directory_pages);
        let transfer = Transfer {
            file: data,
            offset: offset_of(first_page),
            buffer: Buffer::zeroed(bytes).map_err(ReadMiss::System)?,
            buffer_offset: 0,
            bytes,
            direction: Direction::Read,
        };
        let ends = move |finished: Finished| drop(tell.send(finished));
        self.drive.submit(transfer, Box::new(ends)).map_err(|_| ReadMiss::QueueFull)?;
        let stopped = || ReadMiss::System(io::Error::other("the drive has stopped"));
        let finished = told.recv().map_err(|_| stopped())?;
        finished.outcome.map_err(|error| self.read_failed(error))?;
        let memory = finished.buffer.bytes().unwrap_or_default();
        let pages = read_directory(self.folder, segment, first_page, &memory[..bytes]);
        pages.map(Some).map_err(|_| self.found_damaged(key, &at))
    }

    fn read_failed(&self, error: io::Error) -> ReadMiss {
        let now_ms = self.now_ms();
        self.state().health.read_failed(now_ms, &error);
        ReadMiss::System(error)
    }

    /// Removes a block whose bytes are not those that were written (DRIVE-D6), unless it is gone.
    fn found_damaged(&self, key: &BlockKey, at: &Located) -> ReadMiss {
        let mut state = self.state();
        if state.index.find(key) != Some(*at) {
            return ReadMiss::Removed;
        }
        state.damaged += 1;
        state.index.remove(key);
        state.leave(at);
        ReadMiss::Damaged
    }
}

impl Unverified {
    /// What the block is known by.
    #[must_use]
    pub const fn key(&self) -> BlockKey {
        self.key
    }

    /// Checks the bytes against the checksum of their publication (DRIVE-D6), and says how many they
    /// are. What is behind them in the buffer has no meaning.
    ///
    /// # Errors
    /// The buffer, and why the block is a miss.
    pub fn verify(self) -> Result<(Buffer, u32), (Buffer, ReadMiss)> {
        let Self { volume, key, at, finished: Finished { buffer, outcome } } = self;
        if let Err(error) = outcome {
            // The file of a segment that is gone is closed: no failure of the device.
            let is_there = volume.state().index.find(&key) == Some(at);
            let miss = if is_there { volume.read_failed(error) } else { ReadMiss::Removed };
            return Err((buffer, miss));
        }
        let found = buffer.bytes().map(|bytes| checksum(&bytes[..at.bytes as usize]));
        if found != Some(at.crc) {
            let miss = volume.found_damaged(&key, &at);
            return Err((buffer, miss));
        }
        volume.state().health.reads.succeeded();
        Ok((buffer, at.bytes))
    }
}

/// CRC-32C of a payload, as it is published.
#[must_use]
pub fn checksum(payload: &[u8]) -> u32 {
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, payload);
    u32::try_from(crc).unwrap_or(0)
}
