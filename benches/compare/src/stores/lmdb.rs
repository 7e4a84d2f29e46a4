//! LMDB: a memory-mapped B+ tree, here in memory and without durability.
#![expect(unsafe_code, reason = "heed makes opening an environment unsafe")]

use std::path::Path;

use anyhow::{Context, Result};
use heed::types::{Bytes, U64};
use heed::{Database, Env, EnvFlags, EnvOpenOptions, PutFlags};

use super::Store;

type Key = U64<heed::byteorder::BigEndian>;

/// An environment that both processes open.
#[derive(Debug)]
pub(crate) struct LmdbStore {
    env: Env,
    database: Database<Key, Bytes>,
}

impl LmdbStore {
    /// Opens, or makes, an environment of `map_bytes` in the folder.
    pub(crate) fn open(place: &Path, map_bytes: usize) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(map_bytes);
        // SAFETY: the files are this run's own. Without syncing a crash of the machine could leave
        // them damaged; they lie in memory, which does not survive one either.
        unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP | EnvFlags::NO_READ_AHEAD) };
        // SAFETY: as above; nothing but the two workers opens them, both through this function, and
        // they use LMDB's own lock file.
        let env = unsafe { options.open(place) };
        let env = env.with_context(|| format!("cannot open LMDB in {}", place.display()))?;
        let mut txn = env.write_txn()?;
        let database = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Self { env, database })
    }
}

impl Store for LmdbStore {
    fn put(&mut self, numbers: &[u64], blocks: &mut [&mut [u8]]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for (number, block) in numbers.iter().zip(blocks) {
            // Numbers grow: LMDB's fastest way, which also fills its pages.
            self.database.put_with_flags(&mut txn, PutFlags::APPEND, number, block)?;
        }
        Ok(txn.commit()?)
    }

    fn get(&mut self, numbers: &[u64], buffers: &mut [&mut [u8]]) -> Result<()> {
        let txn = self.env.read_txn()?;
        for (number, buffer) in numbers.iter().zip(buffers) {
            let block = self.database.get(&txn, number)?.context("a block is missing")?;
            buffer.copy_from_slice(block);
        }
        Ok(())
    }

    fn lookup(&mut self, numbers: &[u64]) -> Result<Option<usize>> {
        let txn = self.env.read_txn()?;
        for (index, number) in numbers.iter().enumerate() {
            if self.database.get(&txn, number)?.is_none() {
                return Ok(Some(index));
            }
        }
        Ok(Some(numbers.len()))
    }

    fn reset(&mut self) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        self.database.clear(&mut txn)?;
        Ok(txn.commit()?)
    }
}
