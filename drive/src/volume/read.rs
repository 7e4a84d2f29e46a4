//! Blocks on their way back.

use std::io;
use std::sync::Arc;

use crc_fast::CrcAlgorithm;
use kv_cache::{BlockKey, NamespaceTag};

use super::moves::Left;
use super::{Volume, bytes_of, offset_of};
use crate::encoding::{self, Expected, thread_cpu_ns};
use crate::format::{Encoding, Page, pages_of, read_directory};
use crate::index::Located;
use crate::io::{Buffer, Direction, FileId, Finished, PAGE_BYTES, Transfer};

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
    /// How its payload is written.
    pub encoding: Encoding,
    /// Bytes of the payload as it is written, in whole pages of 4 KiB.
    pub stored_bytes: u32,
}

impl StoredBlock {
    fn new(key: BlockKey, at: &Located) -> Self {
        let Located { bytes, crc, depth, tag, encoding, stored_pages, .. } = *at;
        Self { key, bytes, crc, depth, tag, encoding, stored_bytes: stored_pages * PAGE_BYTES }
    }

    /// Whether this version of the program can read the block.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        !matches!(self.encoding, Encoding::Unknown(_))
    }

    /// Bytes that a buffer needs to read the block: the payload in whole pages, and behind that what
    /// is written, where it is encoded.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        let encoded = if self.encoding == Encoding::Raw { 0 } else { self.stored_bytes as usize };
        bytes_of(pages_of(self.bytes)) + encoded
    }
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
    /// The buffer is shorter than the block needs ([`StoredBlock::buffer_bytes`]), or lent for writes.
    #[error("the buffer does not take the block, which needs {needed} bytes")]
    BufferTooShort {
        /// Bytes that it needs.
        needed: usize,
    },
    /// A later version of this program has encoded it. It stays.
    #[error(
        "the encoding of the block has number {0}, which this version does not know; use a later one"
    )]
    UnknownEncoding(u8),
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
        Some(StoredBlock::new(*key, &self.state().index.find(key)?))
    }

    /// Begins to read a block to `buffer`, which has the payload at its beginning once it is verified:
    /// memory of the caller's, or the payload slot that a restore has reserved ([`Buffer::lent`]). It
    /// has at least [`StoredBlock::buffer_bytes`]. `done` is called on a thread of the drive.
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
        if let Encoding::Unknown(code) = at.encoding {
            return Err((buffer, ReadMiss::UnknownEncoding(code)));
        }
        let needed = StoredBlock::new(key, &at).buffer_bytes();
        if buffer.capacity() < needed || !buffer.may_be_written() {
            return Err((buffer, ReadMiss::BufferTooShort { needed }));
        }
        let transfer = Transfer {
            file,
            offset: offset_of(at.first_page),
            buffer,
            // Encoded bytes lie behind the payload that they become.
            buffer_offset: needed - bytes_of(at.stored_pages),
            bytes: bytes_of(at.stored_pages),
            direction: Direction::Read,
        };
        let volume = Arc::clone(self);
        let ends = move |finished: Finished| done(Unverified { volume, key, at, finished });
        let refused = self.submit(transfer, Box::new(ends));
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
        let first_page = at.first_page + at.stored_pages;
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
        self.submit(transfer, Box::new(ends)).map_err(|_| ReadMiss::QueueFull)?;
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
        state.index.remove(key);
        state.leave(at, Left::Damaged);
        ReadMiss::Damaged
    }
}

impl Unverified {
    /// What the block is known by.
    #[must_use]
    pub const fn key(&self) -> BlockKey {
        self.key
    }

    /// Decodes the bytes where they are encoded, checks them against the checksum of their publication
    /// (DRIVE-D6), and says how many they are. What is behind them in the buffer has no meaning.
    ///
    /// # Errors
    /// The buffer, and why the block is a miss.
    pub fn verify(self) -> Result<(Buffer, u32), (Buffer, ReadMiss)> {
        let Self { volume, key, at, finished: Finished { mut buffer, outcome } } = self;
        if let Err(error) = outcome {
            // The file of a segment that is gone is closed: no failure of the device.
            let is_there = volume.state().index.find(&key) == Some(at);
            let miss = if is_there { volume.read_failed(error) } else { ReadMiss::Removed };
            return Err((buffer, miss));
        }
        let before_ns = if at.encoding == Encoding::Raw { 0 } else { thread_cpu_ns() };
        let is_decoded = decode(key, &at, &mut buffer);
        let found = buffer.bytes().map(|bytes| checksum(&bytes[..at.bytes as usize]));
        if !is_decoded || found != Some(at.crc) {
            let miss = volume.found_damaged(&key, &at);
            return Err((buffer, miss));
        }
        let mut state = volume.state();
        state.health.reads.succeeded();
        if at.encoding == Encoding::Raw {
            state.raw_read_bytes += u64::from(at.bytes);
        } else {
            state.decoded.blocks += 1;
            state.decoded.bytes += u64::from(at.bytes);
            state.decoded.cpu_ns += thread_cpu_ns().saturating_sub(before_ns);
        }
        drop(state);
        Ok((buffer, at.bytes))
    }
}

/// Decodes what was read behind the payload to its place. Says whether it could be (DRIVE-E1).
fn decode(key: BlockKey, at: &Located, buffer: &mut Buffer) -> bool {
    let Located { bytes, crc, encoding, stored_pages, .. } = *at;
    if encoding == Encoding::Raw {
        return true;
    }
    let all = buffer.bytes_mut().unwrap_or_default();
    let behind = bytes_of(pages_of(bytes));
    let Some((payload, stored)) = all.split_at_mut_checked(behind) else { return false };
    let parts = payload.get_mut(..bytes as usize).zip(stored.get(..bytes_of(stored_pages)));
    let Some((payload, stored)) = parts else { return false };
    match encoding::decode(stored, &Expected { key, encoding, bytes, crc }, payload) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(?key, "a block is not decoded: {error}");
            false
        }
    }
}

/// CRC-32C of a payload, as it is published.
#[must_use]
pub fn checksum(payload: &[u8]) -> u32 {
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, payload);
    u32::try_from(crc).unwrap_or(0)
}
