//! Payload through a ring of `io_uring` that one thread drives.
#![expect(unsafe_code, reason = "requests in a ring name memory by its address")]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxl_shm::clock::SystemClock;
use io_uring::types::Timespec;
use io_uring::{IoUring, opcode, squeue, types};

use super::Direction;
use super::folder::{Queue, Work};
use super::turns::{Turn, Turns};

/// Requests that the kernel has at once.
const DEPTH: u32 = 128;
/// The request that waits for the bell.
const BELL: u64 = u64::MAX;
/// The request that waits for a time. All others are places of transfers.
const TIMER: u64 = u64::MAX - 1;

/// A ring, and the thread that drives it until the queue is dropped.
#[derive(Debug)]
pub(super) struct UringQueue(Arc<Shared>);

/// What submitters and the thread share.
#[derive(Debug)]
struct Shared {
    turns: Mutex<Turns<Work>>,
    /// Wakes the thread, which sleeps in the kernel.
    bell: File,
    /// Set by the thread before it sleeps. The submitter that clears it rings.
    asleep: AtomicBool,
    /// Set with the lock of `turns` held when the ring has failed: nothing is taken any more.
    failed: AtomicBool,
}

impl Shared {
    fn turns(&self) -> MutexGuard<'_, Turns<Work>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring_if_asleep(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            // It fails only when the counter would overflow, and then the thread is woken already.
            let _ = (&self.bell).write(&1_u64.to_le_bytes());
        }
    }
}

