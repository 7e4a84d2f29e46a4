//! A drive whose calls for metadata end in time, around another one (DRIVE-I6).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, after, bounded, select, unbounded};

#[cfg(test)]
mod tests;

use super::{Content, Done, Drive, EngineKind, FileId, Transfer};

/// The longest that a call for metadata may take (DRIVE-I6). Kernels retry a command of an NVMe drive
/// after 30 seconds.
pub const LONGEST_CALL: Duration = Duration::from_secs(60);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that carries out the calls to one folder, one after another.
///
/// It outlives the drive, so that a folder whose last call has not ended is not tried again.
#[derive(Debug)]
pub struct CallThread {
    jobs: Sender<Job>,
    progress: Arc<Mutex<Progress>>,
    /// Says early that [`LONGEST_CALL`] is over, for tests.
    time_is_over: Receiver<()>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Calls that have ended.
    ended: u64,
    /// The call that is under way has taken too long.
    is_silent: bool,
}

impl Progress {
    fn one_ended(&mut self) {
        self.ended += 1;
        self.is_silent = false;
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

fn silent() -> io::Error {
    let seconds = LONGEST_CALL.as_secs();
    let what = format!("the device has not ended a call for {seconds} seconds; check the device");
    io::Error::new(io::ErrorKind::TimedOut, what)
}

fn stopped() -> io::Error {
    io::Error::other("the thread of the folder has stopped")
}

impl CallThread {
    /// Starts the thread. A message in `time_is_over` counts as [`LONGEST_CALL`].
    ///
    /// # Errors
    /// The system's.
    pub fn start(time_is_over: Receiver<()>) -> io::Result<Self> {
        let (jobs, queue) = unbounded::<Job>();
        let progress = Arc::new(Mutex::<Progress>::default());
        let thread = std::thread::Builder::new().name("rackline-calls".to_owned());
        thread.spawn(move || {
            for job in queue {
                job();
            }
        })?;
        Ok(Self { jobs, progress, time_is_over })
    }

    /// Whether a call has taken too long and has not ended.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        lock(&self.progress).is_silent
    }

    /// Carries out `call` behind the calls before it. Nobody waits for it.
    fn call_later(&self, call: impl FnOnce() + Send + 'static) {
        let progress = Arc::clone(&self.progress);
        let job = move || {
            call();
            lock(&progress).one_ended();
        };
        // The thread ends with the sender that is used here.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Carries out `call` behind the calls before it. When the caller was told `TimedOut`, `late`
    /// takes what the call has returned after all. A call that had not begun by then never begins.
    ///
    /// # Errors
    /// `TimedOut` when a call takes longer than [`LONGEST_CALL`], and at once until that call ends.
    pub fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
        late: impl FnOnce(T) + Send + 'static,
    ) -> io::Result<T> {
        let (tell, told) = bounded(1);
        let given_up = Arc::new(AtomicBool::new(false));
        let (progress, is_over) = (Arc::clone(&self.progress), Arc::clone(&given_up));
        let job: Job = Box::new(move || {
            // Written and read under the lock of `progress`.
            let is_over = || is_over.load(Ordering::Relaxed);
            let before = lock(&progress);
            if is_over() {
                return;
            }
            drop(before);
            let outcome = call();
            let mut after = lock(&progress);
            if is_over() {
                drop(after);
                late(outcome);
                lock(&progress).one_ended();
            } else {
                after.one_ended();
                // The caller has not given up, and so it waits.
                let _ = tell.send(outcome);
            }
        });
        let mut seen = {
            let progress = lock(&self.progress);
            if progress.is_silent {
                return Err(silent());
            }
            progress.ended
        };
        self.jobs.send(job).map_err(|_| stopped())?;
        loop {
            select! {
                recv(told) -> outcome => return outcome.map_err(|_| stopped()),
                recv(after(LONGEST_CALL)) -> _ => {}
                recv(self.time_is_over) -> _ => {}
            }
            let mut progress = lock(&self.progress);
            if let Ok(outcome) = told.try_recv() {
                return Ok(outcome);
            }
            if progress.ended == seen {
                progress.is_silent = true;
                given_up.store(true, Ordering::Relaxed);
                return Err(silent());
            }
            // Another call has ended meanwhile: the time of this one begins anew.
            seen = progress.ended;
        }
    }
}

/// A drive whose calls for metadata a [`CallThread`] carries out. Payload goes straight through.
#[derive(Debug)]
pub struct BoundedDrive {
    thread: Arc<CallThread>,
    drive: Arc<dyn Drive>,
}

impl BoundedDrive {
    /// The drive that `open` opens. What it opens too late is closed again.
    ///
    /// # Errors
    /// `TimedOut` as of [`CallThread::call`]; inside, what `open` says.
    pub fn open<E: Send + 'static>(
        thread: Arc<CallThread>,
        open: impl FnOnce() -> Result<Arc<dyn Drive>, E> + Send + 'static,
    ) -> io::Result<Result<Self, E>> {
        let opened = thread.call(open, drop)?;
        Ok(opened.map(|drive| Self { thread, drive }))
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Drive) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.call_or(call, |_, _| {})
    }

    /// As `call`, and `undo` takes back what a call has made too late.
    fn call_or<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Drive) -> io::Result<T> + Send + 'static,
        undo: impl FnOnce(&dyn Drive, T) + Send + 'static,
    ) -> io::Result<T> {
        let (drive, its) = (Arc::clone(&self.drive), Arc::clone(&self.drive));
        let late = move |outcome: io::Result<T>| {
            if let Ok(made) = outcome {
                undo(&*its, made);
            }
        };
        self.thread.call(move || call(&*drive), late)?
    }
}

