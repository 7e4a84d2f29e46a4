//! A drive in memory that remembers what is not yet durable, and what a crash may leave of it.
//!
//! A crash keeps what was synced, and any subset of what was not: each page of each write, each
//! change of a length, each hole, each name by itself, whatever their order was. File systems of
//! today order more than that; the store relies on nothing beyond a sync.

mod image;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use image::CrashImage;
use image::{Change, FileNumber, Image, NameChange, Unit};

use super::{Content, Direction, Done, Drive, EngineKind, FileId, Finished, PAGE_BYTES, Transfer};

/// A drive in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct RecordedDrive(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// What programs see.
    now: Image,
    /// What a crash keeps in any case.
    durable: Image,
    /// What a crash may keep, in the order in which it was done.
    pending: Vec<Unit>,
    open: HashMap<FileId, FileNumber>,
    next: u64,
    /// Changes so far, syncs among them.
    steps: u64,
    /// The step after which nothing is done any more.
    stops_after: Option<u64>,
    /// Bytes that all files may have allocated.
    limit: Option<u64>,
}

impl RecordedDrive {
    /// An empty drive that can allocate at most `bytes`.
    #[must_use]
    pub fn limited(bytes: u64) -> Self {
        let drive = Self::default();
        drive.state().limit = Some(bytes);
        drive
    }

    /// A drive as a crash left it.
    #[must_use]
    pub fn after(image: &CrashImage) -> Self {
        let (now, durable) = (image.0.clone(), image.0.clone());
        let next = image.0.files.keys().map(|number| number.0).max().unwrap_or(0);
        Self(Arc::new(Mutex::new(State { now, durable, next, ..State::default() })))
    }

    /// Changes and syncs so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Lets `steps` more changes and syncs happen. All later ones fail, as after a crash.
    pub fn stop_after(&self, steps: u64) {
        let mut state = self.state();
        state.stops_after = Some(state.steps + steps);
    }

    /// The same drive after the process that used it has died: what it did is seen, and what was not
    /// durable is not. Steps are not limited any more.
    #[must_use]
    pub fn revived(&self) -> Self {
        let state = self.state();
        let State { now, durable, pending, next, limit, .. } = &*state;
        let (now, durable, pending) = (now.clone(), durable.clone(), pending.clone());
        let (next, limit) = (*next, *limit);
        Self(Arc::new(Mutex::new(State { now, durable, pending, next, limit, ..State::default() })))
    }

    /// How many changes a crash may keep or lose, each by itself.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.state().pending.len()
    }

    /// What a crash leaves that keeps the pending changes that `keeps` names.
    #[must_use]
    pub fn crash(&self, keeps: impl Fn(usize) -> bool) -> CrashImage {
        let state = self.state();
        let mut image = state.durable.clone();
        let kept = state.pending.iter().enumerate().filter(|(at, _)| keeps(*at));
        kept.for_each(|(_, unit)| image.apply(unit));
        CrashImage(image)
    }

    /// The bytes of a file, to be damaged by a test. Durable at once.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn damage(&self, name: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let number = state.now.names[name];
        let mut bytes = state.now.files[&number].bytes();
        damage(&mut bytes);
        let file = image::File::of(&bytes);
        state.now.files.insert(number, file.clone());
        state.durable.files.insert(number, file);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        if self.stops_after.is_some_and(|last| self.steps >= last) {
            return Err(io::Error::other("the machine has crashed"));
        }
        self.steps += 1;
        Ok(())
    }

    fn change(&mut self, unit: Unit) {
        self.now.apply(&unit);
        self.pending.push(unit);
    }

    fn number(&self, file: FileId) -> io::Result<FileNumber> {
        self.open.get(&file).copied().ok_or_else(|| io::Error::other("the file is closed"))
    }

    fn opened(&mut self, number: FileNumber) -> FileId {
        self.next += 1;
        let id = FileId(self.next);
        self.open.insert(id, number);
        id
    }

    fn file(&self, file: FileId) -> io::Result<&image::File> {
        let number = self.number(file)?;
        self.now.files.get(&number).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Bytes of the files that have a name or are open.
    fn allocated(&self) -> u64 {
        let open = self.open.values();
        let numbers: std::collections::BTreeSet<_> = self.now.names.values().chain(open).collect();
        let files = numbers.into_iter().filter_map(|number| self.now.files.get(number));
        files.map(image::File::allocated).sum()
    }

    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        let number = self.number(file)?;
        let page = u64::from(PAGE_BYTES);
        let end = offset + bytes.len() as u64;
        if end > self.file(file)?.length {
            self.change(Unit::File(number, Change::Length(end)));
        }
        let mut at = offset;
        while at < end {
            let next = (at / page + 1) * page;
            let part = usize::try_from(at - offset).unwrap_or(usize::MAX)
                ..usize::try_from(next.min(end) - offset).unwrap_or(usize::MAX);
            self.change(Unit::File(number, Change::Write(at, bytes[part].to_vec())));
            at = next;
        }
        Ok(())
    }

    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let file = self.file(file)?;
        if offset + bytes.len() as u64 > file.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.read(offset, bytes);
        Ok(())
    }

    fn transfer(&mut self, transfer: &mut Transfer) -> io::Result<()> {
        transfer.check()?;
        let Transfer { file, offset, buffer_offset, bytes, .. } = *transfer;
        let range = buffer_offset..buffer_offset + bytes;
        let refused = || io::Error::other("memory that others write is not for a simulated drive");
        match transfer.direction {
            Direction::Read => {
                let memory = transfer.buffer.bytes_mut().ok_or_else(refused)?;
                self.read(file, offset, &mut memory[range])
            }
            Direction::Write => {
                let memory = transfer.buffer.bytes().ok_or_else(refused)?;
                self.write(file, offset, &memory[range])
            }
        }
    }
}

