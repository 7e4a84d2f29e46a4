//! A drive that fails as it is told, around another one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::{Content, Direction, Done, Drive, EngineKind, FileId, Finished, Transfer};

/// A kind of call to the drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Names, lengths, and what is allocated.
    Ask,
    /// A new file.
    Create,
    /// An old file.
    Open,
    /// Small records read.
    Read,
    /// Small records written.
    Write,
    /// A file or the folder made durable.
    Sync,
    /// Memory given back.
    Punch,
    /// A name replaced or removed.
    Rename,
    /// Payload read.
    ReadPayload,
    /// Payload written.
    WritePayload,
}

/// What happens to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It fails with this error of the system and changes nothing.
    Error(i32),
    /// A write changes the first half of its bytes, and fails.
    Half(i32),
    /// One bit of what was read differs. Only reads are concerned.
    FlippedBit,
    /// It ends only when [`Faults::release`] is called, and then succeeds.
    Delay,
    /// A write says that it has succeeded, and changes nothing.
    Lost,
}

#[derive(Debug)]
struct Rule {
    call: Option<Call>,
    /// Calls of this kind that still succeed before the first fault.
    skip: u64,
    /// Faults that are left.
    count: u64,
    fault: Fault,
}

/// The faults of a [`FaultyDrive`], set by a test while it is in use.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    planned: Mutex<Planned>,
    changed: Condvar,
    /// Takes a message where a caller waits for a call (see [`Faults::time_is_over`]).
    over: (Sender<()>, Receiver<()>),
}

impl Default for Shared {
    fn default() -> Self {
        let (planned, changed) = Default::default();
        Self { planned, changed, over: bounded(0) }
    }
}

#[derive(Default)]
struct Planned {
    rules: Vec<Rule>,
    delayed: Vec<(Done, Finished)>,
    /// Calls other than transfers that are delayed.
    hanging: usize,
    /// How often `release` was called.
    releases: u64,
    calls: u64,
}

impl std::fmt::Debug for Planned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Planned").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Faults of folders, by path.
static OF_FOLDERS: Mutex<BTreeMap<PathBuf, Faults>> = Mutex::new(BTreeMap::new());

impl Faults {
    /// The faults of a folder of the operating system: of all drives that stores of this process open
    /// there after the first call.
    #[must_use]
    pub fn of_folder(path: &Path) -> Self {
        let mut all = OF_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(path.to_owned()).or_default().clone()
    }

