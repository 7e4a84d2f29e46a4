//! How bytes reach a folder of a drive: one trait, [`Drive`], and what implements it.
//!
//! [`FolderDrive`] is a folder of the operating system. Payload goes through a queue, that of
//! `io_uring` or of the threads of `posix`; what is small goes through plain calls. With the feature
//! `sim` there are drives that fail, and drives that remember what a crash may leave of them.
//!
//! - **DRIVE-I1**: A buffer belongs to the drive from the submission of its transfer to the call that
//!   hands it back. A caller that stops waiting loses the buffer, and nothing else: the kernel may
//!   still write to it.
//! - **DRIVE-I2**: A transfer of payload begins and ends at a multiple of [`PAGE_BYTES`], in the file
//!   and in memory. The drive checks that itself, because `tmpfs` takes any `O_DIRECT` transfer.
//! - **DRIVE-I3**: A queue is bounded. A transfer that finds the queue full comes back at once, and
//!   its block is a miss.
//! - **DRIVE-I6**: A call for metadata comes back within [`LONGEST_CALL`] after the calls before it.
//!   Otherwise the device counts as silent: this call and all others fail with `TimedOut`, at once,
//!   until the device has ended the call. As after an error, what the call has changed is unknown.
//!   A file that it makes too late is removed.
//!
//! `turns` says which transfer is next (DRIVE-I4, DRIVE-I5).

mod bounded;
mod buffer;
#[cfg(feature = "sim")]
pub mod faulty;
mod folder;
pub(crate) mod open_files;
mod posix;
#[cfg(feature = "sim")]
pub mod recorded;
#[cfg(test)]
mod tests;
mod turns;
mod uring;

use std::fmt;
use std::io;

pub use bounded::{BoundedDrive, CallThread, LONGEST_CALL};
pub use buffer::Buffer;
pub use folder::{FolderDrive, OpenFolderError};
pub use open_files::TooFewOpenFiles;
pub use turns::longest_write;

/// Bytes of a page of a drive: the unit in which extents are aligned, and tables written.
pub const PAGE_BYTES: u32 = 4096;

/// Which engine moves payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// `io_uring`: one thread, one ring.
    Uring,
    /// Threads that call `pread` and `pwrite`.
    Posix,
    /// Memory of a test.
    Simulated,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "io_uring",
            Self::Posix => "posix",
            Self::Simulated => "simulated",
        })
    }
}

/// An open file of a drive. The number of a closed file is not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub(crate) u64);

/// What a file holds, and so how it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Payload: whole pages, past the page cache where the file system allows that.
    Payload,
    /// Small records, through the page cache.
    Records,
}

/// Which way payload goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the file into the buffer.
    Read,
    /// From the buffer into the file.
    Write,
}

/// Payload that is to be moved.
#[derive(Debug)]
pub struct Transfer {
    /// Between which file and the buffer.
    pub file: FileId,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// The memory.
    pub buffer: Buffer,
    /// Where in the buffer, in bytes.
    pub buffer_offset: usize,
    /// How many bytes.
    pub bytes: usize,
    /// Which way.
    pub direction: Direction,
}

impl Transfer {
    /// Whether the transfer keeps DRIVE-I2 and stays inside its buffer.
    ///
    /// # Errors
    /// `InvalidInput` that names what is not aligned.
    pub(crate) fn check(&self) -> io::Result<()> {
        let page = u64::from(PAGE_BYTES);
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let end = self.buffer_offset.checked_add(self.bytes);
        if end.is_none_or(|end| end > self.buffer.capacity()) {
            return wrong(format!("{} bytes do not fit the buffer", self.bytes));
        }
        let memory = self.buffer.address() as u64 + self.buffer_offset as u64;
        for (name, value) in
            [("offset", self.offset), ("memory", memory), ("length", self.bytes as u64)]
        {
            if !value.is_multiple_of(page) {
                return wrong(format!("{name} {value:#x} is no multiple of {page} (DRIVE-I2)"));
            }
        }
        if self.direction == Direction::Read && !self.buffer.may_be_written() {
            return wrong("the buffer is lent for writes to the drive only".to_owned());
        }
        Ok(())
    }
}

/// A transfer that is over: its buffer, and whether all bytes were moved.
#[derive(Debug)]
pub struct Finished {
    /// The memory of the transfer.
    pub buffer: Buffer,
    /// Whether all bytes were moved.
    pub outcome: io::Result<()>,
}

/// Called once when a transfer is over, on a thread of the drive. It must not block. A drive that
/// stops drops it without a call.
pub type Done = Box<dyn FnOnce(Finished) + Send>;

/// A folder on a drive, as the store uses it.
///
/// Nothing is durable before it is synced: the bytes and the length of a file by
/// [`sync`](Self::sync), names by [`sync_folder`](Self::sync_folder).
pub trait Drive: Send + Sync + fmt::Debug {
    /// Which engine moves payload.
    fn engine(&self) -> EngineKind;

    /// The names of the files in the folder.
    ///
    /// # Errors
    /// The system's.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file, or empties the file of that name. `reserve` bytes are allocated and read
    /// as zeros.
    ///
    /// # Errors
    /// The system's; `StorageFull` when the drive has not that much.
    fn create(&self, name: &str, content: Content, reserve: u64) -> io::Result<FileId>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, name: &str, content: Content) -> io::Result<FileId>;

    /// Closes a file. Transfers that are under way end first.
    fn close(&self, file: FileId);

    /// Length of a file in bytes.
    ///
    /// # Errors
    /// The system's.
    fn length(&self, file: FileId) -> io::Result<u64>;

    /// Bytes that the drive keeps for a file.
    ///
    /// # Errors
    /// The system's.
    fn allocated(&self, file: FileId) -> io::Result<u64>;

    /// Reads `bytes` whole, at `offset`.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof` when the file ends before.
    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes `bytes` whole, at `offset`.
    ///
    /// # Errors
    /// The system's.
    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes bytes and length of a file durable.
    ///
    /// # Errors
    /// The system's. The bytes since the last success may be lost then, also after a later success.
    fn sync(&self, file: FileId) -> io::Result<()>;

    /// Gives the memory of whole pages back to the drive. They read as zeros.
    ///
    /// # Errors
    /// The system's; `Unsupported` when the file system cannot do that.
    fn punch(&self, file: FileId, offset: u64, bytes: u64) -> io::Result<()>;

    /// Gives a file another name, in place of the file that had it.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Who has it open keeps it.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names in the folder durable.
    ///
    /// # Errors
    /// The system's.
    fn sync_folder(&self) -> io::Result<()>;

    /// Bytes that the drive has left for this user.
    ///
    /// # Errors
    /// The system's.
    fn room(&self) -> io::Result<u64>;

    /// Begins to move payload.
    ///
    /// # Errors
    /// The transfer, when the queue is full (DRIVE-I3) or the drive has stopped. `done` is dropped.
    fn submit(&self, transfer: Transfer, done: Done) -> Result<(), Transfer>;
}