impl Drive for RecordedDrive {
    fn engine(&self) -> EngineKind {
        EngineKind::Simulated
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state().now.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, _content: Content, reserve: u64) -> io::Result<FileId> {
        let mut state = self.state();
        state.step()?;
        if state.limit.is_some_and(|limit| state.allocated() + reserve > limit) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.next += 1;
        let number = FileNumber(state.next);
        state.now.files.insert(number, image::File::default());
        state.durable.files.insert(number, image::File::default());
        state.change(Unit::Name(NameChange::Is(name.to_owned(), number)));
        if reserve > 0 {
            state.change(Unit::File(number, Change::Reserve(reserve)));
        }
        Ok(state.opened(number))
    }

    fn open(&self, name: &str, _content: Content) -> io::Result<FileId> {
        let mut state = self.state();
        let number = state.now.names.get(name).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(state.opened(number))
    }

    fn close(&self, file: FileId) {
        self.state().open.remove(&file);
    }

    fn length(&self, file: FileId) -> io::Result<u64> {
        Ok(self.state().file(file)?.length)
    }

    fn allocated(&self, file: FileId) -> io::Result<u64> {
        Ok(self.state().file(file)?.allocated())
    }

    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.state().read(file, offset, bytes)
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.state().write(file, offset, bytes)
    }

    fn sync(&self, file: FileId) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let number = state.number(file)?;
        let current = state.file(file)?.clone();
        state.durable.files.insert(number, current);
        state.pending.retain(|unit| !matches!(unit, Unit::File(its, _) if *its == number));
        Ok(())
    }

    fn punch(&self, file: FileId, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let number = state.number(file)?;
        let page = u64::from(PAGE_BYTES);
        for at in (offset..offset + bytes).step_by(PAGE_BYTES as usize) {
            state.change(Unit::File(number, Change::Hole(at / page)));
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let number = state.now.names.get(from).copied().ok_or(io::ErrorKind::NotFound)?;
        let (from, to) = (from.to_owned(), to.to_owned());
        state.change(Unit::Name(NameChange::Moved { from, to, number }));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        if !state.now.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(Unit::Name(NameChange::Gone(name.to_owned())));
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.durable.names = state.now.names.clone();
        state.pending.retain(|unit| matches!(unit, Unit::File(..)));
        Ok(())
    }

    fn room(&self) -> io::Result<u64> {
        let state = self.state();
        Ok(state.limit.map_or(u64::MAX, |limit| limit.saturating_sub(state.allocated())))
    }

    fn submit(&self, mut transfer: Transfer, done: Done) -> Result<(), Transfer> {
        let outcome = self.state().transfer(&mut transfer);
        done(Finished { buffer: transfer.buffer, outcome });
        Ok(())
    }
}

impl Image {
    fn apply(&mut self, unit: &Unit) {
        match unit {
            Unit::File(number, change) => {
                // Names of files that are gone keep nothing.
                if let Some(file) = self.files.get_mut(number) {
                    file.apply(change);
                }
            }
            Unit::Name(NameChange::Is(name, number)) => {
                self.names.insert(name.clone(), *number);
            }
            Unit::Name(NameChange::Gone(name)) => {
                self.names.remove(name);
            }
            Unit::Name(NameChange::Moved { from, to, number }) => {
                self.names.remove(from);
                self.names.insert(to.clone(), *number);
            }
        }
    }
}

/// Names of files.
type Names = BTreeMap<String, FileNumber>;
