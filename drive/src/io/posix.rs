//! Payload through threads that call `pread` and `pwrite`.
#![expect(
    unsafe_code,
    reason = "memory that others may write has no slice for the standard library"
)]

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cxl_shm::clock::SystemClock;

use super::Direction;
use super::folder::{Queue, Work};
use super::turns::{Turn, Turns};

/// Transfers that are under way at once.
const THREADS: usize = 8;

/// Threads that take transfers by turns. They end when the queue is dropped.
#[derive(Debug)]
pub(super) struct PosixQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    turns: Mutex<Turns<Work>>,
    changed: Condvar,
    clock: SystemClock,
}

impl Shared {
    fn turns(&self) -> MutexGuard<'_, Turns<Work>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next transfer; `None` when no more come.
    fn next(&self) -> Option<Work> {
        let mut turns = self.turns();
        loop {
            turns = match turns.next(self.clock.now_us()) {
                Turn::Begin(work) => return Some(work),
                Turn::Wait(us) => {
                    let waited = self.changed.wait_timeout(turns, Duration::from_micros(us));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Turn::Idle if turns.is_over() => return None,
                Turn::Idle => self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn run(&self) {
        while let Some(mut work) = self.next() {
            let direction = work.direction();
            let outcome = carry_out(&mut work);
            let mut turns = self.turns();
            turns.ended(direction, self.clock.now_us());
            let ended = match outcome {
                Ok(false) => {
                    turns.go_on(work);
                    None
                }
                Ok(true) => Some((work, Ok(()))),
                Err(error) => Some((work, Err(error))),
            };
            drop(turns);
            self.changed.notify_all();
            if let Some((work, outcome)) = ended {
                work.finish(outcome);
            }
        }
    }
}

impl PosixQueue {
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            turns: Mutex::default(),
            changed: Condvar::new(),
            clock: SystemClock::start(),
        });
        // Dropped when a thread cannot be started: those that were end.
        let queue = Self(shared);
        for _ in 0..THREADS {
            let shared = Arc::clone(&queue.0);
            let thread = std::thread::Builder::new().name("rackline-drive".to_owned());
            thread.spawn(move || shared.run())?;
        }
        Ok(queue)
    }
}

impl Queue for PosixQueue {
    fn submit(&self, work: Work) -> Result<(), Work> {
        self.0.turns().push(work.direction(), work)?;
        self.0.changed.notify_one();
        Ok(())
    }
}

impl Drop for PosixQueue {
    fn drop(&mut self) {
        self.0.turns().close();
        self.0.changed.notify_all();
    }
}

/// Moves the next part. Says whether that was the last.
fn carry_out(work: &mut Work) -> io::Result<bool> {
    let (_, mut left, _) = work.next_part();
    loop {
        match step(work, left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                let is_last = work.moved(bytes);
                left -= bytes;
                if left == 0 || is_last {
                    return Ok(is_last);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Moves some of `left` bytes. Says how many.
fn step(work: &mut Work, left: usize) -> io::Result<usize> {
    let (memory, bytes, offset) = work.next_part();
    let bytes = bytes.min(left);
    let offset = i64::try_from(offset).map_err(io::Error::other)?;
    let file = work.file.as_raw_fd();
    let count = match work.direction() {
        // SAFETY: `Transfer::check` found the range inside the buffer, which is ours to write to
        // until `finish` (DRIVE-I1).
        Direction::Read => unsafe { libc::pread(file, memory.cast(), bytes, offset) },
        // SAFETY: as above; the call only reads the memory, which may change meanwhile.
        Direction::Write => unsafe { libc::pwrite(file, memory.cast(), bytes, offset) },
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