impl UringQueue {
    pub(super) fn start() -> io::Result<Self> {
        let ring = IoUring::new(DEPTH)?;
        // SAFETY: the call has no pointers.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor, which nothing else has.
        let bell = unsafe { File::from_raw_fd(bell) };
        let shared = Arc::new(Shared {
            turns: Mutex::default(),
            bell,
            asleep: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let mut driver = Driver::new(ring, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("rackline-ring".to_owned());
        thread.spawn(move || driver.run())?;
        Ok(Self(shared))
    }
}

impl Queue for UringQueue {
    fn submit(&self, work: Work) -> Result<(), Work> {
        let mut turns = self.0.turns();
        if self.0.failed.load(Ordering::SeqCst) {
            return Err(work);
        }
        turns.push(work.direction(), work)?;
        drop(turns);
        self.0.ring_if_asleep();
        Ok(())
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        self.0.turns().close();
        self.0.ring_if_asleep();
    }
}

struct Driver {
    ring: IoUring,
    shared: Arc<Shared>,
    clock: SystemClock,
    /// Where the kernel puts what it reads from the bell: outlives the ring.
    rung: Box<u64>,
    bell_is_read: bool,
    /// What the kernel reads of the timer: outlives the ring.
    time: Box<Timespec>,
    timer_is_set: bool,
    /// By the number of the request. A place is empty before its request is used again.
    under_way: Vec<Option<Work>>,
    free: Vec<usize>,
}

impl Driver {
    fn new(ring: IoUring, shared: Arc<Shared>) -> Self {
        // One request is that of the bell, and one that of the timer.
        let places = DEPTH as usize - 2;
        Self {
            ring,
            shared,
            clock: SystemClock::start(),
            rung: Box::new(0),
            bell_is_read: false,
            time: Box::new(Timespec::new()),
            timer_is_set: false,
            under_way: (0..places).map(|_| None).collect(),
            free: (0..places).collect(),
        }
    }

    fn run(&mut self) {
        loop {
            // What is queued after this rings the bell.
            self.shared.asleep.store(true, Ordering::SeqCst);
            self.take_turns();
            if self.shared.turns().is_over() {
                return;
            }
            self.read_bell();
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    tracing::error!("the ring of io_uring fails: {error}; its blocks are misses");
                    return self.give_up();
                }
            }
            self.shared.asleep.store(false, Ordering::SeqCst);
            self.reap();
        }
    }

    fn take_turns(&mut self) {
        while let Some(place) = self.free.pop() {
            let turn = self.shared.turns().next(self.clock.now_us());
            match turn {
                Turn::Begin(work) => self.begin(place, work),
                Turn::Wait(us) => {
                    self.free.push(place);
                    return self.set_timer(us);
                }
                Turn::Idle => return self.free.push(place),
            }
        }
    }

    /// Asks the kernel for the next part of a transfer.
    fn begin(&mut self, place: usize, mut work: Work) {
        let (memory, bytes, offset) = work.next_part();
        // A call moves at most 2 GiB less a page.
        let length = u32::try_from(bytes).unwrap_or(u32::MAX).min(1 << 30);
        let file = types::Fd(work.file.as_raw_fd());
        let request = match work.direction() {
            Direction::Read => opcode::Read::new(file, memory, length).offset(offset).build(),
            Direction::Write => opcode::Write::new(file, memory, length).offset(offset).build(),
        };
        self.under_way[place] = Some(work);
        self.push(&request.user_data(place as u64));
    }

    fn read_bell(&mut self) {
        if !std::mem::replace(&mut self.bell_is_read, true) {
            let file = types::Fd(self.shared.bell.as_raw_fd());
            let memory = std::ptr::from_mut(&mut *self.rung).cast();
            self.push(&opcode::Read::new(file, memory, 8).build().user_data(BELL));
        }
    }

    /// A timer that is set ends before the wait that is longer: then there is another look.
    fn set_timer(&mut self, us: u64) {
        if !std::mem::replace(&mut self.timer_is_set, true) {
            let nanoseconds = u32::try_from(us % 1_000_000 * 1000).unwrap_or(0);
            *self.time = Timespec::new().sec(us / 1_000_000).nsec(nanoseconds);
            let time = std::ptr::from_ref(&*self.time);
            self.push(&opcode::Timeout::new(time).build().user_data(TIMER));
        }
    }

    fn push(&mut self, request: &squeue::Entry) {
        // SAFETY: the request names a file that `under_way` or `shared` keeps open, and memory that
        // `under_way` keeps (DRIVE-I1) or that is of this driver. None of it is dropped before the
        // request is reaped, or ever, when the ring fails.
        let pushed = unsafe { self.ring.submission().push(request) };
        pushed.expect("the ring has an entry for each place, for the bell and for the timer");
    }

    fn reap(&mut self) {
        let ended: Vec<_> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (request, result) in ended {
            match request {
                BELL => self.bell_is_read = false,
                TIMER => self.timer_is_set = false,
                place => self.end(place, result),
            }
        }
    }

    fn end(&mut self, request: u64, result: i32) {
        let Ok(place) = usize::try_from(request) else { return };
        let Some(mut work) = self.under_way[place].take() else { return };
        let outcome = match usize::try_from(result) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => Ok(work.moved(bytes)),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        let again = outcome.as_ref().is_err_and(is_passing);
        // The rest of a read that the kernel cut short keeps its place and its turn.
        if again
            || outcome.as_ref().is_ok_and(|is_last| !is_last && work.direction() == Direction::Read)
        {
            return self.begin(place, work);
        }
        self.free.push(place);
        let mut turns = self.shared.turns();
        turns.ended(work.direction(), self.clock.now_us());
        match outcome {
            Ok(false) => turns.go_on(work),
            outcome => {
                drop(turns);
                work.finish(outcome.map(drop));
            }
        }
    }

    /// The kernel may still use the memory of what is under way: that is never freed. What waits is
    /// dropped without a call.
    fn give_up(&mut self) {
        for it in self.under_way.iter_mut().filter_map(Option::take) {
            std::mem::forget(it);
        }
        std::mem::forget(std::mem::take(&mut self.rung));
        std::mem::forget(std::mem::take(&mut self.time));
        let mut turns = self.shared.turns();
        self.shared.failed.store(true, Ordering::SeqCst);
        *turns = Turns::default();
    }
}

/// Whether the same call succeeds later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
