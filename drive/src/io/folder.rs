//! A folder of the operating system.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::fs::{self, AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::posix::PosixQueue;
use super::turns::PIECE_BYTES;
use super::uring::UringQueue;
use super::{Content, Direction, Done, Drive, EngineKind, FileId, PAGE_BYTES, Transfer};

/// Blocks of all tenants are in the files: no other user reads them.
const OURS: Mode = Mode::RUSR.union(Mode::WUSR);

/// The file whose lock says that a process owns the folder.
const LOCK: &str = "lock";

/// Why a folder could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenFolderError {
    /// The system refused.
    #[error("cannot {action} {}: {source}; check that the folder exists and that this user may \
             write to it", .folder.display())]
    System {
        /// The folder.
        folder: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{} belongs to another process, which has its lock; stop that process, or give another \
             folder", .folder.display())]
    Owned {
        /// The folder.
        folder: PathBuf,
    },
}

/// Moves payload between open files and buffers.
pub(super) trait Queue: Send + Sync + std::fmt::Debug {
    fn submit(&self, work: Work) -> Result<(), Work>;
}

/// A transfer, its file and the call that ends it.
pub(super) struct Work {
    pub(super) file: Arc<File>,
    transfer: Transfer,
    done: Done,
    moved: usize,
}

/// A folder of the operating system, owned by this process while it is open.
#[derive(Debug)]
pub struct FolderDrive {
    path: PathBuf,
    folder: File,
    /// Open as long as the folder is owned.
    _lock: File,
    files: RwLock<HashMap<FileId, Arc<File>>>,
    next: Mutex<u64>,
    queue: Box<dyn Queue>,
    engine: EngineKind,
    /// Whether payload goes past the page cache.
    direct: bool,
}

impl FolderDrive {
    /// Opens `path` and locks it. `engine` is what to try first: where the kernel refuses
    /// `io_uring`, the log says why and `posix` takes its place. Where the file system refuses
    /// `O_DIRECT`, the log says so and payload goes through the page cache.
    ///
    /// # Errors
    /// [`OpenFolderError`].
    pub fn open(path: &Path, engine: EngineKind) -> Result<Self, OpenFolderError> {
        let failed = |action| {
            move |source: Errno| OpenFolderError::System {
                folder: path.to_owned(),
                action,
                source: source.into(),
            }
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = File::from(fs::open(path, flags, Mode::empty()).map_err(failed("open"))?);
        let lock = Self::lock(path, &folder, failed("lock"))?;
        let direct = probe_direct(path, &folder).map_err(failed("write to"))?;
        let ring = match engine {
            EngineKind::Posix | EngineKind::Simulated => None,
            EngineKind::Uring => match UringQueue::start() {
                Ok(queue) => Some(queue),
                Err(error) => {
                    tracing::warn!(
                        folder = %path.display(),
                        "no io_uring: {}; posix threads take its place",
                        why_no_ring(&error)
                    );
                    None
                }
            },
        };
        let (engine, queue): (_, Box<dyn Queue>) = match ring {
            Some(queue) => (EngineKind::Uring, Box::new(queue)),
            None => {
                let threads = PosixQueue::start().map_err(|source| OpenFolderError::System {
                    folder: path.to_owned(),
                    action: "start threads for",
                    source,
                })?;
                (EngineKind::Posix, Box::new(threads))
            }
        };
        let (files, next) = Default::default();
        Ok(Self { path: path.to_owned(), folder, _lock: lock, files, next, queue, engine, direct })
    }

    fn lock(
        path: &Path,
        folder: &File,
        failed: impl Fn(Errno) -> OpenFolderError,
    ) -> Result<File, OpenFolderError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let lock = fs::openat(folder, LOCK, flags, OURS).map_err(&failed)?;
        match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(File::from(lock)),
            Err(Errno::WOULDBLOCK) => Err(OpenFolderError::Owned { folder: path.to_owned() }),
            Err(error) => Err(failed(error)),
        }
    }

    fn file(&self, file: FileId) -> io::Result<Arc<File>> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(&file).cloned().ok_or_else(|| io::Error::other("the file is closed"))
    }

    fn add(&self, file: File) -> FileId {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 1;
        let id = FileId(*next);
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::new(file));
        id
    }

    fn flags(&self, content: Content) -> OFlags {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let direct = self.direct && content == Content::Payload;
        if direct { flags | OFlags::DIRECT } else { flags }
    }
}

