//! Payload through threads that call `pread` and `pwrite`.
#![expect(
    unsafe_code,
    reason = "memory that others may write has no slice for the standard library"
)]

use std::io;
use std::os::fd::AsRawFd as _;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::Direction;
use super::folder::{QUEUE_TRANSFERS, Queue, Work};

/// Transfers that are under way at once.
const THREADS: usize = 8;

/// Threads that take transfers in order. They end when the queue is dropped.
#[derive(Debug)]
pub(super) struct PosixQueue {
    works: Sender<Work>,
}

impl PosixQueue {
    pub(super) fn start() -> io::Result<Self> {
        let (works, queue) = bounded(QUEUE_TRANSFERS);
        for _ in 0..THREADS {
            let queue: Receiver<Work> = queue.clone();
            let thread = std::thread::Builder::new().name("rackline-drive".to_owned());
            thread.spawn(move || {
                for work in queue {
                    carry_out(work);
                }
            })?;
        }
        Ok(Self { works })
    }
}

impl Queue for PosixQueue {
    fn submit(&self, work: Work) -> Result<(), Work> {
        self.works.try_send(work).map_err(|refused| match refused {
            TrySendError::Full(work) | TrySendError::Disconnected(work) => work,
        })
    }
}

fn carry_out(mut work: Work) {
    let mut moved = 0;
    let outcome = loop {
        if moved == work.transfer.bytes {
            break Ok(());
        }
        match step(&mut work, moved) {
            Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => moved += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
    };
    work.finish(outcome);
}

/// Moves some bytes of what is left. Says how many.
fn step(work: &mut Work, moved: usize) -> io::Result<usize> {
    let (memory, bytes, offset) = work.rest(moved);
    let offset = i64::try_from(offset).map_err(io::Error::other)?;
    let file = work.file.as_raw_fd();
    let count = match work.transfer.direction {
        // SAFETY: `Transfer::check` found the range inside the buffer, which is ours to write to
        // until `finish` (DRIVE-I1).
        Direction::Read => unsafe { libc::pread(file, memory.cast(), bytes, offset) },
        // SAFETY: as above; the call only reads the memory, which may change meanwhile.
        Direction::Write => unsafe { libc::pwrite(file, memory.cast(), bytes, offset) },
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
