//! The ceilings: shared memory, and a copy.

use std::fs::OpenOptions;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cxl_shm::fabric::Mapping;
use cxl_shm::units::Extent;
use rackline_benches::{Batch, memcpy_in, memcpy_out, stream_in, stream_out};

use super::Store;

/// How bytes are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copying {
    /// Through the caches.
    Memcpy,
    /// With stores that go around them.
    Stream,
}

/// A file that both processes map. Blocks follow each other and start again at the front.
#[derive(Debug)]
pub(crate) struct PlainStore {
    mapping: Mapping,
    bytes: u64,
    copying: Copying,
}

impl PlainStore {
    /// Maps the file, all of it touched.
    pub(crate) fn open(place: &Path, copying: Copying) -> Result<Self> {
        let path = place.join("plain");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let bytes = file.metadata()?.len();
        let mapping = Mapping::shared(&file, bytes)?;
        mapping.prefault(Extent::new(0, bytes).context("the file is too long")?)?;
        Ok(Self { mapping, bytes, copying })
    }

    fn batch<'b>(&'b self, numbers: &[u64], buffers: &'b mut [&mut [u8]]) -> Result<Batch<'b>> {
        let payloads: Option<Vec<_>> = numbers
            .iter()
            .zip(buffers.iter())
            .map(|(number, buffer)| {
                let bytes = buffer.len() as u64;
                Extent::new(number % (self.bytes / bytes) * bytes, bytes)
            })
            .collect();
        let payloads = payloads.context("a block does not fit the file")?;
        let buffers = buffers.iter_mut().map(|buffer| &mut **buffer).collect();
        Ok(Batch { mapping: &self.mapping, payloads, buffers })
    }
}

impl Store for PlainStore {
    fn put(&mut self, numbers: &[u64], blocks: &mut [&mut [u8]]) -> Result<()> {
        let mut batch = self.batch(numbers, blocks)?;
        match self.copying {
            Copying::Memcpy => memcpy_in(&mut batch),
            Copying::Stream => stream_in(&mut batch),
        }
        Ok(())
    }

    fn get(&mut self, numbers: &[u64], buffers: &mut [&mut [u8]]) -> Result<()> {
        ensure!(numbers.len() == buffers.len(), "a buffer for each block");
        let mut batch = self.batch(numbers, buffers)?;
        match self.copying {
            Copying::Memcpy => memcpy_out(&mut batch),
            Copying::Stream => stream_out(&mut batch),
        }
        Ok(())
    }

    fn lookup(&mut self, _numbers: &[u64]) -> Result<Option<usize>> {
        Ok(None)
    }
}