/// Whether the file system takes transfers past the page cache in pages.
fn probe_direct(path: &Path, folder: &File) -> Result<bool, Errno> {
    const PROBE: &str = "probe";
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let outcome = fs::openat(folder, PROBE, flags | OFlags::DIRECT, OURS);
    let found = match outcome {
        Ok(probe) => {
            // A kernel before 6.1 does not say: then a transfer of 4 KiB is tried by its use.
            let asked = fs::statx(&probe, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
            let align = asked.ok().filter(|it| it.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
            Ok(align.is_none_or(|it| {
                let unit = it.stx_dio_offset_align.max(it.stx_dio_mem_align);
                unit != 0 && unit <= PAGE_BYTES
            }))
        }
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    };
    match fs::unlinkat(folder, PROBE, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    if found == Ok(false) {
        tracing::warn!(
            folder = %path.display(),
            "the file system takes no transfers of 4 KiB past the page cache (O_DIRECT); payload \
             goes through the page cache, which takes memory of the host"
        );
    }
    found
}

/// What keeps the kernel from making a ring, and what to do.
fn why_no_ring(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM) => format!("{error}; raise the limit of locked memory (ulimit -l)"),
        Some(Errno::NOSYS) => format!("{error}; it takes Linux 5.6 or later"),
        Some(Errno::PERM) => format!(
            "{error}; allow it in the container's seccomp profile, and in \
             /proc/sys/kernel/io_uring_disabled"
        ),
        _ => error.to_string(),
    }
}

impl Drive for FolderDrive {
    fn engine(&self) -> EngineKind {
        self.engine
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            // A name that is no text is not ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn create(&self, name: &str, content: Content, reserve: u64) -> io::Result<FileId> {
        let flags = self.flags(content) | OFlags::CREATE | OFlags::TRUNC;
        let file = File::from(fs::openat(&self.folder, name, flags, OURS)?);
        if reserve > 0 {
            match fs::fallocate(&file, FallocateFlags::empty(), 0, reserve) {
                Ok(()) => {}
                // The file grows as it is written; its length is what readers expect.
                Err(Errno::OPNOTSUPP) => file.set_len(reserve)?,
                Err(error) => {
                    // A part of it may be allocated.
                    let _ = fs::unlinkat(&self.folder, name, AtFlags::empty());
                    return Err(error.into());
                }
            }
        }
        Ok(self.add(file))
    }

    fn open(&self, name: &str, content: Content) -> io::Result<FileId> {
        let file = fs::openat(&self.folder, name, self.flags(content), Mode::empty())?;
        Ok(self.add(File::from(file)))
    }

    fn close(&self, file: FileId) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&file);
    }

    fn length(&self, file: FileId) -> io::Result<u64> {
        Ok(self.file(file)?.metadata()?.len())
    }

    fn allocated(&self, file: FileId) -> io::Result<u64> {
        // The unit of this number is 512 bytes on every file system.
        Ok(self.file(file)?.metadata()?.blocks() * 512)
    }

    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file(file)?.read_exact_at(bytes, offset)
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(file)?.write_all_at(bytes, offset)
    }

    fn sync(&self, file: FileId) -> io::Result<()> {
        Ok(fs::fdatasync(&*self.file(file)?)?)
    }

    fn punch(&self, file: FileId, offset: u64, bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fs::fallocate(&*self.file(file)?, flags, offset, bytes)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.folder, from, &self.folder, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(&self.folder, name, AtFlags::empty())?)
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(fs::fsync(&self.folder)?)
    }

    fn room(&self) -> io::Result<u64> {
        let stat = fs::fstatvfs(&self.folder)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn submit(&self, transfer: Transfer, done: Done) -> Result<(), Transfer> {
        let checked = transfer.check().and_then(|()| self.file(transfer.file));
        match checked {
            Ok(file) => self
                .queue
                .submit(Work { file, transfer, done, moved: 0 })
                .map_err(|work| work.transfer),
            Err(error) => {
                done(super::Finished { buffer: transfer.buffer, outcome: Err(error) });
                Ok(())
            }
        }
    }
}

impl Work {
    pub(super) fn direction(&self) -> Direction {
        self.transfer.direction
    }

    /// Hands the buffer back.
    pub(super) fn finish(self, outcome: io::Result<()>) {
        (self.done)(super::Finished { buffer: self.transfer.buffer, outcome });
    }

    /// Address, length and offset of what is moved next: all that is left of a read, a piece of a
    /// write (DRIVE-I5).
    pub(super) fn next_part(&mut self) -> (*mut u8, usize, u64) {
        let at = self.transfer.buffer_offset + self.moved;
        let left = self.transfer.bytes - self.moved;
        let offset = self.transfer.offset + self.moved as u64;
        match self.transfer.direction {
            Direction::Read => (self.transfer.buffer.address_mut(at), left, offset),
            Direction::Write => {
                // The kernel only reads it.
                let memory = self.transfer.buffer.address().wrapping_add(at).cast_mut();
                (memory, left.min(PIECE_BYTES), offset)
            }
        }
    }

    /// The system moved `bytes` more. Says whether that is all.
    pub(super) fn moved(&mut self, bytes: usize) -> bool {
        self.moved += bytes;
        self.moved >= self.transfer.bytes
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("transfer", &self.transfer).finish_non_exhaustive()
    }
}