impl Drop for BoundedDrive {
    fn drop(&mut self) {
        // No call holds the drive after this one: another open finds its lock free. A silent device
        // keeps the lock until its call ends.
        let _ = self.thread.call(|| (), drop);
    }
}

impl Drive for BoundedDrive {
    fn engine(&self) -> EngineKind {
        self.drive.engine()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.call(|drive| drive.names())
    }

    fn create(&self, name: &str, content: Content, reserve: u64) -> io::Result<FileId> {
        let (name, same) = (name.to_owned(), name.to_owned());
        let undo = move |drive: &dyn Drive, file| {
            drive.close(file);
            if let Err(error) = drive.remove(&same) {
                tracing::warn!("cannot remove {same}: {error}; it is removed at the next start");
            }
        };
        self.call_or(move |drive| drive.create(&name, content, reserve), undo)
    }

    fn open(&self, name: &str, content: Content) -> io::Result<FileId> {
        let name = name.to_owned();
        self.call_or(move |drive| drive.open(&name, content), |drive, file| drive.close(file))
    }

    fn close(&self, file: FileId) {
        let drive = Arc::clone(&self.drive);
        // The last handle of a removed file gives its memory back, which may take long.
        self.thread.call_later(move || drive.close(file));
    }

    fn length(&self, file: FileId) -> io::Result<u64> {
        self.call(move |drive| drive.length(file))
    }

    fn allocated(&self, file: FileId) -> io::Result<u64> {
        self.call(move |drive| drive.allocated(file))
    }

    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut read = vec![0; bytes.len()];
        let read = self.call(move |drive| drive.read(file, offset, &mut read).map(|()| read))?;
        bytes.copy_from_slice(&read);
        Ok(())
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let bytes = bytes.to_vec();
        self.call(move |drive| drive.write(file, offset, &bytes))
    }

    fn sync(&self, file: FileId) -> io::Result<()> {
        self.call(move |drive| drive.sync(file))
    }

    fn punch(&self, file: FileId, offset: u64, bytes: u64) -> io::Result<()> {
        self.call(move |drive| drive.punch(file, offset, bytes))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.call(move |drive| drive.rename(&from, &to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let name = name.to_owned();
        self.call(move |drive| drive.remove(&name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.call(|drive| drive.sync_folder())
    }

    fn room(&self) -> io::Result<u64> {
        self.call(|drive| drive.room())
    }

    fn submit(&self, transfer: Transfer, done: Done) -> Result<(), Transfer> {
        self.drive.submit(transfer, done)
    }
}
