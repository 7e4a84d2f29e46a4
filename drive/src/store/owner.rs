//! What the owner of a store does besides waiting: it begins transfers and goes on, and lists blocks.

use std::path::Path;
use std::sync::Arc;

use kv_cache::BlockKey;

use super::Store;
use crate::io::Buffer;
use crate::volume::{
    BlockSpec, Decoded, ReadDone, ReadMiss, Reservation, ReserveError, StoredBlock, Volume,
};

impl Store {
    /// How many folders the store has, those among them whose device does not answer.
    #[must_use]
    pub fn folders(&self) -> usize {
        self.folders.len()
    }

    /// The volume in folder `folder`; `None` while its device does not answer.
    #[must_use]
    pub fn volume(&self, folder: usize) -> Option<Arc<Volume>> {
        self.folders.get(folder)?.volume()
    }

    /// The paths of all folders, with what is open of each.
    pub fn each_folder(&self) -> impl Iterator<Item = (&Path, Option<Arc<Volume>>)> {
        self.folders.iter().map(|folder| (folder.options.path.as_path(), folder.volume()))
    }

    /// A block, and the number of the folder that has it. Where several have it, one that this version
    /// can read, on a device that did not fail a moment ago (DRIVE-S1).
    #[must_use]
    pub fn block(&self, key: &BlockKey) -> Option<(usize, StoredBlock)> {
        let each = self.folders.iter().enumerate();
        let mut found = each.filter_map(|(number, folder)| {
            let volume = folder.volume()?;
            Some((volume.block(key)?, number, volume))
        });
        let first = found.next()?;
        let worth = |block: &StoredBlock, number: usize, volume: &Volume| {
            (block.is_readable(), !volume.failures()[0].1, std::cmp::Reverse(number))
        };
        let best = found.fold(first, |best, next| {
            let is_better = worth(&next.0, next.1, &next.2) > worth(&best.0, best.1, &best.2);
            if is_better { next } else { best }
        });
        Some((best.1, best.0))
    }

    /// Reserves an extent for a block, and says in which folder. Blocks are striped over the folders
    /// by their keys; a folder that is full or fails is passed over.
    ///
    /// # Errors
    /// [`ReserveError`]: of the last folder, when none takes the block.
    pub fn reserve(&self, spec: &BlockSpec<'_>) -> Result<(usize, Reservation), ReserveError> {
        if self.block(&spec.key).is_some() {
            return Err(ReserveError::Exists);
        }
        let count = self.folders.len().max(1);
        let first = usize::from(spec.key.as_bytes()[8]) % count;
        let mut refused = ReserveError::Full;
        for number in (0..count).map(|at| (first + at) % count) {
            let Some(volume) = self.folders.get(number).and_then(super::Folder::volume) else {
                continue;
            };
            match volume.reserve(spec) {
                Ok(reservation) => return Ok((number, reservation)),
                Err(error @ (ReserveError::Exists | ReserveError::Invalid(_))) => {
                    return Err(error);
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// Begins to read a block to the beginning of `buffer`. `done` is called on a thread of the drive.
    ///
    /// # Errors
    /// The buffer, and why the block is a miss at once.
    pub fn read(
        &self,
        key: BlockKey,
        buffer: Buffer,
        done: ReadDone,
    ) -> Result<(), (Buffer, ReadMiss)> {
        match self.volume_of(&key) {
            Some(volume) => volume.read(key, buffer, done),
            None => Err((buffer, ReadMiss::NotFound)),
        }
    }

    /// The volume from which a block is read: that of [`block`](Self::block).
    pub(super) fn volume_of(&self, key: &BlockKey) -> Option<Arc<Volume>> {
        self.volume(self.block(key)?.0)
    }

    /// The blocks in part `part` of folder `folder`, in no order. `None` behind the last part. Blocks
    /// that come or go meanwhile are listed or not.
    #[must_use]
    pub fn blocks(&self, folder: usize, part: usize) -> Option<Vec<StoredBlock>> {
        let volume = self.folders.get(folder)?.volume()?;
        let keys = volume.keys(part)?;
        Some(keys.iter().filter_map(|key| volume.block(key)).collect())
    }

    /// Whether all folders are open and all their tables are read: there are no other blocks.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.folders.iter().all(|folder| folder.volume().is_some_and(|it| it.is_scanned()))
    }

    /// The folders that are open and whose devices have not ended what was given up.
    #[must_use]
    pub fn silent_folders(&self) -> Vec<usize> {
        let is_silent = |at: &usize| self.volume(*at).is_some_and(|volume| volume.is_silent());
        (0..self.folders.len()).filter(is_silent).collect()
    }

    /// What was decoded since the folders were opened.
    #[must_use]
    pub fn decoded(&self) -> Decoded {
        let each = self.volumes().map(|(_, volume)| volume.decoded());
        each.fold(Decoded::default(), |sum, its| Decoded {
            blocks: sum.blocks + its.blocks,
            bytes: sum.bytes + its.bytes,
            cpu_ns: sum.cpu_ns + its.cpu_ns,
        })
    }

    /// Whether all tables of all folders that are open are read: a block that is not found before may
    /// be there.
    #[must_use]
    pub fn is_scanned(&self) -> bool {
        self.volumes().all(|(_, volume)| volume.is_scanned())
    }
}