    /// Those of a folder for which a test has asked.
    pub(crate) fn asked_for(path: &Path) -> Option<Self> {
        OF_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    /// From now, `skip` calls succeed and the next `count` have `fault`. Without `call` all kinds
    /// of calls are counted.
    pub fn plan(&self, call: Option<Call>, skip: u64, count: u64, fault: Fault) {
        self.state().rules.push(Rule { call, skip, count, fault });
    }

    /// The device is gone: every call fails until [`clear`](Self::clear).
    pub fn vanish(&self) {
        self.plan(None, 0, u64::MAX, Fault::Error(libc::ENODEV));
    }

    /// No fault is left.
    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// Ends the calls that were delayed. Says how many.
    pub fn release(&self) -> usize {
        let mut planned = self.state();
        planned.releases += 1;
        let delayed = std::mem::take(&mut planned.delayed);
        let count = delayed.len() + std::mem::take(&mut planned.hanging);
        drop(planned);
        self.0.changed.notify_all();
        delayed.into_iter().for_each(|(done, finished)| done(finished));
        count
    }

    /// Waits until a call other than a transfer is delayed.
    pub fn wait_for_delay(&self) {
        let planned = self.0.changed.wait_while(self.state(), |planned| planned.hanging == 0);
        drop(planned);
    }

    /// Whether a call other than a transfer is delayed.
    #[must_use]
    pub fn is_delaying(&self) -> bool {
        self.state().hanging > 0
    }

    /// Tells a caller that waits for a call of a bounded drive: the longest time of a call is over.
    /// Nothing happens when none waits.
    pub fn time_is_over(&self) {
        let _ = self.0.over.0.try_send(());
    }

    /// What [`time_is_over`](Self::time_is_over) tells.
    #[must_use]
    pub fn over(&self) -> Receiver<()> {
        self.0.over.1.clone()
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    fn state(&self) -> MutexGuard<'_, Planned> {
        self.0.planned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault of this call, if it has one. A delay of what is no transfer is over then.
    fn next(&self, call: Call) -> Option<Fault> {
        let fault = self.next_planned(call);
        if fault != Some(Fault::Delay) || matches!(call, Call::ReadPayload | Call::WritePayload) {
            return fault;
        }
        let mut planned = self.state();
        planned.hanging += 1;
        self.0.changed.notify_all();
        let releases = planned.releases;
        let released = self.0.changed.wait_while(planned, |planned| planned.releases == releases);
        drop(released);
        None
    }

    fn next_planned(&self, call: Call) -> Option<Fault> {
        let mut planned = self.state();
        planned.calls += 1;
        let mut found = None;
        for rule in planned.rules.iter_mut().filter(|it| it.call.is_none_or(|its| its == call)) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.count > 0 && found.is_none() {
                rule.count -= 1;
                found = Some(rule.fault);
            }
        }
        found
    }

    /// The error of this call, if it has one.
    fn check(&self, call: Call) -> io::Result<()> {
        match self.next(call) {
            Some(Fault::Error(code) | Fault::Half(code)) => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }
}

/// A drive with [`Faults`].
#[derive(Debug)]
pub struct FaultyDrive<D> {
    drive: D,
    faults: Faults,
}

impl<D: Drive> FaultyDrive<D> {
    /// `drive`, with `faults`.
    pub const fn new(drive: D, faults: Faults) -> Self {
        Self { drive, faults }
    }
}

impl<D: Drive> Drive for FaultyDrive<D> {
    fn engine(&self) -> EngineKind {
        self.drive.engine()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.faults.check(Call::Ask)?;
        self.drive.names()
    }

    fn create(&self, name: &str, content: Content, reserve: u64) -> io::Result<FileId> {
        self.faults.check(Call::Create)?;
        self.drive.create(name, content, reserve)
    }

    fn open(&self, name: &str, content: Content) -> io::Result<FileId> {
        self.faults.check(Call::Open)?;
        self.drive.open(name, content)
    }

    fn close(&self, file: FileId) {
        self.drive.close(file);
    }

    fn length(&self, file: FileId) -> io::Result<u64> {
        self.faults.check(Call::Ask)?;
        self.drive.length(file)
    }

    fn allocated(&self, file: FileId) -> io::Result<u64> {
        self.faults.check(Call::Ask)?;
        self.drive.allocated(file)
    }

    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self.faults.next(Call::Read) {
            Some(Fault::Error(code) | Fault::Half(code)) => Err(io::Error::from_raw_os_error(code)),
            fault => {
                self.drive.read(file, offset, bytes)?;
                if fault == Some(Fault::FlippedBit) {
                    flip(bytes);
                }
                Ok(())
            }
        }
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.faults.next(Call::Write) {
            Some(Fault::Error(code)) => Err(io::Error::from_raw_os_error(code)),
            Some(Fault::Half(code)) => {
                self.drive.write(file, offset, &bytes[..bytes.len() / 2])?;
                Err(io::Error::from_raw_os_error(code))
            }
            Some(Fault::Lost) => Ok(()),
            _ => self.drive.write(file, offset, bytes),
        }
    }

    fn sync(&self, file: FileId) -> io::Result<()> {
        self.faults.check(Call::Sync)?;
        self.drive.sync(file)
    }

    fn punch(&self, file: FileId, offset: u64, bytes: u64) -> io::Result<()> {
        self.faults.check(Call::Punch)?;
        self.drive.punch(file, offset, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.faults.check(Call::Rename)?;
        self.drive.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.faults.check(Call::Rename)?;
        self.drive.remove(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.faults.check(Call::Sync)?;
        self.drive.sync_folder()
    }

    fn room(&self) -> io::Result<u64> {
        self.faults.check(Call::Ask)?;
        self.drive.room()
    }

    fn submit(&self, transfer: Transfer, done: Done) -> Result<(), Transfer> {
        let read = transfer.direction == Direction::Read;
        let fault = self.faults.next(if read { Call::ReadPayload } else { Call::WritePayload });
        let Transfer { bytes, buffer_offset, .. } = transfer;
        match fault {
            None => self.drive.submit(transfer, done),
            Some(Fault::Error(code)) => {
                let outcome = Err(io::Error::from_raw_os_error(code));
                done(Finished { buffer: transfer.buffer, outcome });
                Ok(())
            }
            Some(Fault::Lost) => {
                done(Finished { buffer: transfer.buffer, outcome: Ok(()) });
                Ok(())
            }
            Some(Fault::Half(code)) => {
                let page = super::PAGE_BYTES as usize;
                let half = Transfer { bytes: (bytes / 2).next_multiple_of(page), ..transfer };
                let fails = move |finished: Finished| {
                    let outcome = finished.outcome.and(Err(io::Error::from_raw_os_error(code)));
                    done(Finished { buffer: finished.buffer, outcome });
                };
                self.drive.submit(half, Box::new(fails))
            }
            Some(Fault::FlippedBit) => {
                let flips = move |mut finished: Finished| {
                    let memory = finished.buffer.bytes_mut().filter(|_| read);
                    if let Some(memory) = memory {
                        flip(&mut memory[buffer_offset..buffer_offset + bytes]);
                    }
                    done(finished);
                };
                self.drive.submit(transfer, Box::new(flips))
            }
            Some(Fault::Delay) => {
                let faults = self.faults.clone();
                let keeps = move |finished| faults.state().delayed.push((done, finished));
                self.drive.submit(transfer, Box::new(keeps))
            }
        }
    }
}

fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x10;
}
