//! The file that stands for the pool, and the GPU.

#![expect(clippy::disallowed_methods, reason = "this is what the machine takes, not the protocol")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cudarc::driver::{CudaSlice, CudaStream};
use cxl_shm::fabric::{MappedFabric, Mapping, ReadBack};
use cxl_shm::region::free_bytes;
use cxl_shm::units::Extent;
use rackline::cuda::{CudaDma, CudaOptions};
use rackline::dma::{Checksum, DmaEngine, DmaError, LoadJob, StoreJob};

use crate::current::without_context;

/// A pool and a GPU that reaches it.
pub(crate) struct Device {
    pub(crate) dma: CudaDma,
    /// On which the checks work, as an engine would.
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Seconds that it took to open the GPU and to register a piece of the file.
    pub(crate) open_s: f64,
    /// Removes the file.
    _directory: tempfile::TempDir,
}

impl Device {
    pub(crate) fn open(directory: &Path, bytes: u64, gpu: usize) -> Result<Self> {
        if let Some(free) = free_bytes(directory).context("the directory")? {
            ensure!(
                free >= bytes,
                "{} has {free} bytes left, the file takes {bytes}: give a smaller --size, or \
                 another --directory",
                directory.display()
            );
        }
        let folder =
            tempfile::Builder::new().prefix("rackline-gpu-check-").tempdir_in(directory)?;
        let path = folder.path().join("pool");
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.set_len(bytes)?;
        let began = Instant::now();
        let dma = engine(&file, bytes, gpu)?;
        let open_s = began.elapsed().as_secs_f64();
        let stream = dma.context().new_stream()?;
        Ok(Self { dma, stream, file, path, bytes, open_s, _directory: folder })
    }

    /// That many bytes of the pool, from the start of its `index`-th part of that length.
    pub(crate) fn payload(&self, index: u64, bytes: u64) -> Result<Extent> {
        let payload = index.checked_mul(bytes).and_then(|offset| Extent::new(offset, bytes));
        payload.filter(|payload| payload.end() <= self.bytes).context("the file is too small")
    }

    /// Stores the bytes of `from` in equal parts, as work of the stream leaves them.
    pub(crate) fn store(
        &self,
        payload: Extent,
        from: &[CudaSlice<u8>],
    ) -> Result<Result<Checksum, DmaError>> {
        let parts = from.iter().map(|part| self.dma.source(part, &self.stream));
        let parts: Vec<_> = parts.collect::<Result<_, _>>()?;
        Ok(self.dma.store(&[StoreJob { payload, parts: &parts }]).remove(0))
    }

    /// Loads into `to`, after what the stream does with it.
    pub(crate) fn load(
        &self,
        payload: Extent,
        to: &mut [CudaSlice<u8>],
    ) -> Result<Result<Checksum, DmaError>> {
        let parts = to.iter_mut().map(|part| self.dma.destination(part, &self.stream));
        let parts = parts.collect::<Result<_, _>>()?;
        Ok(self.dma.load(&mut [LoadJob { payload, parts }]).remove(0))
    }

    /// Another engine over the file.
    pub(crate) fn another(&self, gpu: usize, how: ReadBack, by_gpu: bool) -> Result<CudaDma> {
        self.another_with(gpu, how, |options| options.gpu_checksums &= by_gpu)
    }

    /// Another one, with options that `change` has changed.
    pub(crate) fn another_with(
        &self,
        gpu: usize,
        how: ReadBack,
        change: impl FnOnce(&mut CudaOptions),
    ) -> Result<CudaDma> {
        let mut options = CudaOptions::from_environment()?;
        change(&mut options);
        let fabric = MappedFabric::new(Mapping::shared(&self.file, self.bytes)?)?;
        Ok(CudaDma::with_options(fabric.with_read_back(how), gpu, options)?)
    }

    /// Ends the engine, and sees that nothing of it stays behind: the mapping can be registered
    /// anew, and is unmapped.
    pub(crate) fn close(self, gpu: usize) -> Result<String> {
        let Self { dma, stream, file, bytes, path, open_s: _, _directory } = self;
        stream.synchronize()?;
        drop(stream);
        let end = |dma| {
            drop(dma);
            Ok(())
        };
        without_context("the end of an engine", || end(dma))?;
        ensure!(!is_mapped(&path)?, "the mapping is still there after the engine ended");
        let anew = without_context("another engine", || engine(&file, bytes, gpu))?;
        without_context("the end of the last engine", || end(anew))?;
        ensure!(!is_mapped(&path)?, "the mapping is still there after the second engine ended");
        Ok("registered twice, unmapped twice".into())
    }
}

fn engine(file: &File, bytes: u64, gpu: usize) -> Result<CudaDma> {
    // As of a region in this host's memory, and of one on a device that was qualified.
    let fabric = MappedFabric::new(Mapping::shared(file, bytes)?)?;
    Ok(CudaDma::new(fabric.with_read_back(ReadBack::NotNeeded), gpu)?)
}

/// Whether this process maps the file.
pub(crate) fn is_mapped(path: &Path) -> Result<bool> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().any(|line| line.ends_with(&*path.to_string_lossy())))
}
