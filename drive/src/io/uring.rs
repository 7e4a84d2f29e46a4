//! Payload through a ring of `io_uring` that one thread drives.
#![expect(unsafe_code, reason = "requests in a ring name memory by its address")]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};
use io_uring::{IoUring, opcode, squeue, types};

use super::Direction;
use super::folder::{QUEUE_TRANSFERS, Queue, Work};

/// Transfers that the kernel has at once.
const DEPTH: u32 = 128;
/// The request that waits for the bell; all others are places of transfers.
const BELL: u64 = u64::MAX;

/// A ring, and the thread that drives it until the queue is dropped.
#[derive(Debug)]
pub(super) struct UringQueue {
    works: Option<Sender<Work>>,
    bell: Arc<Bell>,
}

/// Wakes the thread, which sleeps in the kernel.
#[derive(Debug)]
struct Bell {
    counter: File,
    /// Set by the thread before it sleeps. The submitter that clears it rings.
    asleep: AtomicBool,
    /// Nothing more is submitted.
    closing: AtomicBool,
}

impl Bell {
    fn ring_if_asleep(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            // It fails only when the counter would overflow, and then the thread is woken already.
            let _ = (&self.counter).write(&1_u64.to_le_bytes());
        }
    }
}

impl UringQueue {
    pub(super) fn start() -> io::Result<Self> {
        let ring = IoUring::new(DEPTH)?;
        // SAFETY: the call has no pointers.
        let counter = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if counter < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor, which nothing else has.
        let counter = unsafe { File::from_raw_fd(counter) };
        let bell = Arc::new(Bell {
            counter,
            asleep: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        });
        let (works, queue) = bounded(QUEUE_TRANSFERS);
        let mut driver = Driver::new(ring, queue, Arc::clone(&bell));
        let thread = std::thread::Builder::new().name("rackline-ring".to_owned());
        thread.spawn(move || driver.run())?;
        Ok(Self { works: Some(works), bell })
    }
}

impl Queue for UringQueue {
    fn submit(&self, work: Work) -> Result<(), Work> {
        let Some(works) = &self.works else { return Err(work) };
        works.try_send(work).map_err(|refused| match refused {
            TrySendError::Full(work) | TrySendError::Disconnected(work) => work,
        })?;
        self.bell.ring_if_asleep();
        Ok(())
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        self.works = None;
        self.bell.closing.store(true, Ordering::SeqCst);
        self.bell.ring_if_asleep();
    }
}

/// A transfer that the kernel has.
struct UnderWay {
    work: Work,
    moved: usize,
}

struct Driver {
    ring: IoUring,
    queue: Receiver<Work>,
    bell: Arc<Bell>,
    /// Where the kernel puts what it reads from the bell: outlives the ring.
    rung: Box<u64>,
    bell_is_read: bool,
    /// By the number of the request. A place is empty before its request is used again.
    under_way: Vec<Option<UnderWay>>,
    free: Vec<usize>,
    closed: bool,
}

impl Driver {
    fn new(ring: IoUring, queue: Receiver<Work>, bell: Arc<Bell>) -> Self {
        // One request is that of the bell.
        let places = DEPTH as usize - 1;
        Self {
            ring,
            queue,
            bell,
            rung: Box::new(0),
            bell_is_read: false,
            under_way: (0..places).map(|_| None).collect(),
            free: (0..places).collect(),
            closed: false,
        }
    }

    fn run(&mut self) {
        loop {
            self.take_works();
            if self.closed && self.free.len() == self.under_way.len() {
                return;
            }
            self.read_bell();
            self.bell.asleep.store(true, Ordering::SeqCst);
            // What came between the last look and the store rings no bell.
            let closes = self.bell.closing.load(Ordering::SeqCst) && !self.closed;
            if closes || !self.queue.is_empty() && !self.free.is_empty() {
                self.bell.asleep.store(false, Ordering::SeqCst);
                continue;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    tracing::error!("the ring of io_uring fails: {error}; its blocks are misses");
                    return self.give_up();
                }
            }
            self.bell.asleep.store(false, Ordering::SeqCst);
            self.reap();
        }
    }

    fn take_works(&mut self) {
        while let Some(place) = self.free.pop() {
            match self.queue.try_recv() {
                Ok(work) => {
                    self.under_way[place] = Some(UnderWay { work, moved: 0 });
                    self.begin(place);
                }
                Err(error) => {
                    self.free.push(place);
                    self.closed |= error == TryRecvError::Disconnected;
                    return;
                }
            }
        }
    }

    /// Asks the kernel for what is left of the transfer at `place`.
    fn begin(&mut self, place: usize) {
        let Some(UnderWay { work, moved }) = &mut self.under_way[place] else { return };
        let (memory, bytes, offset) = work.rest(*moved);
        // A call moves at most 2 GiB less a page.
        let length = u32::try_from(bytes).unwrap_or(u32::MAX).min(1 << 30);
        let file = types::Fd(work.file.as_raw_fd());
        let request = match work.transfer.direction {
            Direction::Read => opcode::Read::new(file, memory, length).offset(offset).build(),
            Direction::Write => opcode::Write::new(file, memory, length).offset(offset).build(),
        };
        self.push(&request.user_data(place as u64));
    }

    fn read_bell(&mut self) {
        if !std::mem::replace(&mut self.bell_is_read, true) {
            let file = types::Fd(self.bell.counter.as_raw_fd());
            let memory = std::ptr::from_mut(&mut *self.rung).cast();
            self.push(&opcode::Read::new(file, memory, 8).build().user_data(BELL));
        }
    }

    fn push(&mut self, request: &squeue::Entry) {
        // SAFETY: the request names a file that `under_way` or the bell keeps open, and memory that
        // `under_way` keeps (DRIVE-I1) or that is of this driver. Neither is dropped before the
        // request is reaped, or ever, when the ring fails.
        let pushed = unsafe { self.ring.submission().push(request) };
        pushed.expect("the ring has as many entries as there are places, and one for the bell");
    }

    fn reap(&mut self) {
        let ended: Vec<_> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (request, result) in ended {
            if request == BELL {
                self.bell_is_read = false;
                continue;
            }
            let Ok(place) = usize::try_from(request) else { continue };
            self.end(place, result);
        }
    }

    fn end(&mut self, place: usize, result: i32) {
        let Some(it) = &mut self.under_way[place] else { return };
        let outcome = match usize::try_from(result) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                it.moved += bytes;
                if it.moved < it.work.transfer.bytes {
                    return self.begin(place);
                }
                Ok(())
            }
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        if outcome.as_ref().is_err_and(is_passing) {
            return self.begin(place);
        }
        if let Some(it) = self.under_way[place].take() {
            self.free.push(place);
            it.work.finish(outcome);
        }
    }

    /// The kernel may still use the memory of what is under way: that is never freed.
    fn give_up(&mut self) {
        for it in self.under_way.iter_mut().filter_map(Option::take) {
            std::mem::forget(it);
        }
        std::mem::forget(std::mem::take(&mut self.rung));
    }
}

/// Whether the same call succeeds later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
